"""Everything `lab lr` says: per configuration the best learning rate and the sensitivity, and the law between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from analysis.huber import Floats
from analysis.ladder import Columns, Rules, parts_of
from analysis.lint import Finding
from analysis.lr import LrError, LrOptimum, Sensitivity, optimum, sensitivity
from analysis.lr_law import Law, law
from analysis.tables import TableError, column, numbers, where

FEATURES = ("width", "n", "d")
UNEVEN = 0.25  # relative spread of the steps in log LR above which the mean over rates is no integral
MOST = 200
FEWEST_RATES = 3
FOLLOWS = 0.98  # correlation of the logs above which two features cannot be told apart


@dataclass(frozen=True)
class Curve:
    """Loss against learning rate of one configuration. `rows` has lr and loss (NaN: diverged), as they came."""

    name: dict[str, str]
    features: dict[str, float]
    rows: pl.DataFrame
    initial_loss: float | None
    best: LrOptimum | None
    sensitivity: Sensitivity | None

    @property
    def stable(self) -> pl.DataFrame:
        """The rows with a finite loss below the initial one."""
        limit = math.inf if self.initial_loss is None else self.initial_loss
        return self.rows.filter(pl.col("loss").is_finite() & (pl.col("loss") < limit))

    @property
    def diverged(self) -> int:
        """How many rows are not."""
        return len(self.rows) - len(self.stable)

    def record(self) -> dict[str, Any]:
        """For --json."""
        found: dict[str, Any] = {"group": self.name, **self.features, "rows": len(self.rows), "diverged": self.diverged}
        found |= asdict(self.best) if self.best else dict.fromkeys(LrOptimum.__dataclass_fields__)
        return found | {
            "initial_loss": self.initial_loss,
            "sensitivity": self.sensitivity.value if self.sensitivity else None,
            "sensitivity_integral": self.sensitivity.integral if self.sensitivity else None,
        }


@dataclass(frozen=True)
class Beside:
    """A tested rate next to the law's: its runs, how many of them diverged, the mean loss of the others."""

    lr: float
    loss: float | None
    runs: int
    diverged: int


@dataclass(frozen=True)
class Check:
    """What runs at a size that the law has not seen say of its rate.

    Their own optimum as in `LrOptimum` (None where there is none), the lowest mean loss of a tested rate without a
    divergence (None without any), the tested rates beside the law's, and `at_most`: the loss there straight in log LR
    between these two, which in a valley is too high. None where one of the two is missing or has a divergence.
    """

    lr: float | None
    low: float | None
    high: float | None
    interior: bool
    best_tested: float | None
    lowest: float | None
    beside: tuple[Beside, ...]
    at_most: float | None


@dataclass(frozen=True)
class LrAnswer:
    """Curves of all configurations, the law if sizes vary, findings."""

    curves: list[Curve]
    law: Law | None
    findings: list[Finding]
    asked: Mapping[str, float] | None = None
    """Sizes for which the law is to say a learning rate."""
    check: Check | None = None
    """What runs of that size say, which the law has not seen."""

    @property
    def predicted(self) -> dict[str, Any] | None:
        """What the law says at `asked`: lr, and the interval of its line there. None without a law or a question."""
        if not (self.asked and self.law):
            return None
        low, high = self.law.interval_at(self.asked) or (None, None)
        found = {"at": dict(self.asked), "lr": self.law.at(self.asked), "low": low, "high": high}
        return found | ({"check": asdict(self.check)} if self.check else {})

    def record(self) -> dict[str, Any]:
        """For --json: with one configuration its optimum is at the top as well."""
        one = self.curves[0].record() if len(self.curves) == 1 else {}
        return one | {
            "configurations": [curve.record() for curve in self.curves],
            "law": {k: v for k, v in asdict(self.law).items() if k != "covariance"} if self.law else None,
            "predicted": self.predicted,
            "lint": [asdict(found) for found in self.findings],
        }


def answer_lr(
    frame: pl.DataFrame,
    columns: Columns,
    rules: Rules,
    by: Sequence[str] = (),
    initial: str | None = None,
    at: Mapping[str, float] | None = None,
) -> LrAnswer:
    """Group the rows by `by` and by width, N, D where named; `initial` is a loss in nats or a column of them; `at` are
    sizes for which the law is to say a learning rate. Raises TableError, too where the law cannot say it."""
    frame = where(frame, rules.where) if rules.where else frame
    parts, _, findings = parts_of(frame, columns, guess=("lr", "loss"))
    if "lr" not in parts:
        raise TableError(f"which column is the learning rate? Say --lr COLUMN; there are {', '.join(frame.columns)}")
    groups = [column(frame, name, "--group") for name in by]
    rows = pl.DataFrame({name: parts[name].alias(name) for name in ("lr", "loss", *FEATURES) if name in parts})
    rows = rows.with_columns(frame[name].cast(pl.String).alias(f"by {name}") for name in groups)
    rows = rows.with_columns(_initial(frame, initial))
    good = (rows["lr"].is_finite() & (rows["lr"] > 0) & rows["loss"].is_not_null()).fill_null(False)
    if not good.any():
        raise TableError("no row has a positive learning rate and a loss")
    if not good.all():
        reason = f"{int((~good).sum())} rows without a positive learning rate or without a loss are left out."
        findings.append(
            Finding("rows_left_out", "note", reason, "A run that diverged should say so: NaN, or 'diverged'.")
        )
    keys = [name for name in rows.columns if name in FEATURES or name.startswith("by ")]
    curves = [_curve(dict(zip(keys, key, strict=True)), mine) for key, mine in _groups(rows.filter(good), keys)]
    found = _law(curves, findings)
    if at:
        findings += _far(at, _asked_law(at, found, [name for name in FEATURES if name in parts]), curves)
    return LrAnswer(curves, found, [*findings, *_findings(curves)], at)


