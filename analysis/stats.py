"""Means, differences, their t intervals and tests. A run's seed is the unit; everything else is one number per run.

Three seeds are the rule here, and there a percentile bootstrap covers about 80 % instead of 95 %, so all
intervals are Student's t. Callers count runs without a finite value and say so; they are refused here, because
leaving them out quietly would flatter an arm that diverges.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

LEVEL = 0.95
ROUNDING = 1e-12  # of a loss: what subtracting decimal numbers leaves
EVIDENCE = 0.5  # of the correlation at which pairing breaks even; the tests show what coverage it keeps


@dataclass(frozen=True)
class Sample:
    """What a mean rests on: how many runs, their mean and their sample variance (NaN where n is below 2)."""

    n: int
    mean: float
    variance: float


@dataclass(frozen=True)
class NoiseFloor:
    """A standard deviation between seeds known from elsewhere, and from how many degrees of freedom (inf: exactly)."""

    sd: float
    freedom: float

    def __post_init__(self) -> None:
        if not (self.sd > 0 and math.isfinite(self.sd) and self.freedom > 0):
            raise ValueError(f"a noise floor needs sd > 0 and degrees of freedom > 0, got {self.sd}, {self.freedom}")


@dataclass(frozen=True)
class Interval:
    """An estimate with its standard error, in the unit of the values. `error` is NaN where there is no interval."""

    estimate: float
    error: float
    freedom: float
    n: int
    method: str
    level: float = LEVEL

    @property
    def low(self) -> float:
        """The lower end of the two-sided interval."""
        return self.estimate - self._half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.estimate + self._half

    @property
    def _half(self) -> float:
        return t_quantile(self.level, self.freedom) * self.error if math.isfinite(self.error) else math.nan

    @property
    def exists(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.error)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval exists and lies on one side of zero."""
        return self.low > 0 or self.high < 0

    @property
    def p(self) -> float:
        """Two-sided p of "no difference"; NaN without an interval."""
        return min(2 * self._below(-abs(self.estimate)), 1.0)  # NaN stays NaN in this order

    def p_equivalent(self, margin: float) -> float:
        """p of "at least `margin` apart", by two one-sided t tests (Schuirmann 1987)."""
        return self._below(abs(self.estimate) - margin)

    def _below(self, gap: float) -> float:
        """P(t < gap / error); a point when there is no spread at all."""
        if self.error == 0:
            return 0.0 if gap < 0 else 0.5 if gap == 0 else 1.0
        return _t_cdf(gap / self.error, self.freedom) if math.isfinite(self.error) else math.nan


