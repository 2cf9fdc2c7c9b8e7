"""Compute-equivalent gain: how many times its compute the baseline would need to reach the loss of an arm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from analysis.stats import Interval

EARLY = 0.1  # of training; before that the warmup is in the loss, and the power law is another one
LEAST_POINTS = 4
FAR = 10.0  # times the compute of the runs; beyond it a curve is not believed
Points = Sequence[tuple[float, float]]  # training FLOPs, loss


@dataclass(frozen=True)
class Gain:
    """Above 1: the arm saves compute. None where the curve gives no number; then `reason` says why."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Curve:
    """L(C) = E + R (C / C_end)^-b: `reducible` R is what training still takes away at the end."""

    reducible: float
    exponent: float

    def ratio(self, effect: float) -> float | None:
        """Compute, in units of C_end, at which the loss is `effect` above that at C_end; None where it never is."""
        left = 1 + effect / self.reducible
        return left ** (-1 / self.exponent) if left > 0 else None


def compute_gain(curves: Mapping[int, Points], gap: Interval, flops: float) -> Gain:
    """`curves`: {seed: points of one baseline run}; `gap`: arm minus baseline; `flops`: the arm's over the baseline's.

    The estimate goes along the curve of all seeds; the interval takes the ends of the interval of `gap` along the
    curve of each seed, whichever is farthest.
    """
    every = [point for points in curves.values() for point in points]
    whole = fit(every)
    if whole is None:
        return Gain(reason="the baseline's evaluations make no falling curve of at least four points")
    ratio = whole.ratio(gap.estimate)
    if ratio is None or ratio > FAR:
        return Gain(reason=f"beyond {FAR:g} times the compute of the baseline's runs, where its curve is not believed")
    single = [curve for points in curves.values() if (curve := fit(points))] or [whole]
    low = min((r for c in [whole, *single] if (r := c.ratio(gap.high)) is not None), default=None)
    highs = [c.ratio(gap.low) for c in [whole, *single]] if gap.exists else []
    high = None if not highs or any(r is None or r > FAR for r in highs) else max(r for r in highs if r is not None)
    reason = None if high else f"no upper end below {FAR:g} times the baseline's compute"
    return Gain(ratio / flops, low / flops if low is not None and gap.exists else None, high and high / flops, reason)


def fit(points: Points) -> Curve | None:
    """Least squares in the loss; for each exponent E and R are linear (variable projection, Golub and Pereyra 1973)."""
    end = max((c for c, _ in points), default=0.0)
    late = [(c / end, loss) for c, loss in points if c >= EARLY * end and math.isfinite(loss)]
    if len({c for c, _ in late}) < LEAST_POINTS:
        return None
    x, y = np.array(late).T

    def linear(log_b: float) -> tuple[float, float, float]:
        power = x ** -math.exp(log_b)
        reducible = float(np.cov(power, y, bias=True)[0, 1] / power.var())
        floor = float(y.mean() - reducible * power.mean())
        if floor < 0:  # a loss cannot fall below zero
            floor, reducible = 0.0, float(power @ y / (power @ power))
        return float(((floor + reducible * power - y) ** 2).sum()), floor, reducible

    best = minimize_scalar(lambda log_b: linear(log_b)[0], bounds=(math.log(0.02), math.log(5.0)), method="bounded")
    reducible = linear(best.x)[2]
    return Curve(reducible, math.exp(best.x)) if reducible > 0 else None