def checked(answer: LrAnswer, other: LrAnswer) -> LrAnswer:
    """`answer`, whose law was asked about a size, with what the runs of that size in `other` say. Raises TableError
    where the law has seen that size, or where `other` has no such runs."""
    if not (answer.law and answer.asked):
        raise TableError("--check: say --at as well, the size of those runs")
    sizes = ", ".join(f"{name} {value:g}" for name, value in answer.asked.items())
    if _of_size(answer, answer.asked):
        raise TableError(f"--check: the law has seen {sizes}; leave those runs out with --where")
    found = _of_size(other, answer.asked)
    if len(found) != 1:
        count = f"{len(found)} configurations" if found else "no configuration"
        raise TableError(f"--check: {count} there with {sizes}; it takes one (--check-where chooses)")
    return replace(answer, check=_check(found[0], answer.law.at(answer.asked)))


def _of_size(answer: LrAnswer, at: Mapping[str, float]) -> list[Curve]:
    return [c for c in answer.curves if all(np.isclose(c.features.get(k, np.nan), v) for k, v in at.items())]


def _check(there: Curve, predicted: float) -> Check:
    rates = [_beside(lr, there) for lr in sorted(there.rows["lr"].unique())]
    known = [rate for rate in rates if rate.loss is not None and not rate.diverged]
    lowest = min(known, key=lambda rate: float(rate.loss or 0.0), default=None)
    below, above = [r for r in rates if r.lr <= predicted][-1:], [r for r in rates if r.lr > predicted][:1]
    beside = tuple(below + above)
    at_most = None
    if len(beside) == 2 and all(rate in known for rate in beside):
        x, y = np.log([rate.lr for rate in beside]), [float(rate.loss or 0.0) for rate in beside]
        at_most = float(np.interp(np.log(predicted), x, y))
    best_tested, lowest_loss = (lowest.lr, lowest.loss) if lowest else (None, None)
    if there.best is None:
        return Check(None, None, None, False, best_tested, lowest_loss, beside, at_most)
    best = there.best
    return Check(best.lr, best.low, best.high, best.interior, best_tested, lowest_loss, beside, at_most)


def _beside(lr: float, there: Curve) -> Beside:
    stable = there.stable.filter(lr=lr)["loss"].to_list()
    runs = len(there.rows.filter(lr=lr))
    return Beside(lr, sum(stable) / len(stable) if stable else None, runs, runs - len(stable))


def _asked_law(at: Mapping[str, float], law: Law | None, named: Sequence[str]) -> Law:
    """The law, if it can say a rate for `at`. Raises TableError."""
    if unnamed := [name for name in at if name not in named]:
        raise TableError(f"--at {unnamed[0]}: say --{unnamed[0]} COLUMN as well, so that its sizes are told apart")
    if law is None:
        raise TableError("--at: there is no law to ask; it takes optima inside their grids at two sizes or more")
    if missing := law.exponents.keys() - at.keys():
        raise TableError(f"--at: the law is in {', '.join(law.exponents)}; say {', '.join(sorted(missing))}, too")
    return law


def _far(at: Mapping[str, float], law: Law, curves: list[Curve]) -> list[Finding]:
    """Sizes outside of those that the law was fitted to."""
    found = []
    for name in law.exponents:
        seen = [curve.features[name] for curve in curves if curve.best and curve.best.interior]
        times = max(at[name] / max(seen), min(seen) / at[name])
        if times > 1 + 1e-9:
            above = at[name] > max(seen)
            part = f"{times:.3g} times the largest" if above else f"1/{times:.3g} of the smallest"
            end = max(seen) if above else min(seen)
            reason = f"{name} {at[name]:g} is {part} of the law, {end:g}: its interval is of scatter alone."
            remedy = "Try a few rates at that size and give them to --check."
            found.append(Finding("extrapolated", "warning", reason, remedy))
    return found


