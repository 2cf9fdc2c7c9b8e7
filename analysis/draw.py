"""What all pictures share: one look per arm, names a font can draw, units, limits, labels at line ends."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import matplotlib as mpl
import polars as pl
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.units import PREFIXES, scale

WIDTH, HEIGHT = 5.2, 3.6  # inches; small, so that the text stays readable on a phone
INK, FAINT = "#2b2b2b", "#b8b8b8"
TIP = "tip:"
LOG = "log_step"  # the axis of steps, logarithmic
CUT = 0.2  # the share of training that may leave a picture, so that the differences at its end are visible
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "lab",  # the same record gives the same file
}


@dataclass(frozen=True)
class Look:
    """How one arm is drawn in every picture."""

    color: str
    dashes: tuple[float, tuple[float, ...]]


def looks_for(arms: list[str], baseline: str | None) -> dict[str, Look]:
    """A colour-blind safe colour for each arm, the baseline in ink; past seven arms the dashes tell colours apart."""
    palette = sns.color_palette("colorblind").as_hex()
    colors = [palette[i] for i in (0, 1, 2, 4, 3, 9, 5)]
    dashes: list[tuple[float, tuple[float, ...]]] = [(0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5))]
    others = [arm for arm in arms if arm != baseline]
    looks = {arm: Look(colors[i % 7], dashes[i // 7 % 4]) for i, arm in enumerate(others)}
    return looks | ({baseline: Look(INK, (0, ()))} if baseline in arms and baseline is not None else {})


@contextmanager
def canvas(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """An empty figure in the house style. No pyplot, so that no global state and no window system is involved."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.add_subplot()


@cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(STYLE["font.family"])).get_charmap())


def shown(name: str, longest: int = 24) -> str:
    """`name` for a picture: one line, cut, glyphs the font lacks replaced, no math mode."""
    line = "".join(c if ord(c) in _drawable() else "\ufffd" for c in " ".join(name.split()))
    line = line if len(line) <= longest else line[: longest - 1] + "…"
    return line.replace("$", r"\$")


def tip(artist: Artist, text: str) -> None:
    """What a pointer over this artist shows in the page; `pictures` turns it into the title of an SVG element."""
    artist.set_gid(TIP + " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split()))


def tips(axes: Axes, points: Iterable[tuple[float, float, str]]) -> None:
    """Spots that nobody sees and a pointer finds, at (x, y) in data units, each with what it shows."""
    for x, y, text in points:
        (spot,) = axes.plot([x], [y], "o", ms=9, color=INK, alpha=0.0, zorder=9)
        tip(spot, text)


def unit_of(axis: str, largest: float) -> tuple[float, str]:
    """(divisor, axis title) that make the ticks of one of `curves.AXES`, or of LOG, short numbers."""
    if axis == "tokens":
        divisor, unit = scale(largest, ("", "thousands", "millions", "billions", "trillions"))
        return divisor, f"training tokens ({unit})" if unit else "training tokens"
    if axis == "flops":
        divisor, unit = flops_unit(largest)
        return divisor, f"training compute ({unit})"
    if axis == "wall_s":
        hours, minutes = largest >= 3 * 3600, largest >= 3 * 60
        divisor, unit = (3600.0, "hours") if hours else (60.0, "minutes") if minutes else (1.0, "seconds")
        return divisor, f"training time ({unit})"
    return 1.0, "optimiser steps (logarithmic)" if axis == LOG else "optimiser steps"


def log_steps(axes: Axes, first: float, last: float) -> None:
    """Make the axis of steps logarithmic, its ticks plain numbers that do not collide."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if last < 100 * first else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def flops_unit(largest: float) -> tuple[float, str]:
    """(divisor, unit) for counts of floating point operations up to `largest`."""
    return scale(largest, [f"{prefix}FLOPs" for prefix in PREFIXES])


def loss_limits(curve: pl.DataFrame, column: str, cut: float = CUT) -> tuple[float, float] | None:
    """Limits that show where arms part: the fall during the first `cut` of training may leave through the top.

    The median arm sets the top, so that one that blows up does not flatten the others; but every arm that
    comes to the end of training ends inside. None without any finite value.
    """
    known = curve.filter(pl.col(column).is_not_null())
    late = known.filter(pl.col("step") >= cut * pl.col("step").max())
    if late.is_empty():
        return None
    tops = late.group_by("arm").agg(pl.col(column).max())[column].to_list()
    ends = late.filter(pl.col("step") == pl.col("step").max())[column].to_list()
    return padded(min(late[column].to_list()), max(median(tops), *ends))


def padded(low: float, high: float) -> tuple[float, float]:
    """Limits a little wider than the values, and never equal."""
    pad = 0.07 * (high - low) or 0.01
    return low - pad, high + pad


def label_ends(axes: Axes, ends: list[tuple[str, float, float, Look]]) -> None:
    """Write each name beside the end (x, y in data units) of its line, pushed apart where they would collide.

    An end above or below the picture counts as lying on its edge. Of more names than there is room for, as many are
    written, evenly spread from the lowest to the highest; a pointer shows the others.
    """
    low, high = axes.get_ylim()
    ends = sorted(((name, x, min(max(y, low), high), look) for name, x, y, look in ends), key=lambda end: end[2])
    inches = axes.get_window_extent().height / axes.figure.dpi
    line = 1.25 * mpl.rcParams["font.size"] / 72 / inches
    if len(ends) > (most := max(2, int(1 / line))):
        ends = [ends[round(i * (len(ends) - 1) / (most - 1))] for i in range(most)]
    heights = spread([(y - low) / (high - low) for _, _, y, _ in ends], line)
    lift = max(0.0, 0.02 - heights[0]) if heights else 0.0  # else names run into the axis title below
    to_axes = axes.transData - axes.transAxes
    for (name, x, y, look), height in zip(ends, heights, strict=True):
        place: Any = {"transform": axes.transAxes, "color": look.color}
        axes.text(1.04, height + lift, shown(name), va="center", **place)
        # In a blended frame, a plain line: matplotlib's arrows take a hundred times as long.
        across, _ = to_axes.transform((x, y))
        axes.plot([across, 1.03], [(y - low) / (high - low), height + lift], lw=0.6, alpha=0.6, clip_on=False, **place)


def spread(heights: list[float], gap: float) -> list[float]:
    """Sorted `heights` moved as little as keeps them `gap` apart: clusters that touch share their middle."""
    clusters: list[tuple[float, int]] = []  # (middle, members)
    for height in heights:
        middle, members = height, 1
        while clusters and middle - gap * (members - 1) / 2 < clusters[-1][0] + gap * (clusters[-1][1] + 1) / 2:
            before, n = clusters.pop()
            middle, members = (before * n + middle * members) / (n + members), n + members
        clusters.append((middle, members))
    return [middle + gap * (i - (n - 1) / 2) for middle, n in clusters for i in range(n)]
