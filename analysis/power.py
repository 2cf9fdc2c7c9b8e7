"""How many seeds an answer needs: power of the t tests behind a verdict.

Given the estimated standard error, the estimate is normal and the chance of a verdict is closed; the functions here
take the mean of that over the distribution of the estimated error, on equally likely values (for one variance this is
the noncentral t distribution; for Welch's test, whose critical value is itself estimated, there is no shorter way).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr, ndtri, stdtrit

from analysis.stats import Interval

POWER = 0.8
MOST_SEEDS = 10_000
MANY = 50  # runs; from here on one more makes up for the estimated variance
EXACTLY = 1e6  # so many degrees of freedom are as good as infinitely many
POINTS = {1: 100, 2: 12}  # equally likely values of each variance, by how many variances there are
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Design:
    """A test to come: the true standard error of its estimate, the shares of it (squared) that come from each
    estimated variance, and their degrees of freedom."""

    error: float
    shares: tuple[float, ...]
    freedom: float


def at_seeds(gap: Interval, n: int) -> Design:
    """The test behind `gap` with n runs in each arm, spread as seen."""
    error = gap.error * math.sqrt(gap.n / n)
    if gap.method == "noise floor t":
        return Design(error, (1.0,), gap.freedom)
    if gap.method == "paired t":
        return Design(error, (1.0,), n - 1)
    # Welch's degrees of freedom tell how unequal the two variances are: f = (n - 1) / (w^2 + (1 - w)^2).
    unequal = min(1.0, max(0.0, 2 * (gap.n - 1) / gap.freedom - 1))
    return Design(error, ((1 + math.sqrt(unequal)) / 2, (1 - math.sqrt(unequal)) / 2), n - 1)


def power(effect: float, design: Design, alpha: float) -> float:
    """Chance that a two-sided test at `alpha` finds a true `effect`."""
    errors, freedoms = _estimates(design)
    critical, shift = stdtrit(freedoms, 1 - alpha / 2) * errors, abs(effect) / design.error
    return float(np.mean(ndtr(shift - critical) + ndtr(-shift - critical)))


def power_equivalent(margin: float, design: Design, alpha: float) -> float:
    """Chance that two one-sided tests at `alpha` show equivalence within `margin` where the true difference is 0."""
    errors, freedoms = _estimates(design)
    room = margin / design.error - stdtrit(freedoms, 1 - alpha) * errors
    return float(np.mean(np.maximum(0.0, 2 * ndtr(room) - 1)))


def _estimates(design: Design) -> tuple[Array, Array]:
    """Equally likely (estimated / true standard error, degrees of freedom of the critical value)."""
    values = _relative_variances(design.freedom, POINTS[len(design.shares)])
    if len(design.shares) == 1:
        return np.sqrt(values), np.full(len(values), min(design.freedom, EXACTLY))
    a, b = design.shares[0] * values[:, None], design.shares[1] * values[None, :]
    freedoms = design.freedom * (a + b) ** 2 / (a**2 + b**2)
    return np.sqrt(a + b).ravel(), freedoms.ravel()


@lru_cache(maxsize=1024)
def _relative_variances(freedom: float, points: int) -> Array:
    """Equally likely values of estimated over true variance: quantiles of chi-square over its degrees of freedom."""
    freedom = min(freedom, EXACTLY)
    middles = (np.arange(points, dtype=np.float64) + 0.5) / points
    return np.asarray(2 * gammaincinv(freedom / 2, middles) / freedom, dtype=np.float64)


def more_seeds(gap: Interval, target: float, alpha: float, margin: float | None = None) -> int | None:
    """How many more runs per arm give 80 % power, by the spread seen so far; None beyond MOST_SEEDS.

    Power to see a true difference of `target`; where the runs at hand have that already, power to show equivalence
    within `margin` of arms that do not differ.
    """
    quantiles = float(ndtri(1 - alpha / 2) + ndtri(POWER))
    need = _smallest(gap, target / quantiles, lambda design: power(target, design, alpha))
    if need is not None and need <= gap.n and margin:
        quantiles = float(ndtri(1 - alpha) + ndtri((1 + POWER) / 2))
        need = _smallest(gap, margin / quantiles, lambda design: power_equivalent(margin, design, alpha))
    return None if need is None else max(1, need - gap.n)


def _smallest(gap: Interval, error: float, chance: Callable[[Design], float]) -> int | None:
    """Runs with enough power; with a known variance the standard error would have to be `error`, with an estimated one
    it takes a few runs more."""
    known = gap.n * (gap.error / error) ** 2 if error > 0 else math.inf
    if known > MOST_SEEDS:
        return None
    n = max(2, math.ceil(known))
    if n > MANY:
        return n + 1
    while chance(at_seeds(gap, n)) < POWER:
        n += 1
    return n
