"""The same fit under every defensible choice: a specification curve (Simonsohn, Simmons & Nelson 2020).

A scaling exponent quoted to three digits often moves in the first with the Huber width, the rows that count as
outliers, or the way N and C are counted; this shows by how much, and which choice it is.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from analysis.allocate import allocate
from analysis.fit import Fit, FitError, Spec, fit
from analysis.infer import bootstrap, percentiles
from analysis.ladder import Columns, Ladder, Rules, ladder
from analysis.tables import TableError, column

DELTAS = (1e-3, 1e-4, 1e-2, float("inf"))
OUTLYING = 4.0  # robust standard deviations from which a residual is one
FEW_STARTS = 4
RESAMPLES = 40
MOST = 600
QUANTITIES = ("a", "alpha", "beta", "E", "n", "d_per_n", "loss")


@dataclass(frozen=True)
class Choices:
    """What may be varied beyond the Huber width, outliers and tied exponents: other columns for N, and whether the
    table has runs with several rows (final or all), tokens beside FLOPs (D or C/(6N)), several LRs per size."""

    n_columns: tuple[str, ...] = ()
    final: bool = False
    tokens_from_flops: bool = False
    best_lr: bool = False


@dataclass(frozen=True)
class Universe:
    """One combination: axis -> option, and what it gives. `values` is empty where the fit was not possible."""

    choices: dict[str, str]
    rows: int
    values: dict[str, float]
    ci: dict[str, tuple[float, float]]
    reason: str = ""


def axes_of(frame: pl.DataFrame, columns: Columns, base: Ladder, choices: Choices) -> dict[str, list[str]]:
    """The axes that this table has, each with its options, the reference first."""
    axes = {
        "delta": ["least squares" if np.isinf(d) else f"{d:g}" for d in DELTAS],
        "exponents": ["free", "tied"],
        "rows": ["all", "no outliers", "no smallest tenth", "no highest twentieth"],
    }
    if choices.n_columns:
        axes["N"] = [base.columns.get("n", "n"), *(column(frame, name, "--n-alt") for name in choices.n_columns)]
    if choices.tokens_from_flops and {"d", "flops"} <= base.columns.keys():
        axes["D"] = ["tokens", "C/(6N)"]
    if choices.final and "run" in base.rows.columns and base.rows["run"].n_unique() < len(base.rows):
        axes["checkpoints"] = ["all", "final"]
    if choices.best_lr and "lr" in base.rows.columns:
        axes["LR"] = ["all", "best per size"]
    return axes


def multiverse(
    frame: pl.DataFrame,
    columns: Columns,
    rules: Rules,
    choices: Choices,
    budget: float | None = None,
    resamples: int = RESAMPLES,
) -> tuple[dict[str, list[str]], list[Universe], float]:
    """(axes, every combination of their options, budget in FLOPs); the first universe is the reference.

    Raises FitError, TableError."""
    base = ladder(frame, columns, rules)
    axes = axes_of(frame, columns, base, choices)
    if (count := int(np.prod([len(options) for options in axes.values()]))) > MOST:
        raise TableError(f"{count} combinations are more than {MOST}: leave out some of --n-alt")
    if not {"n", "d", "c"} <= set(base.rows.columns):
        raise TableError("a multiverse needs N and D (or N and FLOPs): name the columns with --n, --d, --flops")
    used = base.columns
    columns = replace(columns, n=used.get("n"), d=used.get("d"), flops=used.get("flops"))
    target = budget or 10 * float(np.max(base.rows["c"].to_numpy()))
    found = []
    tables: dict[tuple[str, ...], Ladder | str] = {}
    for options in itertools.product(*axes.values()):
        chosen = dict(zip(axes, options, strict=True))
        key = tuple(v for axis, v in chosen.items() if axis not in ("delta", "exponents", "rows"))
        if key not in tables:
            tables[key] = _table(frame, columns, rules, chosen)
        found.append(_universe(chosen, tables[key], target, resamples))
    if not found[0].values:
        raise FitError(found[0].reason)
    return axes, found, target


def _table(frame: pl.DataFrame, columns: Columns, rules: Rules, chosen: Mapping[str, str]) -> Ladder | str:
    """The rows under the choices that concern them, or why there are none."""
    if "N" in chosen:
        columns = replace(columns, n=chosen["N"])
    if chosen.get("D") == "C/(6N)":
        columns = replace(columns, d=None)
    if chosen.get("checkpoints") == "final":
        rules = replace(rules, final=True)
    try:
        rows = ladder(frame, columns, rules)
    except TableError as error:
        return str(error)
    if chosen.get("LR") == "best per size":
        keys = [name for name in ("n", "d") if name in rows.rows.columns]
        best = rows.rows.select((pl.col("loss") == pl.col("loss").min().over(keys)).alias("best")).to_series()
        rows = rows.take(best)
    return rows


def _universe(chosen: dict[str, str], rows: Ladder | str, target: float, resamples: int) -> Universe:
    if isinstance(rows, str):
        return Universe(chosen, 0, {}, {}, rows)
    delta = float("inf") if chosen["delta"] == "least squares" else float(chosen["delta"])
    spec = Spec("nd", {}, chosen["exponents"] == "tied", delta)
    try:
        kept = _kept(rows, spec, chosen["rows"])
        found = fit(spec, kept.logs(), kept.loss, FEW_STARTS)
    except (FitError, KeyError) as error:
        return Universe(chosen, len(rows.loss), {}, {}, str(error))
    draws = bootstrap(found, kept.clusters, resamples).draws if resamples and max(kept.clusters) else {}
    intervals = {name: percentiles(v) for name, v in _quantities(draws, target, kept.rules).items()} if draws else {}
    values = {name: float(v) for name, v in _quantities(found.values, target, kept.rules).items()}
    return Universe(chosen, len(kept.loss), values, intervals)


def _quantities(values: Mapping[str, Any], target: float, rules: Rules) -> dict[str, Any]:
    best = allocate(values, target, rules.per_pair)
    own = {name: values[name] for name in QUANTITIES if name in values}
    return own | {"n": best.n, "d_per_n": best.ratio, "loss": best.loss}


def _kept(rows: Ladder, spec: Spec, choice: str) -> Ladder:
    if choice == "all":
        return rows
    return rows.take(ROWS[choice](rows, spec))


def _without_outliers(rows: Ladder, spec: Spec) -> list[bool]:
    found: Fit = fit(spec, rows.logs(), rows.loss, FEW_STARTS)
    spread = float(np.median(np.abs(found.residuals))) / 0.6745
    return [bool(size <= max(OUTLYING * spread, 1e-9)) for size in np.abs(found.residuals)]


def _above(rows: Ladder, spec: Spec) -> list[bool]:
    compute = rows.rows["n"] * rows.rows["d"]
    return (compute > (compute.quantile(0.1) or 0.0)).to_list()


def _below(rows: Ladder, spec: Spec) -> list[bool]:
    return (rows.rows["loss"].rank("ordinal", descending=True) > max(len(rows.loss) // 20, 1)).to_list()


ROWS: Mapping[str, Callable[[Ladder, Spec], list[bool]]] = {
    "no outliers": _without_outliers,
    "no smallest tenth": _above,
    "no highest twentieth": _below,
}


def summary(axes: Mapping[str, Sequence[str]], found: Sequence[Universe], name: str) -> dict[str, Any]:
    """How far `name` moves: reference, extremes, share of universes inside the reference's interval, and for each axis
    the median under each of its options."""
    known = [universe for universe in found if name in universe.values]
    values = np.array([universe.values[name] for universe in known])
    reference, ends = found[0].values[name], found[0].ci.get(name)
    inside = float(np.mean((values >= ends[0]) & (values <= ends[1]))) if ends else None
    medians = {
        axis: {option: _median([u.values[name] for u in known if u.choices[axis] == option]) for option in options}
        for axis, options in axes.items()
    }
    return {
        "reference": reference,
        "reference_ci": ends,
        "lowest": float(values.min()),
        "median": float(np.median(values)),
        "highest": float(values.max()),
        "inside_reference_ci": inside,
        "by_choice": medians,
    }


def multiverse_record(axes: Mapping[str, Sequence[str]], found: Sequence[Universe], target: float) -> dict[str, Any]:
    """For --json: the spread of each quantity, and every specification."""
    names = [name for name in QUANTITIES if name in found[0].values]
    return {
        "budget": target,
        "axes": dict(axes),
        "quantities": {name: summary(axes, found, name) for name in names},
        "specifications": [
            {"choices": u.choices, "rows": u.rows, **u.values, "ci": u.ci, "reason": u.reason or None} for u in found
        ],
    }


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None
