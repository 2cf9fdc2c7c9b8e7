"""How surely a scaling fit knows its parameters: cluster bootstrap, profile likelihood, and the flag `identified`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2

from analysis.fit import Fit, Surface, with_allocation
from analysis.huber import Floats, Solution, minimise

LEVEL = 0.95
FARTHEST = {"A": np.log(1e9), "B": np.log(1e9)}  # log units that a profile walks before it counts as unbounded
FAR = np.log(1e4)
WIDEST = 100.0  # an interval whose ends differ by a larger factor does not pin a parameter down


@dataclass(frozen=True)
class Bootstrap:
    """`thetas` (resamples, parameters) of the fits that converged; `natural` maps a name to its draws (resamples,)."""

    thetas: Floats
    natural: dict[str, Floats]
    clusters: int
    failed: int

    def interval(self, name: str) -> tuple[float, float]:
        """Percentile interval of a natural parameter."""
        return percentiles(self.natural[name])


def percentiles(draws: Floats) -> tuple[float, float]:
    """The middle 95 % of `draws`; NaN where there are none."""
    if not len(draws):
        return np.nan, np.nan
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def bootstrap(fit: Fit, clusters: Sequence[int], resamples: int = 1000, seed: int = 0) -> Bootstrap:
    """Refit to resampled clusters: `clusters` (rows,) numbers the run that each row comes from, 0, 1, 2, ...

    Rows of one run are drawn together, because checkpoints of a run are not independent observations.
    """
    which = np.asarray(clusters)
    count = int(which.max()) + 1
    generator, found, failed = np.random.default_rng(seed), [], 0
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(0, count, count), minlength=count)
        solution = minimise(fit.model, fit.theta, fit.spec.delta, drawn[which].astype(float), warm=True)
        if solution.converged and np.isfinite(solution.objective):
            found.append(solution.theta)
        else:
            failed += 1
    thetas = np.array(found).reshape(len(found), len(fit.theta))
    rows = [with_allocation(fit.model.natural(theta)) for theta in thetas]
    natural = {name: np.array([row[name] for row in rows]) for name in fit.values}
    return Bootstrap(thetas, natural, count, failed)


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
    """Walk a free parameter away from its optimum, refitting the others, until the deviance passes chi-squared."""
    factor, limit = deviance_factor(fit), float(chi2.ppf(level, 1))
    points = [(fit.values[name], 0.0)]
    ends = [_walk(fit, name, sign, factor, limit, points) for sign in (-1, 1)]
    low, high = fit.values[name] * np.exp(ends)
    return Profile(name, float(low), float(high), tuple(sorted(points)))


def _walk(fit: Fit, name: str, sign: int, factor: float, limit: float, points: list[tuple[float, float]]) -> float:
    """Signed log distance to the crossing, found by doubling and then halving; infinite without one."""
    here, best = fit.values[name], fit.objective
    near, far, step, warm = 0.0, np.inf, 0.02, fit.values
    farthest = FARTHEST.get(name, FAR)
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
        from analysis.huber import objective

        return Solution(start, objective(model, start, fit.spec.delta), True), model.natural(start)
    solution = minimise(model, start, fit.spec.delta, np.ones(len(model.target)), warm=True)
    return solution, model.natural(solution.theta)


def identified(found: Profile, boot: Bootstrap | None) -> bool:
    """Whether the data pins a parameter down: bounded on both sides, by profile and by bootstrap, within a factor."""
    if not found.bounded or found.high / found.low > WIDEST:
        return False
    if boot is None or not len(boot.thetas):
        return True
    low, high = boot.interval(found.name)
    return low > 0 and high / low <= WIDEST
