"""The pictures of a report, each from aggregates to one matplotlib Figure. Nothing here computes a number."""

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import stats
from analysis.draw import (
    CUT,
    FAINT,
    HEIGHT,
    INK,
    LOG,
    Look,
    canvas,
    flops_unit,
    label_ends,
    log_steps,
    loss_limits,
    padded,
    shown,
    tip,
    tips,
    unit_of,
)
from analysis.frames import arms_of, final_losses
from analysis.rates import Rates
from analysis.units import PREFIXES, scale

Row = dict[str, Any]
MOST_TIPS = 40  # per arm and picture

COMPONENT_COLORS = {
    "q": "#08306b",
    "k": "#08519c",
    "v": "#2f7ebc",
    "scores": "#66abd4",
    "values": "#a0cbe2",
    "output": "#cfe1f2",
    "ffn_gate": "#b35806",
    "ffn_up": "#e08214",
    "ffn_down": "#fdb863",
    "head": "#9a9a9a",
}


def loss_figure(curve: pl.DataFrame, axis: str, title: str, looks: dict[str, Look]) -> Figure:
    """A curve frame over one of `curves.AXES`: line = mean, band = lowest to highest seed, × = a value not finite.

    Where a frame has `smoothed`, that is the line, and the bands stay raw: darker that of the mean. Dotted: fewer seeds
    than elsewhere. The axis LOG is that of steps, logarithmic.
    """
    with canvas(_tall(curve)) as (figure, axes):
        line = "smoothed" if "smoothed" in curve.columns else "mean"
        if limits := loss_limits(curve, line, 0.0 if axis == LOG else CUT):
            axes.set_ylim(limits)
        _draw_arms(axes, curve, axis, line, looks)
        axes.set(title=title, ylabel="loss (nats per token)")
        return figure


def difference_figure(curve: pl.DataFrame, axis: str, baseline: str, looks: dict[str, Look]) -> Figure:
    """A curve frame of arm minus baseline over training; below zero is better."""
    with canvas(_tall(curve)) as (figure, axes):
        late = curve.filter(pl.col("step") >= CUT * pl.col("step").max(), pl.col("n") > 0)
        axes.set_ylim(padded(min([0.0, *late["low"]]), max([0.0, *late["high"]])))
        axes.axhline(0, color=INK, lw=1)
        _draw_arms(axes, curve, axis, "mean", looks)
        axes.set(title=f"Validation loss minus {shown(baseline, 16)}", ylabel="difference (nats per token)")
        return figure


def _tall(curve: pl.DataFrame) -> float:
    """Room for the name of every arm."""
    return max(HEIGHT, 0.6 + 0.22 * curve["arm"].n_unique())


def runs_figure(points: pl.DataFrame, arm: str, log: bool, look: Look) -> Figure:
    """What `curves.run_extremes` kept of each run of one arm, a line per run; × = a value not finite."""
    with canvas() as (figure, axes):
        finite = points.filter(pl.col("loss").is_finite())
        for part in finite.partition_by("seed"):
            axes.plot(part["step"], part["loss"], color=look.color, lw=0.5, alpha=0.6)
        _mark_bad(axes, points.filter(~pl.col("loss").is_finite())["step"], look)
        axes.set(title=f"Training loss of every run of {shown(arm, 16)}, raw", ylabel="loss (nats per token)")
        axes.set_xlabel(unit_of(LOG if log else "step", 1.0)[1])
        if log and len(points):
            log_steps(axes, points["step"].to_list()[0], max(points["step"].to_list()))
        return figure


