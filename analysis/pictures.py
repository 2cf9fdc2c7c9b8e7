"""Which pictures a report shows, with the words that go under them."""

import io
import re
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure

from analysis import curves, positions, search_figures
from analysis.draw import LOG, STYLE, TIP, Look, shown
from analysis.figures import (
    decode_figure,
    difference_figure,
    final_figure,
    flops_figure,
    forest_figure,
    loss_figure,
    pareto_figure,
    rates_figure,
    runs_figure,
)
from analysis.flops import flops_shares
from analysis.frames import decode_costs, runs_frame
from analysis.rates import rate_grids, tuned_rates
from analysis.select import Plan
from analysis.telemetry import QUANTITIES, means, telemetry_figure
from analysis.tuning_runs import tuning_runs
from results.files import write_bytes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DPI = 150
BAND = "Line: mean over seeds; band: lowest to highest seed; dotted: fewer seeds than before; ×: a loss not finite."
FINAL = "Bar: mean and 95 % interval; dots: seeds, each joined through the arms by a grey thread."
PARETO = {
    "train_flops": ("training compute", "FLOPs"),
    "step_s": ("time of a training step", "s"),
    "kv_bytes_per_token": ("KV cache of a token", "B"),
}
SAME_COST = 0.005  # relative; arms matched in a cost make no picture against it
PARETO_CAPTION = "Down and left is better; bar: 95 % interval. Grey line: the arms that no other beats in both."
SMOOTHED = "Training loss, smoothed"
SMOOTHING = (
    f"Line: running mean over {curves.WINDOW:.0%} of the axis, smoothed for the eye; darker band: 95 % interval of the "
    "mean over seeds, not smoothed; light band: lowest and highest loss of any seed at any step; ×: a loss not finite."
)
RAW = "A line per run, not smoothed: of every bin of steps the lowest and the highest loss; ×: a loss not finite."
POSITION = "After the last step. Line: mean over seeds; band: lowest to highest seed. A point: half an octave."
LENGTHS = "By `lab lengths`, without more training; dashed: RoPE stretched; vertical: the last trained position."
CUT_NOTE = "The early fall is cut off."


@dataclass(frozen=True)
class Picture:
    """`name` is the stem of its files; `part` is where it stands: results, compute, telemetry, or one of
    `curves.AXES`."""

    name: str
    title: str
    caption: str
    figure: Figure
    part: str = "results"

    @cached_property
    def png(self) -> bytes:
        """The picture as PNG, 780 pixels wide."""
        return self._rendered("png")

    @cached_property
    def svg(self) -> str:
        """The picture as SVG that may stand in a page: a pointer shows values, and no id is that of another picture."""
        text = self._rendered("svg").decode("utf-8")
        # A hundredth of a point is less than a pixel; six digits make a page of many arms twice as large.
        text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(?<=\.\d\d)\d+", "", path[0]), text)
        text = re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", text)
        return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", text)

    @property
    def inline(self) -> str:
        """For a page."""
        return inline(self.svg, self.title)

    def save(self, folder: Path) -> list[Path]:
        """Write `name`.png and `name`.svg."""
        folder.mkdir(parents=True, exist_ok=True)
        png, svg = folder / f"{self.name}.png", folder / f"{self.name}.svg"
        write_bytes(png, self.png, durable=False)
        write_bytes(svg, self.svg.encode(), durable=False)
        return [png, svg]

    def _rendered(self, kind: str) -> bytes:
        buffer = io.BytesIO()
        with mpl.rc_context(STYLE):
            if engine := self.figure.get_layout_engine():  # laid out once; both formats keep the places
                engine.execute(self.figure)
                self.figure.set_layout_engine(None)
            # Without the date, the same record gives the same bytes.
            self.figure.savefig(buffer, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
        return buffer.getvalue()


def inline(svg: str, title: str) -> str:
    """`svg` without its XML head and its size, which the page decides."""
    start = svg.index("<svg")
    head, rest = svg[start:].split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + f' role="img" aria-label="{escape(title)}">{rest}'


def pictures_for(
    con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look], rows: list[dict[str, Any]]
) -> list[Picture]:
    """Every picture that the record has something for: results, curves over each axis, compute, telemetry.

    `rows` are those of `table.summary`.
    """
    runs, shares = runs_frame(con, plan), flops_shares(con, plan)
    pictures = []
    if (runs["outcome"] == "done").any():
        pictures.append(Picture("final", "Final validation loss", FINAL, final_figure(runs, looks)))
        if plan.baseline in looks and len(looks) > 1:
            pictures.append(_forest(rows, plan, looks))
        pictures += [*_paretos(rows, looks), *_rates(runs, looks)]
    pictures += [*_search(con, plan), *_tuning(con, plan, looks)]
    if len(cost := decode_costs(con, plan)):
        caption = (
            f"Batch {cost['batch'][0]}, measured with the first seed's model. A dot's size: bytes of its KV cache."
        )
        pictures.append(Picture("decode", "Loss against decode speed", caption, decode_figure(cost, looks)))
    pictures += [*_positions(con, plan, looks), *_curves(con, plan, looks)]
    if len(shares):
        caption = "Exact causal count; percent: share of the arm. Equal lengths: arms matched in compute."
        pictures.append(Picture("flops", "Forward FLOPs by component", caption, flops_figure(shares), "compute"))
    return pictures + _telemetry(con, plan, looks)


