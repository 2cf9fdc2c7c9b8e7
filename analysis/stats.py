"""Means, differences and their t intervals. A run's seed is the unit; everything else is one number per run.

Three seeds are the rule here, and there a percentile bootstrap covers about 80 % instead of 95 %, so all
intervals are Student's t. Callers count runs without a finite value and say so; they are refused here, because
leaving them out quietly would flatter an arm that diverges.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided interval in the unit of the values; `low`, `high` are NaN where n is below 2."""

    estimate: float
    low: float
    high: float
    n: int
    method: str

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval exists and lies on one side of zero."""
        return self.low > 0 or self.high < 0


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean and t interval with n - 1 degrees of freedom. Raises ValueError for a value that is not finite."""
    n, mean, variance = _moments(values)
    return _t_interval(mean, math.sqrt(variance / n) if n else math.nan, n - 1, n, "t", level)


def paired_difference(arm: Mapping[int, float], base: Mapping[int, float], level: float = LEVEL) -> Interval:
    """Mean of arm minus base over the seeds that both have; t interval of those differences."""
    shared = sorted(arm.keys() & base.keys())
    gap = mean_interval([arm[seed] - base[seed] for seed in shared], level)
    return Interval(gap.estimate, gap.low, gap.high, gap.n, "paired t")


def welch_difference(arm: Sequence[float], base: Sequence[float], level: float = LEVEL) -> Interval:
    """Difference of two means with unequal variances (Welch 1947; degrees of freedom by Welch-Satterthwaite).

    `n` is that of the smaller sample.
    """
    n_arm, mean_arm, var_arm = _moments(arm)
    n_base, mean_base, var_base = _moments(base)
    n, gap = min(n_arm, n_base), mean_arm - mean_base
    if n < 2:
        return Interval(gap, math.nan, math.nan, n, "Welch t")
    a, b = var_arm / n_arm, var_base / n_base
    spread = a**2 / (n_arm - 1) + b**2 / (n_base - 1)
    # Without any spread in both samples the formula is 0 / 0; the interval is a point whatever the degrees are.
    freedom = (a + b) ** 2 / spread if spread > 0 else n_arm + n_base - 2
    return _t_interval(gap, math.sqrt(a + b), freedom, n, "Welch t", level)


def difference(arm: Mapping[int, float], base: Mapping[int, float], level: float = LEVEL) -> Interval:
    """Arm minus base, both {seed: value}: paired over shared seeds, by Welch where fewer than two are shared."""
    shared = len(arm.keys() & base.keys())
    if shared >= 2 or (shared == 1 and min(len(arm), len(base)) == 1):
        return paired_difference(arm, base, level)
    return welch_difference(list(arm.values()), list(base.values()), level)


def _moments(values: Sequence[float]) -> tuple[int, float, float]:
    """n, mean and sample variance (n - 1 below the line); NaN where they do not exist."""
    if not all(math.isfinite(v) for v in values):
        raise ValueError(f"values must be finite, got {list(values)}; count the others apart")
    n = len(values)
    if n == 0:
        return 0, math.nan, math.nan
    mean = math.fsum(values) / n
    return n, mean, math.fsum((v - mean) ** 2 for v in values) / (n - 1) if n > 1 else math.nan


def _t_interval(mean: float, error: float, freedom: float, n: int, method: str, level: float) -> Interval:
    if n < 2:
        return Interval(mean, math.nan, math.nan, n, method)
    half = _t_quantile(level, freedom) * error
    return Interval(mean, mean - half, mean + half, n, method)


@lru_cache(maxsize=4096)
def _t_quantile(level: float, freedom: float) -> float:
    return float(stdtrit(freedom, (1 + level) / 2))