def _initial(frame: pl.DataFrame, initial: str | None) -> pl.Series:
    if initial is None:
        return pl.Series("initial", [None] * len(frame), dtype=pl.Float64)
    try:
        value = float(initial)
    except ValueError:
        return numbers(frame, column(frame, initial, "--initial-loss"), "--initial-loss").alias("initial")
    if not (np.isfinite(value) and value > 0):
        raise TableError(f"--initial-loss {initial}: a positive number of nats, such as the log of the vocabulary size")
    return pl.Series("initial", [value] * len(frame), dtype=pl.Float64)


def _groups(rows: pl.DataFrame, keys: list[str]) -> list[tuple[tuple[Any, ...], pl.DataFrame]]:
    if not keys:
        return [((), rows)]
    found = [(key, mine) for key, mine in rows.group_by(keys, maintain_order=True)]
    if len(found) > MOST:
        raise TableError(f"these columns make {len(found)} configurations; {MOST} are the most")
    return found


def _curve(key: dict[str, Any], rows: pl.DataFrame) -> Curve:
    features = {name: float(value) for name, value in key.items() if name in FEATURES and value is not None}
    name = {k.removeprefix("by "): str(v) for k, v in key.items() if k.startswith("by ")}
    initial = rows["initial"].median()
    start = float(initial) if isinstance(initial, int | float) else None
    lrs, losses = rows["lr"].to_list(), rows["loss"].to_list()
    try:
        best = optimum(lrs, losses, start)
    except LrError:
        best = None
    try:
        cost = sensitivity(lrs, losses, start)
    except LrError:
        cost = None
    return Curve(name, features, rows, start, best, cost)


def _law(curves: list[Curve], findings: list[Finding]) -> Law | None:
    known = [curve for curve in curves if curve.best and curve.best.interior]
    names = [n for n in FEATURES if curves[0].features.get(n) and len({c.features.get(n) for c in known}) > 1]
    names, followers = _apart({name: np.array([curve.features[name] for curve in known]) for name in names})
    for name, leader in followers.items():
        reason = f"{name} follows {leader} here, so the law is in {leader} alone."
        remedy = f"Add configurations in which {name} varies on its own."
        findings.append(Finding("feature_follows", "note", reason, remedy))
    if not names:
        return None
    lrs = np.array([curve.best.lr for curve in known if curve.best])
    sds = [curve.best.sd_log for curve in known if curve.best]
    features = {name: np.array([curve.features[name] for curve in known]) for name in names}
    try:
        return law(features, lrs, np.array(sds, dtype=float) if all(sds) else None)
    except LrError as error:
        remedy = "Add configurations in which they vary on their own."
        findings.append(Finding("no_law", "warning", f"No law of the best LR: {error}.", remedy))
        return None


def _apart(features: Mapping[str, Floats]) -> tuple[list[str], dict[str, str]]:
    """Features whose logs vary on their own, and {another: the one it follows closely}; the first named leads."""
    kept: dict[str, Floats] = {}
    followers: dict[str, str] = {}
    for name, values in features.items():
        x = np.log(values)
        leader = next((k for k, y in kept.items() if abs(float(np.corrcoef(x, y)[0, 1])) > FOLLOWS), None)
        if leader is None:
            kept[name] = x
        else:
            followers[name] = leader
    return list(kept), followers


def _findings(curves: list[Curve]) -> list[Finding]:
    few = [c for c in curves if c.rows["lr"].n_unique() < FEWEST_RATES]
    edge = [c for c in curves if c.best and not c.best.interior and c not in few]
    none = [c for c in curves if c.best is None and c not in few]
    wide = [c for c in curves if c.best and c.best.interior and (c.best.low is None or c.best.high is None)]
    blind = [c for c in curves if c.sensitivity is None and c.rows["lr"].n_unique() > 1]
    uneven = [c for c in curves if c.sensitivity and _is_uneven(c)]
    kinds = (
        ("lr_at_edge", edge, "the optimum is at the edge of the grid", "Extend the grid past the lowest loss."),
        ("few_rates", few, "fewer than three learning rates", "A parabola takes three rates; five are better."),
        ("no_optimum", none, "fewer than two rates ended below the initial loss", "Try lower learning rates."),
        ("lr_not_bounded", wide, "no bounded interval for the optimum", "Add rates near the minimum, or seeds."),
        ("initial_loss_missing", blind, "diverged runs and no initial loss to clip them at", "Say --initial-loss."),
        ("uneven_grid", uneven, "rates are unevenly spaced in log", "Quote sensitivity_integral, not the mean."),
    )
    total = len(curves)
    return [
        Finding(code, "warning", f"{len(hit)} of {total} configurations: {reason}.", remedy)
        for code, hit, reason, remedy in kinds
        if hit
    ]


def _is_uneven(curve: Curve) -> bool:
    steps = np.diff(np.unique(np.round(np.log(curve.rows["lr"].to_numpy()), 6)))
    return len(steps) > 1 and float(np.ptp(steps)) > UNEVEN * float(np.median(steps))