def _search(con: "DuckDBPyConnection", plan: Plan) -> list[Picture]:
    """Trials by parameter, where the plan is a search."""
    trials = search_figures.told_trials(con, plan)
    if not trials:
        return []
    caption = "One mark per trial; of pruned ones the last loss, of diverged ones that before training."
    pictures = [
        Picture(f"slice_{i}", f"Trials against {key}", caption, search_figures.slice_figure(trials, key))
        for i, key in enumerate(trials[0].params)
    ]
    figure = search_figures.parallel_figure(trials)
    caption = "One line per trial, the darker the better. Numbers over a factor of 10 or more in the logarithm."
    pictures.append(Picture("parallel", "Parallel coordinates", caption, figure))
    if len(trials) >= search_figures.FEWEST:
        figure = search_figures.importance_figure(search_figures.importance(trials))
        caption = "Share of the variance of the losses' ranks that a parameter explains by itself (epsilon squared)."
        pictures.append(Picture("importance", "Importance of parameters", caption, figure))
    return pictures


def _tuning(con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look]) -> list[Picture]:
    """What the arms were tried at before the verdict, a picture per range."""
    found = tuning_runs(con, plan)
    if found is None:
        return []
    caption = "The tuning runs, which count in no other picture or number. Dots: seeds; ×: runs diverged."
    pictures = []
    for key in (key for key, ordered in found.keys.items() if ordered):
        grids = [tuned_rates(found, arm, key) for arm in found.arms if arm in looks]
        if any(point.losses for grid in grids for point in grid.points):
            figure = rates_figure(grids, looks, key)
            name = f"tuning_{key.replace('.', '_')}"
            pictures.append(Picture(name, f"Tuning: loss against {key}", caption, figure))
    return pictures


def _forest(rows: list[dict[str, Any]], plan: Plan, looks: dict[str, Look]) -> Picture:
    caption = "Difference and 95 % interval, each for itself; the verdict also holds for all arms at once."
    if plan.smallest_effect:
        caption += f" Grey: less than {plan.smallest_effect:g} nats, which the plan calls too small to matter."
    figure = forest_figure(rows, plan.smallest_effect, looks)
    return Picture("difference", f"Final validation loss minus {plan.baseline}", caption, figure)


def _paretos(rows: list[dict[str, Any]], looks: dict[str, Look]) -> list[Picture]:
    """Loss against each cost in which the arms differ."""
    pictures = []
    for key, (what, unit) in PARETO.items():
        costs = [row[key] for row in rows if row[key] and row["val_loss"] is not None]
        if len(costs) > 1 and max(costs) > (1 + SAME_COST) * min(costs):
            figure = pareto_figure(rows, key, what, unit, looks)
            pictures.append(Picture(f"pareto_{key}", f"Loss against {what}", PARETO_CAPTION, figure))
    return pictures


def _rates(runs: pl.DataFrame, looks: dict[str, Look]) -> list[Picture]:
    grids = rate_grids(runs)
    if not any(point.losses for grid in grids for point in grid.points):
        return []
    caption = "Arms that differ in nothing but the learning rate. Dots: seeds; ×: a rate at which runs diverged."
    return [Picture("learning_rate", "Loss against learning rate", caption, rates_figure(grids, looks))]


