"""The inside of the models over training: one picture per quantity, small panels per layer or parameter group."""

import math
from typing import TYPE_CHECKING

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.draw import STYLE, WIDTH, Look, shown
from analysis.frames import query
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ACROSS = 3  # panels in a row
MOST_NAMED = 24  # arms; a legend of more would leave no room for the panels
MOST_LAYERS = 6  # of a deep model as many layers are shown, evenly spread, the first and the last among them

POINTS_SQL = """
SELECT p.arm, p.seed, t.step, t.name, t.layer, t.value
FROM plan_runs p JOIN telemetry t USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id
"""

# Quantity: title, unit of its axis, whether it spans powers of ten.
QUANTITIES = {
    "update_ratio": ("Update-to-weight ratio", "‖change‖ / ‖weights‖", True),
    "activation_rms": ("Activation RMS after each block", "root mean square", False),
    "attention_max_logit": ("Largest attention logit", "score before softmax", False),
    "attention_entropy": ("Attention entropy", "nats", False),
    "log_normaliser": ("Output log-normaliser", "nats", False),
}


def means(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """Mean over seeds of every finite telemetry value: quantity, panel, arm, step, mean; sorted as it is drawn.

    `panel` is a group of parameters, a layer, or empty where the quantity is one number per model.
    """
    points = query(con, POINTS_SQL, plan).filter(pl.col("value").is_finite())
    name = pl.col("name").str.split("/")
    layer = pl.when(pl.col("layer") >= 0).then(pl.format("layer {}", "layer")).otherwise(pl.lit(""))
    panel = pl.coalesce(name.list.get(1, null_on_oob=True), layer)
    points = points.with_columns(quantity=name.list.get(0), panel=panel)
    keys = ["quantity", "layer", "panel", "arm", "step"]
    return points.group_by(keys).agg(pl.col("value").mean().alias("mean")).sort(keys).drop("layer")


def telemetry_figure(rows: pl.DataFrame, quantity: str, looks: dict[str, Look]) -> Figure:
    """Rows of one quantity as small panels with one scale; line: mean over seeds."""
    title, unit, wide = QUANTITIES[quantity]
    panels = few(rows["panel"].unique(maintain_order=True).to_list())
    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    with mpl.rc_context(STYLE | {"font.size": 8, "axes.titlesize": 8.5, "axes.titleweight": "normal"}):
        figure = Figure(figsize=(WIDTH, 1.1 + (1.5 if down > 1 else 1.9) * down), layout="constrained")
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten().tolist()
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, rows.filter(pl.col("panel") == panel), looks)
            axes.set(title=panel, yscale="log" if wide else "linear")
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[max(0, len(panels) - across) : len(panels)]:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("optimiser steps")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=STYLE["axes.titlesize"])
        figure.supylabel(unit, fontsize=8)
        handles, labels = grid[0].get_legend_handles_labels()
        if len(labels) <= MOST_NAMED:
            figure.legend(
                handles, labels, ncols=4, loc="outside lower center", frameon=False, fontsize=8, handlelength=1.5
            )
        return figure


def _draw_panel(axes: Axes, rows: pl.DataFrame, looks: dict[str, Look]) -> None:
    for arm, look in looks.items():
        part = rows.filter(pl.col("arm") == arm)
        dot = "." if len(part) == 1 else ""  # one point makes no line
        axes.plot(
            part["step"], part["mean"], color=look.color, ls=look.dashes, lw=1.3, marker=dot, label=shown(arm, 16)
        )


def few(panels: list[str], most: int = MOST_LAYERS) -> list[str]:
    """At most so many of the panels, evenly spread, the first and the last among them."""
    if len(panels) <= most:
        return panels
    return [panels[round(i * (len(panels) - 1) / (most - 1))] for i in range(most)]
