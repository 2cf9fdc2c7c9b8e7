"""Loss by position: what an arm makes of the context before a token, at the last evaluation of every finished run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.draw import INK, Look, canvas, label_ends, padded, shown, tips
from analysis.frames import query
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FINAL_SQL = """
SELECT p.arm, p.seed, l.start, l.stop, l.loss,
    concat_ws(' ', r.data_fingerprint, r.tokenizer, r.config->'model'->>'context', r.config->'train'->>'eval_sequences')
        AS sequences
FROM plan_runs p JOIN runs r USING (run_id) JOIN positions l USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND r.state = 'DONE' AND l.split = 'val'
    AND l.step = r.steps AND isfinite(l.loss)
"""
# The longest sequences that `lab lengths` measured, for the runs that were measured at these.
LONGER_SQL = """
WITH mine AS (
    SELECT p.arm, p.seed, l.*, (r.config->'model'->>'context')::BIGINT AS trained
    FROM plan_runs p JOIN runs r USING (run_id) JOIN lengths l USING (run_id)
    WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND r.state = 'DONE' AND isfinite(l.loss)
)
SELECT arm, seed, scaling, start, stop, loss, trained, context FROM mine
WHERE context = (SELECT max(context) FROM mine) ORDER BY ALL
"""
PLACE = ["arm", "start", "stop"]
DASHES: dict[str, tuple[float, tuple[float, ...]]] = {
    "none": (0, ()),
    "linear": (0, (5, 2)),
    "ntk": (0, (1, 1.5)),
    "yarn": (0, (5, 1.5, 1, 1.5)),
}


def final_losses(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """arm, seed, start, stop, loss: mean over positions start to stop - 1, in nats, of runs that are done; and what
    decides which sequences these are."""
    return query(con, FINAL_SQL, plan)


def longer_losses(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """arm, seed, scaling, start, stop, loss, trained, context: the same in sequences longer than those of training."""
    return query(con, LONGER_SQL, plan)


def longer_figure(losses: pl.DataFrame, title: str, looks: dict[str, Look]) -> Figure:
    """Of `longer_losses`: a line per arm and scaling, told by dashes; vertical lines: ends of training lengths."""
    name = pl.when(pl.col("scaling") == "none").then("arm").otherwise(pl.concat_str("arm", "scaling", separator=", "))
    named = losses.with_columns(name.alias("arm"), of="arm")
    kinds = named.select("arm", "of", "scaling").unique(maintain_order=True).iter_rows()
    lines = {label: Look(looks[arm].color, DASHES[scaling]) for label, arm, scaling in kinds}
    return position_figure(over_seeds(named), title, lines, ended=losses["trained"].unique().to_list())


def minus_baseline(losses: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """The same with the loss of the baseline at that seed and position taken off; seeds without it are left out, and
    so are arms that were evaluated on other sequences: there a position is another place of the text."""
    base = losses.filter(arm=baseline).select("sequences", "seed", "start", "stop", base="loss")
    arms = losses.filter(pl.col("arm") != baseline).join(base, on=["sequences", "seed", "start", "stop"])
    return arms.with_columns(loss=pl.col("loss") - pl.col("base")).drop("base")


def over_seeds(losses: pl.DataFrame) -> pl.DataFrame:
    """arm, start, stop, and over seeds mean, low, high, n; in order of position."""
    loss = pl.col("loss")
    found = losses.group_by(PLACE).agg(mean=loss.mean(), low=loss.min(), high=loss.max(), n=loss.len())
    return found.sort("start")


def position_figure(
    curve: pl.DataFrame, title: str, looks: dict[str, Look], zero: bool = False, ended: Sequence[int] = ()
) -> Figure:
    """Of `over_seeds`: line = mean, band = lowest to highest seed, against tokens of context, logarithmic.

    `ended`: tokens at which training ended, as vertical lines.
    """
    with canvas() as (figure, axes):
        axes.set_ylim(padded(min([*curve["low"], *([0.0] * zero)]), max([*curve["high"], *([0.0] * zero)])))
        if zero:
            axes.axhline(0, color=INK, lw=1)
        for tokens in ended:
            axes.axvline(tokens, color=INK, lw=1, ls=(0, (2, 2)))
        ends = []
        for arm, look in looks.items():
            part = curve.filter(arm=arm).with_columns(x=(pl.col("start") + pl.col("stop") + 1) / 2)
            if part.is_empty():
                continue
            axes.fill_between(part["x"], part["low"], part["high"], color=look.color, alpha=0.15, lw=0)
            axes.plot(part["x"], part["mean"], color=look.color, lw=1.6, ls=look.dashes)
            ends.append((arm, part["x"][-1], part["mean"][-1], look))
            tips(axes, [(row["x"], row["mean"], _said(arm, row)) for row in part.iter_rows(named=True)])
        _log_tokens(axes)
        axes.set(title=title, xlabel="tokens of context (logarithmic)", ylabel="nats per token")
        label_ends(axes, ends)
        return figure


def _said(arm: str, row: dict[str, float]) -> str:
    first, last = int(row["start"]) + 1, int(row["stop"])
    tokens = f"{first} to {last} tokens" if last > first else f"{first} token{'s' if first > 1 else ''}"
    return f"{shown(arm)}, {tokens} of context: {row['mean']:.4f} ({row['low']:.4f} to {row['high']:.4f})"


def _log_tokens(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