def _positions(con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look]) -> list[Picture]:
    """The last losses by how much context a token has, and what each arm gains there."""
    losses = positions.final_losses(con, plan)
    if losses["start"].n_unique() < 2:
        return []
    title = "Validation loss by position"
    figure = positions.position_figure(positions.over_seeds(losses), title, looks)
    pictures = [Picture("position", title, POSITION, figure)]
    gap = positions.minus_baseline(losses, plan.baseline) if plan.baseline else losses.clear()
    if len(gap):
        title = f"By position, minus {shown(str(plan.baseline), 16)}"
        figure = positions.position_figure(positions.over_seeds(gap), title, looks, zero=True)
        others = set(losses["arm"]) - {*gap["arm"], plan.baseline}
        left = f" Evaluated on other sequences, and left out: {', '.join(sorted(others))}." if others else ""
        pictures.append(Picture("position_difference", title, f"Paired by seed. {POSITION}{left}", figure))
    return [*pictures, *_longer(con, plan, looks)]


def _longer(con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look]) -> list[Picture]:
    """What `lab lengths` has measured beyond the training length."""
    losses = positions.longer_losses(con, plan)
    if losses.is_empty():
        return []
    title = "Loss beyond the training length"
    left = f" Not measured: {', '.join(others)}." if (others := sorted(looks.keys() - set(losses["arm"]))) else ""
    figure = positions.longer_figure(losses, title, looks)
    return [Picture("lengths", title, f"{LENGTHS} {POSITION}{left}", figure)]


def _curves(con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look]) -> list[Picture]:
    val_points = curves.val_points(con, plan)
    val = curves.over_seeds(val_points)
    train = curves.smooth(curves.train_curve(con, plan))
    gap = curves.over_seeds(curves.minus_baseline(val_points, plan.baseline)) if plan.baseline else pl.DataFrame()
    pictures = []
    for axis in curves.AXES:
        if len(val):
            figure = loss_figure(curves.thin(val), axis, "Validation loss", looks)
            pictures.append(Picture(f"val_loss_{axis}", "Validation loss", f"{BAND} {CUT_NOTE}", figure, axis))
        if len(gap) and plan.baseline:
            title = f"Validation loss minus {plan.baseline}"
            figure = difference_figure(gap, axis, plan.baseline, looks)
            pictures.append(Picture(f"val_difference_{axis}", title, f"Paired by seed. {BAND}", figure, axis))
        if len(train):
            figure = loss_figure(train, axis, SMOOTHED, looks)
            pictures.append(Picture(f"train_loss_{axis}", "Training loss", f"{SMOOTHING} {CUT_NOTE}", figure, axis))
    return pictures + (_log_curves(con, plan, val, looks) if len(train) else [])


def _log_curves(con: "DuckDBPyConnection", plan: Plan, val: pl.DataFrame, looks: dict[str, Look]) -> list[Picture]:
    """Over steps on a logarithmic axis: the loss of all arms, and every run of the baseline, or of the first arm."""
    train = curves.smooth(curves.train_curve(con, plan, log=True))
    pictures = [Picture(f"train_loss_{LOG}", "Training loss", SMOOTHING, loss_figure(train, LOG, SMOOTHED, looks), LOG)]
    if len(val := curves.thin(val, log=True)):
        figure = loss_figure(val, LOG, "Validation loss", looks)
        pictures.insert(0, Picture(f"val_loss_{LOG}", "Validation loss", BAND, figure, LOG))
    arm = plan.baseline if plan.baseline in looks and plan.baseline is not None else next(iter(looks))
    points = curves.run_extremes(con, plan, arm, log=True)
    figure = runs_figure(points, arm, log=True, look=looks[arm])
    return [*pictures, Picture("train_runs", f"Training loss of every run of {arm}", RAW, figure, LOG)]


def _telemetry(con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look]) -> list[Picture]:
    rows = means(con, plan)
    pictures = []
    for quantity, (title, _, _) in QUANTITIES.items():
        part = rows.filter(pl.col("quantity") == quantity)
        if len(part):
            figure = telemetry_figure(part, quantity, looks)
            pictures.append(Picture(quantity, title, f"{title}, mean over seeds.", figure, "telemetry"))
    return pictures
