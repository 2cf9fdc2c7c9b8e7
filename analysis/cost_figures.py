"""The pictures of `lab flops --plots`: shares of components, and the roofline of prefill and decode."""

import re
from collections.abc import Mapping
from math import log
from typing import Any

import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.costs import AXES, PARTS, component_shares, roofline
from analysis.draw import FAINT, INK, STYLE, WIDTH, Look, looks_for, shown
from analysis.pictures import Picture
from analysis.units import si
from lmcore.config import ModelConfig
from lmcore.memory import Precision

PART_COLORS = {
    "attention matrices": "#08519c",
    "attention scores": "#a0cbe2",
    "FFN": "#e08214",
    "head": "#b0b0b0",
}
MARKERS = {"decode": "o", "prefill": "s"}
LABEL_GAP = 0.06  # of the axis between two numbers beside markers
SMALL: Any = {"ha": "center", "fontsize": 7, "color": INK}
SHARES = "Exact causal count. Dashed: the model as it is. Heads and d_ff follow d_model; the other sizes stay."
ROOFLINE = "Least memory traffic: each matrix once, keys and values once. Left of the ridge, memory is the limit."


def cost_pictures(
    models: Mapping[str, ModelConfig],
    context: int | None,
    flops_per_s: float,
    bytes_per_s: float,
    precision: Precision,
) -> list[Picture]:
    """Shares of components for each model, one roofline for all."""
    pictures = [
        Picture(f"shares_{_file_name(name)}", f"Forward FLOPs of {name}", SHARES, shares_figure(name, m, context))
        for name, m in models.items()
    ]
    points = roofline(models, context, flops_per_s, bytes_per_s, precision)
    figure = roofline_figure(points, flops_per_s, bytes_per_s, precision)
    return [*pictures, Picture("roofline", "Roofline of prefill and decode", ROOFLINE, figure)]


def _file_name(name: str) -> str:
    return "_".join(re.findall(r"[\w.-]+", name))


def shares_figure(name: str, model: ModelConfig, context: int | None) -> Figure:
    """Three panels: shares of the parts against d_model, context and vocabulary, the others as they are."""
    tokens = context or model.context
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 6.6), layout="constrained")
        for axes, axis in zip(figure.subplots(len(AXES)), AXES, strict=True):
            own = tokens if axis == "context" else getattr(model, axis)
            _shares_panel(axes, component_shares(model, axis, tokens), axis, own)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, ncols=4, loc="outside lower center", frameon=False, fontsize=8, handlelength=1)
        figure.suptitle(
            f"{shown(name)}: share of forward FLOPs", x=0.01, ha="left", weight="bold", size=STYLE["axes.titlesize"]
        )
        return figure


def _shares_panel(axes: Axes, shares: pl.DataFrame, axis: str, own: int) -> None:
    sizes = shares["size"].unique(maintain_order=True).to_list()
    layers = [shares.filter(pl.col("part") == part)["share"].to_list() for part in PARTS]
    axes.stackplot(sizes, layers, colors=[PART_COLORS[part] for part in PARTS], labels=list(PARTS), lw=0.4, ec="white")
    axes.axvline(own, color=INK, lw=1, ls=(0, (4, 2)))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=4))
    axes.set(xlim=(sizes[0], sizes[-1]), ylim=(0, 1), xlabel=f"{_axis_title(axis)}, here {own:,}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.grid(visible=False)


def _axis_title(axis: str) -> str:
    return {"context": "context (tokens)", "vocab": "vocabulary (token ids)"}.get(axis, axis)


def roofline_figure(points: pl.DataFrame, flops_per_s: float, bytes_per_s: float, precision: Precision) -> Figure:
    """Above: what the device allows at each arithmetic intensity. Below: where each model's prefill and decode lie."""
    models = points["model"].unique(maintain_order=True).to_list()
    looks, ridge = looks_for(models, models[0] if len(models) == 1 else None), flops_per_s / bytes_per_s
    low, high = min([ridge, *points["intensity"]]) / 2.5, max([ridge, *points["intensity"]]) * 2.5
    lanes = 0.5 + 0.5 * len(models)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.1 + lanes), layout="constrained")
        roof, below = figure.subplots(2, sharex=True, height_ratios=(2.6, lanes))
        roof.set(xscale="log", yscale="log", xlim=(low, high))
        roof.plot([low, ridge, high], [low * bytes_per_s, flops_per_s, flops_per_s], color=INK, lw=1.8)
        for name, look in looks.items():
            _on_the_roof(roof, points.filter(pl.col("model") == name), look)
        for axes in (roof, below):
            axes.axvline(ridge, color=FAINT, lw=1, ls=(0, (4, 2)), zorder=0)
        _roof_words(roof, flops_per_s, bytes_per_s, ridge, precision)
        for row, name in enumerate(models):
            _lane(below, points.filter(pl.col("model") == name), row, looks[name])
        _lane_axes(below, models)
        _marker_legend(figure)
        return figure


def _on_the_roof(axes: Axes, points: pl.DataFrame, look: Look) -> None:
    for phase, marker in MARKERS.items():
        part = points.filter(pl.col("phase") == phase)
        axes.plot(part["intensity"], part["flops_per_s"], marker, color=look.color, ms=5, mec="white", mew=0.7)


def _roof_words(axes: Axes, flops_per_s: float, bytes_per_s: float, ridge: float, precision: str) -> None:
    axes.set(title="Roofline of prefill and decode", ylabel="attainable FLOP/s")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value)))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    words: dict[str, Any] = {"fontsize": 8, "color": "#555555"}
    axes.text(0.99, 0.03, f"ridge: {ridge:,.3g} FLOPs per byte", ha="right", transform=axes.transAxes, **words)
    axes.text(0.99, 0.12, f"memory: {si(bytes_per_s, 'B/s')}", ha="right", transform=axes.transAxes, **words)
    axes.text(
        0.99, 0.21, f"peak in {precision}: {si(flops_per_s, 'FLOP/s')}", ha="right", transform=axes.transAxes, **words
    )
    axes.margins(y=0.12)


def _lane(axes: Axes, points: pl.DataFrame, row: int, look: Look) -> None:
    """Decode above, prefill below; a number says how many sequences, or tokens, where there is room for it."""
    low, high = axes.get_xlim()
    for phase, height in (("decode", row - 0.2), ("prefill", row + 0.25)):
        part, last = points.filter(pl.col("phase") == phase), 0.0
        axes.plot(part["intensity"], [height] * len(part), MARKERS[phase], color=look.color, ms=5, ls="-", lw=1)
        for amount, x in part.select("amount", "intensity").iter_rows():
            if log(x / low) / log(high / low) - last > LABEL_GAP:
                last = log(x / low) / log(high / low)
                axes.annotate(f"{amount:,}", (x, height), xytext=(0, 4), textcoords="offset points", **SMALL)


def _lane_axes(axes: Axes, models: list[str]) -> None:
    axes.set_yticks(range(len(models)), [shown(name, 16) for name in models])
    axes.set_ylim(len(models) - 0.4, -0.75)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("FLOPs per byte (matrices, keys and values moved once)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def _marker_legend(figure: Figure) -> None:
    words = {"decode": "decode, n sequences at once", "prefill": "prefill, n tokens of one sequence"}
    shapes = [Line2D([], [], color=INK, marker=MARKERS[phase], ms=5, lw=1, label=text) for phase, text in words.items()]
    figure.legend(handles=shapes, ncols=2, loc="outside lower center", frameon=False, fontsize=8)
