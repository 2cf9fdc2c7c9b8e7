"""The learning rate that trials of a search speak for, which lie where the sampler put them and not on a grid.

`analysis.lr.optimum` shrinks its window around the best, and a sampler leaves few trials in a small window. Here the
window stays and polynomials of degree 2 to 4 in log LR are averaged, weighted by AICc; the standard error holds
their disagreement, too (Burnham & Anderson 2002, Model Selection and Multimodel Inference, sections 2.4, 2.9 and 4.3).
Where the sides of a valley differ no polynomial is true, so the interval holds that of `optimum` as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from analysis.huber import Floats
from analysis.lr import LEVEL, QUARTILE, LrError, optimum

DEGREES = (2, 3, 4)
SPARE = 2  # degrees of freedom that a polynomial must leave
STEPS = 1000  # into which the window is divided to find a minimum
OVERFLOW = 700.0


@dataclass(frozen=True)
class Recommended:
    """`lr` with its 95 % interval, None at both ends where the data does not bound it. Where no polynomial has a
    minimum inside the window, `lr` is the best that was tried. `loss`: of the curve there, in nats. `used`: trials
    behind the curve. `diverges_from`: the lowest rate above `lr` that diverged, if one did."""

    lr: float
    low: float | None
    high: float | None
    loss: float
    used: int
    diverges_from: float | None

    @property
    def interior(self) -> bool:
        """Whether the trials enclose the optimum and bound it."""
        return self.low is not None


@dataclass(frozen=True)
class _Minimum:
    """Of one polynomial: where (log LR), how low, its variance by the delta method, degrees of freedom, AICc."""

    x: float
    loss: float
    variance: float
    freedom: int
    aicc: float


def recommend(lrs: Sequence[float], losses: Sequence[float], initial_loss: float | None = None) -> Recommended:
    """The minimum of the curve through trials. A loss that is not finite, or not below `initial_loss`, is a divergence.

    Raises LrError where no trial ended below that.
    """
    x, y = np.log(np.asarray(lrs, dtype=float)), np.asarray(losses, dtype=float)
    stable = np.isfinite(y) & (y < (np.inf if initial_loss is None else initial_loss))
    if not stable.any():
        raise LrError("no trial ended below the initial loss")
    near, low = _window(x[stable], y[stable])
    centre = float(near[int(np.argmin(low))])
    minima = [found for degree in DEGREES if (found := _minimum(near - centre, low, degree)) is not None]
    at, half, loss = _average(minima) if minima else (0.0, None, float(low.min()))
    lr = math.exp(centre + at)
    beyond = np.exp(x[~stable & (x > centre + at)])
    valley = optimum(lrs, losses, initial_loss) if half is not None else None
    ends: tuple[float | None, float | None] = None, None
    if half is not None and valley and valley.low and valley.high:
        ends = min(_exp(centre + at - half), valley.low), max(_exp(centre + at + half), valley.high)
    return Recommended(lr, *ends, loss, len(near), float(beyond.min()) if len(beyond) else None)


def _window(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The neighbours of the best trial up to the first whose loss rises by many times the lower quartile's rise."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    best = int(np.argmin(y))
    rises = np.sort(y - y[best])
    inside = y <= y[best] + QUARTILE * rises[max(len(rises) // 4, min(2, len(rises) - 1))]
    first = best - int(np.argmin(np.append(inside[:best][::-1], False)))
    last = best + int(np.argmin(np.append(inside[best:], False)))
    return x[first:last], y[first:last]


def _minimum(x: Floats, y: Floats, degree: int) -> _Minimum | None:
    """Of the least-squares polynomial; None if it has none inside the window, or too few trials."""
    n, freedom = len(x), len(x) - degree - 1
    if freedom < SPARE or np.ptp(x) == 0:
        return None
    design = np.vander(x, degree + 1, increasing=True)
    terms = np.linalg.lstsq(design, y, rcond=None)[0]
    residual = max(float(((y - design @ terms) ** 2).sum()), 1e-24)
    grid = np.linspace(x.min(), x.max(), STEPS + 1)
    values = np.polynomial.polynomial.polyval(grid, terms)
    lowest = int(np.argmin(values))
    slope, bend = (np.polynomial.polynomial.polyder(terms, order) for order in (1, 2))
    at = float(grid[lowest])
    curvature = float(np.polynomial.polynomial.polyval(at, bend))
    if lowest in (0, STEPS) or curvature <= 0:
        return None
    at -= float(np.polynomial.polynomial.polyval(at, slope)) / curvature  # a Newton step from the grid
    gradient = np.array([power * at ** max(power - 1, 0) for power in range(degree + 1)]) / curvature
    variance = float(gradient @ np.linalg.pinv(design.T @ design) @ gradient) * residual / freedom
    parameters = degree + 2  # and the noise
    correction = 2 * parameters * (parameters + 1) / max(n - parameters - 1, 1)
    aicc = n * math.log(residual / n) + 2 * parameters + correction
    return _Minimum(at, float(values[lowest]), variance, freedom, aicc)


def _average(minima: Sequence[_Minimum]) -> tuple[float, float, float]:
    """(where, half of the interval, loss), each weighted."""
    weights = np.exp(-0.5 * (np.array([one.aicc for one in minima]) - min(one.aicc for one in minima)))
    weights /= weights.sum()
    at, loss, freedom = (
        float(weights @ np.array([getattr(one, name) for one in minima])) for name in ("x", "loss", "freedom")
    )
    spread = float(weights @ np.array([one.variance + (one.x - at) ** 2 for one in minima]))
    return at, float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(spread), loss


def _exp(value: float) -> float:
    return math.exp(min(value, OVERFLOW))