def _draw_arms(axes: Axes, curve: pl.DataFrame, axis: str, line: str, looks: dict[str, Look]) -> None:
    column = "step" if axis == LOG else axis
    largest = max(curve[column].to_list(), default=0.0) or 1.0  # an evaluation before the first step stands at 0
    divisor, title = unit_of(axis, largest)
    left = 0.7 * CUT * largest / divisor  # what ended before is shown at this edge
    if axis == LOG:
        left = min(curve.filter(pl.col("step") > 0)["step"].to_list(), default=1)
        log_steps(axes, left, largest)
    ends = []
    parts = curve.with_columns(pl.col(column) / divisor).partition_by("arm", as_dict=True)
    for arm, look in looks.items():
        if (part := parts.get((arm,))) is None:
            continue
        known = part.filter(pl.col(line).is_not_null())
        full = pl.when(pl.col("n") == part["n"].max()).then(pl.col(line))
        _draw_bands(axes, part, column, divisor, look)
        dot = "." if len(known) == 1 else ""  # one point makes no line
        if dot or part["n"].n_unique() > 1:
            axes.plot(known[column], known[line], marker=dot, color=look.color, lw=1.0, ls=":")
        axes.plot(part[column], part.select(full).to_series(), color=look.color, lw=1.6, ls=look.dashes)
        bad = pl.col(f"bad_{column}") / divisor if f"bad_{column}" in part.columns else pl.col(column)
        _mark_bad(axes, part.filter(pl.col("n_bad") > 0).select(bad.clip(left)).to_series(), look)
        ends += [(arm, max(left, known[column][-1]), known[line][-1], look)] if len(known) else []
        if line == "mean":  # a smoothed line is for the eye, never for a number
            tips(axes, _curve_tips(arm, known.filter(pl.col(column) >= left), column))
    axes.set_xlim(left, max(largest / divisor, left * 1.01))
    axes.set_xlabel(title)
    label_ends(axes, ends)


def _draw_bands(axes: Axes, part: pl.DataFrame, column: str, divisor: float, look: Look) -> None:
    """Lowest to highest. Of cells: from end to end of each, so that no value leaves its cell; and the interval."""
    if f"first_{column}" not in part.columns:
        axes.fill_between(part[column], part["low"], part["high"], color=look.color, alpha=0.13, lw=0)
        return
    ends = pl.concat_list(pl.col(f"first_{column}", f"last_{column}").cast(pl.Float64) / divisor)
    edges = part.with_columns(x=ends).explode("x")
    # Raw bands of training are wide and lie upon each other; an edge keeps a spike of one step visible.
    axes.fill_between(edges["x"], edges["low"], edges["high"], color=look.color, alpha=0.07, lw=0.2)
    if part["mean_low"].count():
        axes.fill_between(part[column], part["mean_low"], part["mean_high"], color=look.color, alpha=0.12, lw=0)


