"""One fit of a scaling law: from logs of N, D, C, U and losses to parameters, and how surely they were found."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.huber import DELTA, Floats, Solution, minimise, objective
from analysis.repeated import DECAYS, FEWEST, RepeatedData
from analysis.surface import PowerSum

POLISHED = 16  # starts polished: the best of the variable projection and others spread over its whole grid
SAME = 1e-6  # objectives within this share of the best count as the same optimum
NEEDS = {"nd": ("n", "d"), "n": ("n",), "d": ("d",), "c": ("c",), "ndu": ("n", "d", "u")}
EQUATIONS = {
    "nd": "L(N, D) = E + A/N^alpha + B/D^beta",
    "ndu": "L(N, D, U) = E + A/N'^alpha + B/D'^beta",
    "n": "L(N) = E + A/N^alpha",
    "d": "L(D) = E + A/D^alpha",
    "c": "L(C) = E + A/C^alpha",
}

Surface = PowerSum | RepeatedData


class FitError(ValueError):
    """The rows cannot carry the fit that was asked for; the message says what would."""


@dataclass(frozen=True)
class Spec:
    """What to fit: a key of `NEEDS`, parameters held at values, beta tied to alpha or not, the Huber zone's width,
    and for repeated data whether the surface of fresh data is fitted together with R_D* and R_N*."""

    form: str = "nd"
    fixed: Mapping[str, float] = field(default_factory=dict)
    tied: bool = False
    delta: float = DELTA
    joint: bool = False


@dataclass(frozen=True)
class Fit:
    """The best of several polished starts. `model` holds the rows; `reached` of `starts` came to the same optimum.

    `base` is the first stage of a fit in two stages (see `first_stage`)."""

    spec: Spec
    model: Surface
    theta: Floats
    objective: float
    converged: bool
    starts: int
    reached: int
    base: "Fit | None" = None

    @property
    def values(self) -> dict[str, float]:
        """Natural parameters, fixed ones included; and a = beta/(alpha + beta), the exponent of N_opt in C."""
        return with_allocation(self.model.natural(self.theta))

    @property
    def residuals(self) -> Floats:
        """log predicted minus log observed loss (rows,)."""
        return np.asarray(self.model.log_loss(self.theta) - self.model.target)

    @property
    def at_bound(self) -> tuple[str, ...]:
        """Free parameters that ended at the edge of where they may lie, where the term has vanished or degenerated."""
        gap = 1e-6 * (self.model.upper - self.model.lower)
        edge = (self.theta <= self.model.lower + gap) | (self.theta >= self.model.upper - gap)
        return tuple(name for name, stuck in zip(self.model.names, edge, strict=True) if stuck)

    @property
    def names(self) -> tuple[str, ...]:
        """Free natural parameters, those of the first stage included."""
        return (*(self.base.names if self.base else ()), *self.model.names)


def with_allocation(values: Mapping[str, float]) -> dict[str, float]:
    """`values` and, where both exponents are there, a = beta / (alpha + beta)."""
    if "beta" not in values:
        return dict(values)
    return dict(values) | {"a": values["beta"] / (values["alpha"] + values["beta"])}


def predict(form: str, values: Mapping[str, float], logs: Mapping[str, Floats]) -> Floats:
    """Loss in nats (rows,) that a form of `NEEDS` with natural parameters `values` gives at `logs`."""
    known = {name: value for name, value in values.items() if name != "a"}
    needed = {name: logs[name] for name in NEEDS[form]}
    kind = RepeatedData if form == "ndu" else PowerSum
    return np.exp(kind(form, needed, np.zeros(len(needed[NEEDS[form][0]])), known).log_loss(np.array([])))


def make_model(spec: Spec, logs: Mapping[str, Floats], loss: Floats) -> Surface:
    """The model over rows. Raises FitError for rows that cannot determine its parameters."""
    kind = RepeatedData if spec.form == "ndu" else PowerSum
    if spec.tied and spec.form not in ("nd", "ndu"):
        raise FitError(f"{EQUATIONS[spec.form]} has one exponent; there is nothing to tie")
    model = kind(spec.form, {name: logs[name] for name in NEEDS[spec.form]}, np.log(loss), spec.fixed, spec.tied)
    _check_fixed(spec, model)
    _check_rows(spec, model)
    return model


def _check_fixed(spec: Spec, model: Surface) -> None:
    for name, value in spec.fixed.items():
        if name not in model.natural_names:
            raise FitError(f"{EQUATIONS[spec.form]} has no {name}; it has {', '.join(model.natural_names)}")
        if not (np.isfinite(value) and value > 0):
            raise FitError(f"{name} can only be fixed at a positive number, not {value:g}")
    if spec.tied and "beta" in spec.fixed:
        raise FitError("beta cannot be both tied to alpha and fixed; fix alpha instead")


def _check_rows(spec: Spec, model: Surface) -> None:
    rows, free = len(model.target), len(model.names)
    if rows <= free:
        raise FitError(
            f"{rows} usable rows cannot determine {free} parameters of {EQUATIONS[spec.form]}; it takes {free + 1} or "
            "more: add runs, or use --tie or --fix to have fewer parameters"
        )
    for variable in ("n", "d", "c"):
        if variable not in model.logs or not np.ptp(model.logs[variable]) < 1e-6:
            continue
        value = float(np.exp(model.logs[variable][0]))
        other = {"n": "d", "d": "n"}.get(variable, "")
        way = f"; fit L({other.upper()}) instead: --form {other}" if other and spec.form == "nd" else ""
        if _wants(variable, model):
            raise FitError(f"all rows have the same {variable.upper()} = {value:g}: it cannot be told from E{way}")
    if np.ptp(model.target) < 1e-12 and free:
        raise FitError(f"all losses are the same ({np.exp(model.target[0]):g}): there is nothing to fit")


def _wants(variable: str, model: Surface) -> bool:
    """Whether a free parameter belongs to the term of this variable."""
    own = {"A", "alpha"} if variable in ("n", "c") or "beta" not in model.natural_names else {"B", "beta"}
    return bool(own & set(model.names))


def fit(spec: Spec, logs: Mapping[str, Floats], loss: Floats, polished: int = POLISHED) -> Fit:
    """Fit `spec` to log N, log D, log C, log U (keys n, d, c, u; each (rows,)) and losses in nats (rows,)."""
    base = first_stage(spec, logs, loss, polished)
    if base:
        known = {name: value for name, value in base.values.items() if name != "a"}
        model = make_model(replace(spec, fixed={**known, **spec.fixed}, tied=False), logs, loss)
    else:
        model = make_model(spec, logs, loss)
    best, starts, reached = solve(model, spec.delta, polished)
    return Fit(spec, model, best.theta, best.objective, best.converged, starts, reached, base)


def is_fresh(logs: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Which rows see no token twice, to 1 % (rows,)."""
    return np.asarray(logs["d"] <= logs["u"] + 0.01)


