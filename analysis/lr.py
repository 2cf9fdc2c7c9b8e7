"""The best learning rate of a sweep, how much a wrong one costs, and how the best one moves with size.

`optimum` takes the points near the lowest loss and the posterior of the bottom of an uneven valley through them
(`analysis.valley`); its interval may be open, where the data ends before the valley rises.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.huber import Floats
from analysis.valley import Valley, valley

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
LEVEL = 0.95
STEEPER = 4.0  # how much steeper than the left side the right side of a valley may be
QUARTILE = 16.0  # a parabola rises by that many times its lower-quartile rise over its whole width; a cliff by more
SAME = 1e-6  # log distance within which two learning rates are one


class LrError(ValueError):
    """Losses over learning rates that say nothing about an optimum."""


@dataclass(frozen=True)
class LrOptimum:
    """`lr` is the bottom of the valley, inside the stable rates; `low`, `high` its 95 % interval, None at an end
    that the data does not bound. `interior`: the lowest mean loss and the bottom lie strictly inside the tested rates.
    `at_cliff`: the next higher tested rate diverged, or lies on a wall. `loss` is the valley's floor in nats;
    `best_tested` the tested rate of lowest mean loss; `used` the number of rates behind the valley; `curvature`
    d2 loss / d(ln lr)2 (0 where no valley opens upward); `sd_log` the standard deviation of ln lr, None where three
    runs or fewer leave nothing to judge it by."""

    lr: float
    low: float | None
    high: float | None
    interior: bool
    at_cliff: bool
    loss: float
    best_tested: float
    used: int
    curvature: float
    sd_log: float | None


def optimum(
    lrs: Sequence[float] | Floats, losses: Sequence[float] | Floats, initial_loss: float | None = None
) -> LrOptimum:
    """The learning rate of lowest loss from noisy trials; several losses of one rate (seeds) are welcome.

    A loss that is not finite, or not below `initial_loss`, is a divergence: it bounds the window from the right and
    enters nothing else. Raises LrError where fewer than two rates ended below that.
    """
    x, y = np.log(np.asarray(lrs, dtype=float)), np.asarray(losses, dtype=float)
    if len(x) != len(y) or not np.isfinite(x).all():
        raise LrError("learning rates must be positive numbers, one per loss")
    stable = np.isfinite(y) & (y < (np.inf if initial_loss is None else initial_loss))
    # A rate that diverges for most of its seeds is beyond the cliff for all of them.
    grid, which = _distinct(x)
    good = np.bincount(which, stable) > np.bincount(which) / 2
    if good.sum() < 2:
        raise LrError(f"{int(good.sum())} of {len(grid)} learning rates ended below the initial loss; it takes two")
    keep = stable & good[which]
    means = np.full(len(grid), np.inf)
    means[good] = (
        np.bincount(which[keep], y[keep], len(grid)) / np.maximum(np.bincount(which[keep], minlength=len(grid)), 1)
    )[good]
    window = _window(grid, means)
    rows = keep & window[which]
    return _bottom(grid, means, x[rows], y[rows], window)


def _distinct(x: Floats) -> tuple[Floats, Indices]:
    """(sorted distinct values, index of each x among them)."""
    order = np.argsort(x)
    number = np.concatenate([[0], np.cumsum(np.diff(x[order]) > SAME)])
    which = np.empty(len(x), dtype=np.intp)
    which[order] = number
    return np.bincount(which, x) / np.bincount(which), which


def _window(grid: Floats, means: Floats) -> Mask:
    """Which learning rates one valley may describe (rates,): a contiguous run around the best."""
    best = int(np.argmin(means))
    left, right = best, best
    limit, wall = _limit(means, best), _wall(grid, means, best)
    while left > 0 and means[left - 1] <= limit:
        left -= 1
    while right < len(grid) - 1 and means[right + 1] <= min(limit, wall[right + 1]):
        right += 1
    left, right = _at_least(means, wall, left, right)
    rates = np.arange(len(grid))
    return (rates >= left) & (rates <= right) & np.isfinite(means)


def _wall(grid: Floats, means: Floats, best: int) -> Floats:
    """The highest loss (rates,) that the slope on the left makes believable on the right; beyond it is a cliff."""
    distance, rises = grid - grid[best], means - means[best]
    left = (np.arange(len(grid)) < best) & np.isfinite(means)
    if not left.any():
        return np.full(len(grid), np.inf)
    curvature = float(np.median(rises[left] / distance[left] ** 2))
    step = float(np.median(np.diff(grid)))
    return np.asarray(means[best] + STEEPER * curvature * (np.maximum(distance, 0.0) + step) ** 2)


def _limit(means: Floats, best: int) -> float:
    """The highest loss that can still belong to the valley: many times the rise of its lower quartile."""
    rises = np.sort(means[np.isfinite(means)] - means[best])
    near = rises[max(len(rises) // 4, min(2, len(rises) - 1))]
    return float(means[best] + QUARTILE * near)


def _at_least(means: Floats, wall: Floats, left: int, right: int) -> tuple[int, int]:
    """Widened to three rates, towards the lower neighbour, where there are finite ones."""
    while right - left < 2:
        lower = means[left - 1] if left > 0 else np.inf
        higher = means[right + 1] if right < len(means) - 1 and means[right + 1] <= wall[right + 1] else np.inf
        if not np.isfinite(min(lower, higher)):
            break
        left, right = (left - 1, right) if lower <= higher else (left, right + 1)
    return left, right


def _bottom(grid: Floats, means: Floats, x: Floats, y: Floats, window: Mask) -> LrOptimum:
    """Of the runs (x, y) in the window."""
    best, used = int(np.argmin(means)), int(window.sum())
    first, last = np.flatnonzero(window)[[0, -1]]
    # A rate beyond the window whose loss the valley cannot explain bounds the optimum as a divergence does.
    cliff, inside, tested = bool(last == best < len(grid) - 1), 0 < best < len(grid) - 1, float(np.exp(grid[best]))
    found = _valley(x, y) if used >= 3 else None
    if found is None or not found.curvature > 0:
        return LrOptimum(tested, None, None, False, cliff, float(means[best]), tested, used, 0.0, None)
    # Beyond the window losses are too high to be near the optimum; beyond the tested rates nothing is known.
    low = found.low if found.low is not None else grid[first - 1] if first > 0 else None
    high = found.high if found.high is not None else grid[last + 1] if last + 1 < len(grid) else None
    edge = (best == 0 and low is None) or (best == len(grid) - 1 and high is None)
    known = np.isfinite(found.sd)
    return LrOptimum(
        tested if edge else float(np.exp(found.bottom)),
        None if low is None or not known else float(np.exp(low)),
        None if high is None or not known else float(np.exp(high)),
        inside,
        cliff,
        found.floor,
        tested,
        used,
        found.curvature,
        found.sd if known else None,
    )


def _valley(x: Floats, y: Floats) -> Valley | None:
    """Of three runs, which any parabola fits, its vertex without an interval; None where it opens downward."""
    if len(x) > 3:
        return valley(x, y, LEVEL)
    c, b, a = np.polyfit(x - x.mean(), y, 2)
    if not c > 0:
        return None
    at = float(np.clip(-b / (2 * c), *(np.array([x.min(), x.max()]) - x.mean())))
    return Valley(float(x.mean() + at), None, None, np.nan, float(a + b * at + c * at**2), float(2 * c))


@dataclass(frozen=True)
class Sensitivity:
    """`value` is the mean over the tested rates of min(loss, initial loss) minus the lowest of them, in nats (the mean
    of the seeds stands for a rate); `integral` the same with the trapezoid rule in log LR, for rates that are not
    evenly spaced. `clipped` counts runs replaced by the initial loss."""

    value: float
    integral: float
    rates: int
    clipped: int
    low: float
    high: float


def sensitivity(
    lrs: Sequence[float] | Floats, losses: Sequence[float] | Floats, initial_loss: float | None = None
) -> Sensitivity:
    """LR sensitivity: E over lr in [low, high] of min(loss(lr), loss at initialisation) minus the best loss (Wortsman
    et al. 2023, arXiv:2309.14322, section 2.2). Fewer than two rates, and runs that diverged without an initial loss,
    raise LrError."""
    x, y = np.log(np.asarray(lrs, dtype=float)), np.asarray(losses, dtype=float)
    bad = ~np.isfinite(y) if initial_loss is None else ~(y < initial_loss)
    if bad.any() and initial_loss is None:
        raise LrError(
            f"{int(bad.sum())} runs diverged: their loss counts as the loss at initialisation (--initial-loss)"
        )
    grid, which = _distinct(x)
    if len(grid) < 2:
        raise LrError("LR sensitivity needs runs at two rates or more")
    clipped = np.where(bad, np.inf if initial_loss is None else initial_loss, y)
    means = np.bincount(which, clipped) / np.bincount(which)
    rises = means - means.min()
    whole = float(np.ptp(grid))
    integral = float(np.trapezoid(rises, grid) / whole) if whole > 0 else 0.0
    return Sensitivity(
        float(rises.mean()), integral, len(grid), int(bad.sum()), float(np.exp(grid[0])), float(np.exp(grid[-1]))
    )