def _mark_bad(axes: Axes, places: pl.Series, look: Look) -> None:
    if places.is_empty():
        return
    style: dict[str, Any] = {"ms": 7, "mew": 2, "transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(places, [0.985] * len(places), "x", color=look.color, **style)


def _curve_tips(arm: str, known: pl.DataFrame, axis: str) -> list[tuple[float, float, str]]:
    few = known.gather_every(max(1, len(known) // MOST_TIPS))
    return [
        (
            row[axis],
            row["mean"],
            f"{arm}, step {row['step']}: {row['mean']:.4f} ({row['low']:.4f} to {row['high']:.4f})",
        )
        for row in few.iter_rows(named=True)
    ]


def final_figure(runs: pl.DataFrame, looks: dict[str, Look]) -> Figure:
    """Final validation loss per arm, best on top: dots are seeds, the bar is mean and 95 % interval.

    A grey thread joins a seed through the arms: threads that run in parallel are what pairing by seed removes.
    """
    losses = {arm: final_losses(runs, arm) for arm in arms_of(runs)}
    means = {arm: stats.mean_interval(list(values.values())) for arm, values in losses.items()}
    order = sorted(losses, key=lambda arm: (not losses[arm], means[arm].estimate if losses[arm] else 0.0))
    with canvas(_height(len(order))) as (figure, axes):
        for seed in runs["seed"].unique().sort():
            rows = [(losses[arm][seed], row + 0.16) for row, arm in enumerate(order) if seed in losses[arm]]
            axes.plot([x for x, _ in rows], [y for _, y in rows], color=FAINT, lw=0.7, zorder=1)
        for row, arm in enumerate(order):
            mean = means[arm]
            low, high = (mean.low, mean.high) if mean.exists else (None, None)
            _interval(axes, row - 0.12, mean.estimate if mean.n else None, low, high, looks[arm], arm)
            values = list(losses[arm].values())
            dots: dict[str, Any] = {"color": looks[arm].color, "ms": 4, "mec": "white", "mew": 0.5, "zorder": 3}
            axes.plot(values, [row + 0.16] * len(values), "o", **dots)
        _arm_rows(axes, order, {arm: "no finished run" for arm in order if not losses[arm]})
        axes.set(title="Final validation loss", xlabel="nats per token")
        return figure


def forest_figure(rows: list[Row], smallest_effect: float | None, looks: dict[str, Look]) -> Figure:
    """Difference to the baseline per arm with its 95 % interval, from the rows of `table.summary`; grey: what the plan
    calls too small to matter."""
    base = next(row["arm"] for row in rows if row["baseline"])
    gaps = {row["arm"]: row for row in rows if not row["baseline"]}
    order = sorted(gaps, key=lambda arm: (gaps[arm]["difference"] is None, gaps[arm]["difference"] or 0.0))
    unit = next((row["difference_unit"] for row in gaps.values() if row["difference_unit"]), "nats per token")
    with canvas(_height(len(order))) as (figure, axes):
        if smallest_effect:
            axes.axvspan(-smallest_effect, smallest_effect, color="#ededed", lw=0)
        axes.axvline(0, color=INK, lw=1)
        for at, arm in enumerate(order):
            row = gaps[arm]
            low, high = row["difference_low"], row["difference_high"]
            _interval(axes, at, row["difference"], low, high, looks[arm], arm)
        _arm_rows(axes, order, {arm: "nothing to compare" for arm in order if gaps[arm]["difference"] is None})
        axes.set(title=f"Final validation loss minus {shown(base, 16)}", xlabel=f"{unit}, left is better")
        return figure


def pareto_figure(rows: list[Row], key: str, what: str, unit: str, looks: dict[str, Look]) -> Figure:
    """Final validation loss against a cost per arm; the line joins the arms that no other beats in both."""
    known = sorted((row for row in rows if row["val_loss"] is not None and row[key]), key=lambda row: row[key])
    largest = max(row[key] for row in known)
    divisor, prefix = scale(largest, PREFIXES, enough=1.0) if largest >= 1 else (1e-3, "m")
    with canvas() as (figure, axes):
        front = [row for i, row in enumerate(known) if all(row["val_loss"] < other["val_loss"] for other in known[:i])]
        steps = [(row[key] / divisor, row["val_loss"]) for row in front]
        axes.step(*zip(*steps, strict=True), where="post", color=FAINT, lw=1.2, zorder=1)
        for row in known:
            x, look = row[key] / divisor, looks[row["arm"]]
            if row["val_loss_low"] is not None:
                axes.plot([x, x], [row["val_loss_low"], row["val_loss_high"]], color=look.color, lw=1.2, alpha=0.6)
            (dot,) = axes.plot([x], [row["val_loss"]], "o", color=look.color, ms=7, mec="white", mew=0.8)
            tip(dot, f"{row['arm']}: {row['val_loss']:.4f} nats per token at {x:.4g} {prefix}{unit}")
        axes.margins(x=0.2, y=0.15)
        label_ends(axes, [(r["arm"], r[key] / divisor, r["val_loss"], looks[r["arm"]]) for r in known])
        axes.set(title=f"Loss against {what}", xlabel=f"{what} ({prefix}{unit})", ylabel="nats per token")
        return figure


def rates_figure(grids: list[Rates], looks: dict[str, Look], what: str = "learning rate") -> Figure:
    """Final validation loss against the learning rate, or `what` else was tuned, a line per kind of arm; ×: where runs
    diverged."""
    with canvas() as (figure, axes):
        for grid in grids:
            known = [point for point in grid.points if point.losses]
            means = [sum(point.losses) / len(point.losses) for point in known]
            look = looks[grid.arm]
            axes.plot(
                [p.lr for p in known], means, marker="o", color=look.color, ls=look.dashes, ms=5, mec="white", mew=0.6
            )
            for point, mean in zip(known, means, strict=True):
                axes.plot([point.lr] * len(point.losses), point.losses, ".", color=look.color, ms=4, alpha=0.5)
                tips(axes, [(point.lr, mean, f"{point.arm}: {mean:.4f} nats per token at {what} {point.lr:g}")])
            lost = [point.lr for point in grid.points if point.diverged]
            top = axes.get_xaxis_transform()
            axes.plot(lost, [0.985] * len(lost), "x", color=look.color, ms=7, mew=2, transform=top, clip_on=False)
        tried = sorted({point.lr for grid in grids for point in grid.points})
        scale = "log" if tried[0] > 0 else "linear"
        axes.set(xscale=scale, title=f"Loss against {what}", xlabel=what, ylabel="nats per token")
        axes.set_xticks(tried, [f"{lr:g}" for lr in tried])
        axes.set_xticks([], minor=True)
        everything = [loss for grid in grids for point in grid.points for loss in point.losses]
        axes.set_ylim(padded(min(everything), max(everything)))
        ends = [
            (g.name, p.lr, sum(p.losses) / len(p.losses), looks[g.arm])
            for g in grids
            for p in [point for point in g.points if point.losses][-1:]
        ]
        label_ends(axes, ends)
        return figure


def decode_figure(rows: pl.DataFrame, looks: dict[str, Look]) -> Figure:
    """Final validation loss against decode speed at the largest batch: up and left is worse, down and right better."""
    with canvas() as (figure, axes):
        for row in rows.iter_rows(named=True):
            look = looks[row["arm"]]
            axes.plot([row["tokens_per_s"]], [row["val_loss"]], "o", color=look.color, ms=4 + 6 * row["share"])
            at, beside = (row["tokens_per_s"], row["val_loss"]), (8, 3)  # points: clear of the dot, which may be large
            axes.annotate(shown(row["arm"], 20), at, beside, textcoords="offset points", color=look.color)
        axes.margins(x=0.25, y=0.2)
        axes.set(title="Loss against decode speed", xlabel="decoded tokens per second", ylabel="nats per token")
        return figure


def _height(rows: int) -> float:
    return max(2.0, min(HEIGHT, 1.1 + 0.42 * rows), 1.1 + 0.3 * rows)


def _interval(
    axes: Axes, at: float, estimate: float | None, low: float | None, high: float | None, look: Look, arm: str
) -> None:
    if estimate is None:
        return
    between = ""
    if low is not None and high is not None:
        axes.plot([low, high], [at, at], color=look.color, lw=2.2, solid_capstyle="butt", zorder=2)
        between = f" ({low:.4f} to {high:.4f})"
    (mark,) = axes.plot([estimate], [at], "D", color=look.color, ms=6, mec="white", mew=0.8, zorder=4)
    tip(mark, f"{arm}: {estimate:.4f}{between}")


def _arm_rows(axes: Axes, order: list[str], remarks: dict[str, str]) -> None:
    axes.set_yticks(range(len(order)), [shown(arm) for arm in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    box = {"fc": "white", "ec": "none", "pad": 2}
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "ha": "center"}
    for arm, remark in remarks.items():
        axes.text(0.5, order.index(arm), remark, color="#777777", bbox=box, **place)


def flops_figure(shares: pl.DataFrame) -> Figure:
    """Forward FLOPs per token by component: bar length is the amount, the percentage is the share of the arm."""
    arms = shares["arm"].unique(maintain_order=True).to_list()
    components = shares["component"].unique(maintain_order=True).to_list()
    components.sort(key=lambda name: list(COMPONENT_COLORS).index(name) if name in COMPONENT_COLORS else 99)
    totals = shares.group_by("arm").agg(pl.col("flops_per_token").sum())["flops_per_token"]
    divisor, unit = flops_unit(max(totals.to_list()))
    with canvas(_height(len(arms)) + 0.5) as (figure, axes):
        left = dict.fromkeys(arms, 0.0)
        for component in components:
            _component(axes, shares.filter(pl.col("component") == component), arms, left, divisor)
        _arm_rows(axes, arms, {})
        axes.set(title="Forward FLOPs per token", xlabel=f"{unit} per token")
        figure.legend(ncols=5, loc="outside lower center", frameon=False, fontsize=8, handlelength=1, handleheight=1)
        return figure


def _component(axes: Axes, rows: pl.DataFrame, arms: list[str], left: dict[str, float], divisor: float) -> None:
    name = rows["component"][0]
    color = COMPONENT_COLORS.get(name, "#7fbf7b")
    for n, (arm, flops, share) in enumerate(rows.select("arm", "flops_per_token", "share").iter_rows()):
        width, row = flops / divisor, arms.index(arm)
        label = shown(name) if n == 0 else None
        axes.barh(row, width, left=left[arm], height=0.7, color=color, ec="white", lw=0.6, label=label)
        if share >= 0.055:
            ink = "white" if color in ("#08306b", "#08519c", "#2f7ebc", "#b35806") else INK
            axes.text(left[arm] + width / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=7, color=ink)
        left[arm] += width