def first_stage(spec: Spec, logs: Mapping[str, Floats], loss: Floats, polished: int = POLISHED) -> Fit | None:
    """For repeated data, as published: the surface of the rows that see no token twice, which is then held.

    None where all is to be fitted together, where the surface is fixed, or where such rows are too few.
    """
    if spec.form != "ndu" or spec.joint or {"n", "d", "u"} - logs.keys():
        return None
    fresh = is_fresh(logs)
    surface = {name: value for name, value in spec.fixed.items() if name not in DECAYS}
    first = Spec("nd", surface, spec.tied, spec.delta)
    rows = {name: logs[name][fresh] for name in ("n", "d")}
    if fresh.sum() < FEWEST or not PowerSum("nd", rows, loss[fresh], surface, spec.tied).names:
        return None
    try:
        return fit(first, rows, loss[fresh], polished)
    except FitError:
        return None


def solve(model: Surface, delta: float, polished: int = POLISHED) -> tuple[Solution, int, int]:
    """(best solution, polished starts, how many of them reached it)."""
    weights = np.ones(len(model.target))
    if not model.names:
        value = objective(model, np.array([]), delta)
        return Solution(np.array([]), value, True), 1, 1
    found = [minimise(model, start, delta, weights) for start in _chosen(model.starts(), polished)]
    best = min(found, key=lambda solution: solution.objective)
    floor = 1e-18 * len(weights)  # below this a fit is exact, and shares of it mean nothing
    reached = sum(solution.objective <= best.objective * (1 + SAME) + floor for solution in found)
    return best, len(found), reached


def _chosen(starts: list[Any], polished: int) -> list[Any]:
    """The first half of `polished` from the best, the rest evenly from all others."""
    head = min(len(starts), (polished + 1) // 2)
    others = starts[head:]
    count = min(polished - head, len(others))
    return (
        starts[:head] + [others[round(i)] for i in np.linspace(0, len(others) - 1, count)] if count else starts[:head]
    )
