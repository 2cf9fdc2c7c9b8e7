"""Pictures of a search: loss against each parameter, all parameters at once, and how much each matters."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.draw import INK, STYLE, WIDTH, canvas, shown
from analysis.huber import Floats
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COLORS = sns.color_palette("colorblind").as_hex()
MARKS = {"done": ("o", COLORS[0], 0.8), "pruned": ("v", COLORS[1], 0.6), "diverged": ("x", COLORS[3], 0.9)}
BINS = 4  # into which the trials are cut along a number to see what it explains
FEWEST = 8  # trials before importance means anything
_TRIALS = """
SELECT trial, params, outcome, value FROM trials
WHERE sweep = ? AND plan_id = ? AND value IS NOT NULL ORDER BY trial
"""


@dataclass(frozen=True)
class Trial:
    """One told trial; `value` in nats: the loss at the end, at the pruning, or before training if it diverged."""

    number: int
    params: Mapping[str, Any]
    outcome: str
    value: float


def told_trials(con: "DuckDBPyConnection", plan: Plan) -> list[Trial]:
    """In order; empty for a plan that is no search."""
    found = con.execute(_TRIALS, [plan.sweep, plan.plan_id]).fetchall()
    return [Trial(number, json.loads(params), str(outcome), value) for number, params, outcome, value in found]


def importance(trials: Sequence[Trial]) -> dict[str, float]:
    """Share of the variance of the losses' ranks that each parameter explains by itself, at least 0.

    Epsilon squared (Kelley 1935, doi:10.1073/pnas.21.9.554): the correlation ratio less what chance gives; numbers are
    cut into four bins of equally many trials. Pruned trials count with the loss they had.
    """
    ranks = np.argsort(np.argsort([trial.value for trial in trials])).astype(float)
    return {key: _explained(_groups([t.params[key] for t in trials]), ranks) for key in trials[0].params}


def _groups(values: Sequence[Any]) -> NDArray[np.intp]:
    if _is_number(values) and len(set(values)) > BINS:
        order = np.argsort(np.argsort(np.array(values, dtype=float), kind="stable"))
        return (order * BINS // len(values)).astype(np.intp)
    names = sorted({str(value) for value in values})
    return np.array([names.index(str(value)) for value in values], dtype=np.intp)


def _explained(groups: NDArray[np.intp], ranks: Floats) -> float:
    n, k = len(ranks), len(np.unique(groups))
    total = float(((ranks - ranks.mean()) ** 2).sum())
    within = sum(float(((ranks[groups == g] - ranks[groups == g].mean()) ** 2).sum()) for g in np.unique(groups))
    return max(0.0, 1 - within / (n - k) / (total / (n - 1))) if n > k and total else 0.0


def slice_figure(trials: Sequence[Trial], key: str) -> Figure:
    """Loss against one parameter."""
    values = [trial.params[key] for trial in trials]
    places = _places(values)
    with canvas() as (figure, axes):
        for outcome, (mark, color, alpha) in MARKS.items():
            mine = [i for i, trial in enumerate(trials) if trial.outcome == outcome]
            if mine:
                ys = [trials[i].value for i in mine]
                axes.plot([places[i] for i in mine], ys, mark, ms=4.5, color=color, alpha=alpha, label=outcome)
        if _is_number(values):
            axes.set_xscale("log" if _is_log(values) else "linear")
        else:
            names = sorted({str(value) for value in values})
            axes.set_xticks(range(len(names)), [shown(name) for name in names])
        axes.set(xlabel=shown(key), ylabel="loss (nats)", title=f"Trials against {shown(key)}")
        axes.legend(frameon=False, fontsize=8)
        return figure


def parallel_figure(trials: Sequence[Trial]) -> Figure:
    """One line per trial through its parameters and its loss; the better the darker."""
    keys = list(trials[0].params)
    columns = [_unit(_scaled([trial.params[key] for trial in trials])) for key in keys]
    losses = np.array([trial.value for trial in trials])
    order = np.argsort(np.argsort(losses)) / max(1, len(losses) - 1)
    columns.append(_unit(losses))
    colors = mpl.colormaps["viridis"]
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, 1.3 * len(columns)), 3.4), layout="constrained")
        axes = figure.add_subplot()
        for i in np.argsort(-losses):
            axes.plot(range(len(columns)), [c[i] for c in columns], color=colors(0.95 * order[i]), lw=0.9, alpha=0.7)
        axes.set_xticks(range(len(columns)), [shown(name) for name in (*keys, "loss")])
        axes.set_yticks([0, 1], ["low", "high"])
        axes.set_title("Parameters and loss of every trial")
        return figure


def importance_figure(shares: Mapping[str, float]) -> Figure:
    """A bar per parameter."""
    names = sorted(shares, key=lambda key: shares[key])
    with canvas(1.2 + 0.3 * len(names)) as (figure, axes):
        axes.barh(range(len(names)), [shares[name] for name in names], color=COLORS[0], height=0.6)
        axes.set_yticks(range(len(names)), [shown(name) for name in names])
        axes.axvline(0, color=INK, lw=0.8)
        axes.set(xlim=(0, 1), xlabel="share of the variance of ranks", title="What each parameter explains")
        return figure


def _is_number(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _is_log(values: Sequence[Any]) -> bool:
    return bool(min(values) > 0 and max(values) / min(values) >= 10)


def _places(values: Sequence[Any]) -> list[float]:
    """Where each value stands on an axis: numbers as they are, names in alphabetical order."""
    if _is_number(values):
        return [float(value) for value in values]
    names = sorted({str(value) for value in values})
    return [float(names.index(str(value))) for value in values]


def _scaled(values: Sequence[Any]) -> Floats:
    places = np.array(_places(values))
    return np.log(places) if _is_number(values) and _is_log(values) else places


def _unit(values: Floats) -> Floats:
    return np.asarray((values - values.min()) / max(float(np.ptp(values)), 1e-300))
