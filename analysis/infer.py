"""How surely a scaling fit knows its parameters: cluster bootstrap, profile likelihood, and the flag `identified`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtri

from analysis.fit import Fit, Surface, is_fresh, with_allocation
from analysis.huber import Floats, Solution, huber, minimise, objective
from analysis.repeated import DECAYS, RANGE, RepeatedData

LEVEL = 0.95
FARTHEST = {
    "A": float(np.log(1e9)),
    "B": float(np.log(1e9)),
}  # log units that a profile walks before it counts as unbounded
DECAY_GRID = np.geomspace(0.1, 1e4, 11)  # further starts for R_D* and R_N*
FAR = float(np.log(1e4))
# An interval whose ends differ by a larger factor does not pin a parameter down (amplitudes are exponentials of one).
WIDEST, WIDEST_AMPLITUDE = 10.0, 100.0


@dataclass(frozen=True)
class Bootstrap:
    """`draws` maps a natural parameter to its value in each resample that converged (resamples,)."""

    draws: dict[str, Floats]
    done: int
    failed: int
    clusters: int

    def interval(self, name: str) -> tuple[float, float]:
        """Percentile interval of a natural parameter; 0 or infinite at an end where it ran off to its bound."""
        low, high = percentiles(self.draws[name])
        smallest, largest = RANGE if name in DECAYS else (0.0, np.inf)
        return (low if low > 1.01 * smallest else 0.0), (high if high < 0.99 * largest else np.inf)


def percentiles(draws: Floats) -> tuple[float, float]:
    """The middle 95 % of `draws`; NaN where there are none."""
    if not len(draws):
        return np.nan, np.nan
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def bootstrap(fit: Fit, clusters: Sequence[int], resamples: int = 1000, seed: int = 0) -> Bootstrap:
    """Refit to resampled clusters: `clusters` (rows,) numbers the run that each row comes from, 0, 1, 2, ...

    Rows of one run are drawn together, because checkpoints of a run are not independent observations. A fit in two
    stages is repeated in both.
    """
    which = np.asarray(clusters)
    count = int(which.max()) + 1
    generator, found = np.random.default_rng(seed), list[dict[str, float]]()
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(0, count, count), minlength=count)
        values = _resampled(fit, drawn[which].astype(float))
        found += [values] if values else []
    draws = {name: np.array([values[name] for values in found]) for name in fit.values}
    return Bootstrap(draws, len(found), resamples - len(found), count)


def _resampled(fit: Fit, weights: Floats) -> dict[str, float] | None:
    """Natural parameters under `weights` of the rows, or None where the fit does not come to an end."""
    model, starts = fit.model, [fit.theta]
    if fit.base:
        values = _resampled(fit.base, weights[is_fresh(fit.model.logs)])
        if values is None:
            return None
        known = {name: value for name, value in values.items() if name != "a"}
        model = replace(fit.model, fixed={**known, **fit.spec.fixed})
        starts.append(_of_grid(model, fit.spec.delta, weights))  # another surface may mean another valley
    if np.count_nonzero(weights) <= len(fit.theta):
        return None
    found = [minimise(model, start, fit.spec.delta, weights, warm=True) for start in starts]
    best = min(found, key=lambda solution: solution.objective)
    return with_allocation(model.natural(best.theta)) if best.converged else None


def _of_grid(model: Surface, delta: float, weights: Floats) -> Floats:
    """Of R_D* and R_N* on a grid, where the objective is lowest."""
    assert isinstance(model, RepeatedData)
    grid = np.log(list(itertools.product(DECAY_GRID, repeat=len(model.names))))
    objectives = huber(model.log_losses(grid) - model.target, delta) @ weights
    return np.asarray(grid[np.argmin(objectives)])


@dataclass(frozen=True)
class Profile:
    """Interval by profile likelihood; an end that the data does not bound is infinite (or 0 at the low side).

    `points` are (value, deviance) along the walk, for a picture."""

    name: str
    low: float
    high: float
    points: tuple[tuple[float, float], ...]

    @property
    def bounded(self) -> bool:
        """Whether the data bounds the parameter on both sides."""
        return self.low > 0 and bool(np.isfinite(self.high))


def deviance_factor(fit: Fit) -> float:
    """What twice the rise of the objective is multiplied by to be chi-squared with one degree of freedom.

    n/(n - p) E[psi'] / E[psi^2] of the Huber score psi (the rho test of robust regression: Ronchetti 1982; Hampel et
    al. 1986, section 7.2); 1/sigma^2 in least squares. E[psi'] is a difference quotient over the bulk of the residuals,
    because few of them lie inside a narrow Huber zone.
    """
    residuals, delta = fit.residuals, fit.spec.delta
    rows, free = len(residuals), len(fit.theta)
    spread = max(float(np.median(np.abs(residuals))) / 0.6745, 1e-9)
    width = max(0.9 * spread * rows**-0.2, 1e-9)
    slope = (np.clip(residuals + width, -delta, delta) - np.clip(residuals - width, -delta, delta)).mean() / (2 * width)
    square = max(float((np.clip(residuals, -delta, delta) ** 2).mean()), 1e-18)
    return float(slope / square * max(rows - free, 1) / rows)


def profile(fit: Fit, name: str, level: float = LEVEL) -> Profile:
    """Walk a free parameter away from its optimum, refitting the others, until the deviance passes its 95 % quantile.

    A parameter of the first stage is walked there; those of the second stage with the first one held.
    """
    if fit.base and name in fit.base.names:
        return profile(fit.base, name, level)
    # Fisher's distribution rather than chi-squared: the spread is estimated from the same few rows.
    factor, limit = deviance_factor(fit), float(fdtri(1, max(len(fit.residuals) - len(fit.theta), 1), level))
    points = [(fit.values[name], 0.0)]
    ends = [_walk(fit, name, sign, factor, limit, points) for sign in (-1, 1)]
    low, high = fit.values[name] * np.exp(ends)
    return Profile(name, float(low), float(high), tuple(sorted(points)))


def _walk(fit: Fit, name: str, sign: int, factor: float, limit: float, points: list[tuple[float, float]]) -> float:
    """Signed log distance to the crossing, found by doubling and then halving; infinite without one."""
    here, best = fit.values[name], fit.objective
    near, far, step, warm = 0.0, np.inf, 0.02, fit.values
    farthest = float(FARTHEST.get(name, FAR))
    while True:
        at = near + step if not np.isfinite(far) else (near + far) / 2
        if at > farthest:
            return sign * np.inf
        value = here * np.exp(sign * at)
        solution, values = _refit(fit, name, value, warm)
        deviance = 2 * factor * max(solution.objective - best, 0.0)
        points.append((value, deviance))
        if deviance > limit:
            far = at
        else:
            near, warm, step = at, values, step * 1.7
        if np.isfinite(far) and far - near < 0.02 * far:
            return sign * (near + far) / 2


def _refit(fit: Fit, name: str, value: float, warm: dict[str, float]) -> tuple[Solution, dict[str, float]]:
    model: Surface = replace(fit.model, fixed={**fit.model.fixed, name: value}, centre=tuple(fit.model.centres))
    start = model.theta_of({**warm, name: value})
    if not model.names:
        return Solution(start, objective(model, start, fit.spec.delta), True), model.natural(start)
    solution = minimise(model, start, fit.spec.delta, np.ones(len(model.target)), warm=True)
    return solution, model.natural(solution.theta)


def identified(found: Profile, boot: Bootstrap | None) -> bool:
    """Whether the data pins a parameter down: bounded on both sides, by profile and by bootstrap, within a factor."""
    widest = WIDEST_AMPLITUDE if found.name in ("A", "B") else WIDEST
    if not found.bounded or found.high > widest * found.low:
        return False
    if boot is None or not boot.done:
        return True
    low, high = boot.interval(found.name)
    return 0 < high <= widest * low