def sample(values: Sequence[float]) -> Sample:
    """n, mean and variance (n - 1 below the line). Raises ValueError for a value that is not finite."""
    if not all(math.isfinite(v) for v in values):
        raise ValueError(f"values must be finite, got {list(values)}; count the others apart")
    n = len(values)
    if n == 0:
        return Sample(0, math.nan, math.nan)
    mean = math.fsum(values) / n
    if n > 1 and min(values) == max(values):
        return Sample(n, mean, 0.0)  # and not what rounding the mean leaves
    return Sample(n, mean, math.fsum((v - mean) ** 2 for v in values) / (n - 1) if n > 1 else math.nan)


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean and t interval with n - 1 degrees of freedom. Raises ValueError for a value that is not finite."""
    s = sample(values)
    return Interval(s.mean, math.sqrt(s.variance / s.n) if s.n else math.nan, s.n - 1, s.n, "t", level)


def paired_difference(arm: Mapping[Any, float], base: Mapping[Any, float], level: float = LEVEL) -> Interval:
    """Mean of arm minus base over the seeds that both have; t interval of those differences."""
    gap = mean_interval([arm[seed] - base[seed] for seed in sorted(arm.keys() & base.keys(), key=str)], level)
    return Interval(gap.estimate, gap.error, gap.freedom, gap.n, "paired t", level)


def welch(arm: Sample, base: Sample, level: float = LEVEL) -> Interval:
    """Difference of two means with unequal variances (Welch 1947; degrees of freedom by Welch-Satterthwaite).

    `n` is that of the smaller sample.
    """
    n, gap = min(arm.n, base.n), arm.mean - base.mean
    if n < 2:
        return Interval(gap, math.nan, math.nan, n, "Welch t", level)
    a, b = arm.variance / arm.n, base.variance / base.n
    spread = a**2 / (arm.n - 1) + b**2 / (base.n - 1)
    # Without any spread in both samples the formula is 0 / 0; the interval is a point whatever the degrees are.
    freedom = (a + b) ** 2 / spread if spread > 0 else arm.n + base.n - 2
    return Interval(gap, math.sqrt(a + b), freedom, n, "Welch t", level)


def welch_difference(arm: Sequence[float], base: Sequence[float], level: float = LEVEL) -> Interval:
    """`welch` of the values themselves."""
    return welch(sample(arm), sample(base), level)


def floor_difference(arm: Sample, base: Sample, floor: NoiseFloor, level: float = LEVEL) -> Interval:
    """Difference of two means whose runs scatter with a standard deviation known from elsewhere; one run is enough."""
    n = min(arm.n, base.n)
    error = floor.sd * math.sqrt(1 / arm.n + 1 / base.n) if n else math.nan
    return Interval(arm.mean - base.mean, error, floor.freedom, n, "noise floor t", level)


def pooled_sd(samples: Sequence[Sample]) -> NoiseFloor | None:
    """The common standard deviation within samples, with its degrees of freedom; None where no sample has two."""
    known = [s for s in samples if s.n > 1]
    freedom = sum(s.n - 1 for s in known)
    if not freedom:
        return None
    sd = math.sqrt(math.fsum((s.n - 1) * s.variance for s in known) / freedom)
    return NoiseFloor(sd, freedom) if sd > 0 else None


def difference(
    arm: Mapping[Any, float], base: Mapping[Any, float], correlation: float | None = None, level: float = LEVEL
) -> Interval:
    """Arm minus base, both {seed: value}: paired by seed where that helps, else by Welch.

    `correlation` is what OTHER arms of the table say about seeds (`seed_correlation`). Looking at the two samples
    themselves and taking the narrower interval would cover too little. None, nobody else to ask: paired by design.
    Losses that were rounded can differ by the same number in every seed; that says nothing of their spread, and Welch
    judges them.
    """
    shared = len(arm.keys() & base.keys())
    if shared and shared == min(len(arm), len(base)) and pairing_pays(shared, correlation):
        gap = paired_difference(arm, base, level)
        if not gap.error <= ROUNDING * max(map(abs, base.values())):  # NaN of a single pair stays paired
            return gap
    return welch_difference(list(arm.values()), list(base.values()), level)


def pairing_pays(n: int, correlation: float | None) -> bool:
    """Whether evidence of other arms speaks for pairing n seeds.

    Pairing halves the degrees of freedom and divides the variance by 1 / (1 - r); the two break even at
    r* = 1 - (t(2n - 2) / t(n - 1))^2. From half of that on seeds are paired: an interval by Welch is too wide where
    r > 0, and evidence from few seeds errs to both sides.
    """
    if n < 2 or correlation is None:
        return True
    break_even = 1 - (t_quantile(LEVEL, 2 * n - 2) / t_quantile(LEVEL, n - 1)) ** 2
    return correlation >= EVIDENCE * break_even


class SeedCorrelation:
    """How strongly arms rise and fall together by seed, told for one pair by all the others."""

    def __init__(self, arms: Mapping[str, Mapping[Any, float]]) -> None:
        """Arms that lack a seed others have do not testify."""
        seeds = sorted({seed for values in arms.values() for seed in values}, key=str)
        self._rows = {name: i for i, name in enumerate(a for a, v in arms.items() if len(v) == len(seeds) > 1)}
        values = np.array([[arms[name][seed] for seed in seeds] for name in self._rows])
        self._pairs = _correlations(values) if len(self._rows) > 1 else np.zeros((0, 0))

    def without(self, arm: str, base: str) -> float | None:
        """Mean correlation over seeds of all pairs of arms but this one; None where there is no other pair."""
        k = len(self._rows)
        total, pairs = (float(self._pairs.sum()) - k) / 2 if k > 1 else 0.0, k * (k - 1) // 2
        if arm in self._rows and base in self._rows and k > 1:
            total, pairs = total - float(self._pairs[self._rows[arm], self._rows[base]]), pairs - 1
        return total / pairs if pairs else None


def _correlations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(arms, seeds) to (arms, arms), ones on the diagonal; an arm without spread correlates with nothing."""
    centred = values - values.mean(axis=1, keepdims=True)
    norms = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    unit = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0)
    pairs: NDArray[np.float64] = unit @ unit.T
    np.fill_diagonal(pairs, 1.0)
    return pairs


def holm(ps: Sequence[float]) -> list[float]:
    """p values adjusted for looking at all of them at once (Holm 1979), in the order given; NaN, no test, stays."""
    order = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=ps.__getitem__)
    adjusted, largest = list(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * ps[i]))
        adjusted[i] = largest
    return adjusted


@lru_cache(maxsize=4096)
def t_quantile(level: float, freedom: float) -> float:
    """The two-sided quantile: t lies within plus and minus it with probability `level`; normal for infinity."""
    return float(stdtrit(min(freedom, 1e9), (1 + level) / 2))


def _t_cdf(t: float, freedom: float) -> float:
    return float(stdtr(min(freedom, 1e9), t))
