"""The best learning rate of a sweep, how much a wrong one costs, and how the best one moves with size.

`optimum` fits a parabola in log LR to the points near the lowest loss. Its interval is Fieller's (1954): all vertices
that the data cannot tell from the best one; it may be open, where a delta-method interval would pretend not to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtrit

from analysis.huber import Floats

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
LEVEL = 0.95
FEWEST = 5  # learning rates kept around the minimum while there are as many
STEEPER = 4.0  # how much steeper than the left side the right side of a valley may be
QUARTILE = 16.0  # a parabola rises by that many times its lower-quartile rise over its whole width; a cliff by more
CUBIC = 0.05  # the window shrinks while a cubic term is significant at this level
SAME = 1e-6  # log distance within which two learning rates are one


class LrError(ValueError):
    """Losses over learning rates that say nothing about an optimum."""


@dataclass(frozen=True)
class LrOptimum:
    """`lr` is the vertex of the parabola, kept inside the stable rates; `low`, `high` its 95 % interval, None at an end
    that the data does not bound. `interior`: the lowest mean loss and the vertex lie strictly inside the tested rates.
    `at_cliff`: the next higher tested rate diverged, or lies on a wall. `loss` is the parabola there in nats;
    `best_tested` the tested rate of lowest mean loss; `used` the number of rates behind the parabola; `curvature`
    d2 loss / d(ln lr)2 (0 where no parabola opens upward); `sd_log` the standard error of ln lr by the delta method,
    None without any degree of freedom."""

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
    window = _window(grid, means, x, y, which, keep)
    return _vertex(grid, means, x, y, keep & window[which], window)


def _distinct(x: Floats) -> tuple[Floats, Indices]:
    """(sorted distinct values, index of each x among them)."""
    order = np.argsort(x)
    number = np.concatenate([[0], np.cumsum(np.diff(x[order]) > SAME)])
    which = np.empty(len(x), dtype=np.intp)
    which[order] = number
    return np.bincount(which, x) / np.bincount(which), which


def _window(grid: Floats, means: Floats, x: Floats, y: Floats, which: Indices, keep: Mask) -> Mask:
    """Which learning rates a parabola may describe (rates,): a contiguous run around the best."""
    best = int(np.argmin(means))
    left, right = best, best
    limit, wall = _limit(means, best), _wall(grid, means, best)
    while left > 0 and means[left - 1] <= limit:
        left -= 1
    while right < len(grid) - 1 and means[right + 1] <= min(limit, wall[right + 1]):
        right += 1
    left, right = _at_least(means, wall, left, right)
    while right - left + 1 > FEWEST:
        inside = keep & (which >= left) & (which <= right)
        if not _cubic_shows(x[inside], y[inside]):
            break
        if means[left] >= means[right]:
            left += 1
        else:
            right -= 1
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


def _cubic_shows(x: Floats, y: Floats) -> bool:
    """Whether a cubic term is significant beside a parabola; exact data has no noise to hide it."""
    freedom = len(x) - 4
    if freedom < 1:
        return False
    centred = (x - x.mean()) / max(float(np.ptp(x)), SAME)
    left = [_residual(np.vander(centred, terms), y) for terms in (3, 4)]
    if left[0] < 1e-20:
        return False
    ratio = (left[0] - left[1]) / max(left[1] / freedom, 1e-300)
    return bool(fdtrc(1, freedom, ratio) < CUBIC)


def _residual(design: Floats, y: Floats) -> float:
    found = np.linalg.lstsq(design, y, rcond=None)[0]
    return float(((y - design @ found) ** 2).sum())


def _vertex(grid: Floats, means: Floats, x: Floats, y: Floats, use: Mask, window: Mask) -> LrOptimum:
    best, last, used = int(np.argmin(means)), int(np.flatnonzero(window)[-1]), int(window.sum())
    # A rate beyond the window whose loss the parabola cannot explain bounds the optimum as a divergence does.
    cliff = last == best and best + 1 < len(grid)
    tested = float(np.exp(grid[best]))
    inside = 0 < best < len(grid) - 1
    nothing = LrOptimum(tested, None, None, False, cliff, float(means[best]), tested, used, 0.0, None)
    if used < 3:
        return nothing
    centre = float(grid[best])
    design = np.vander(x[use] - centre, 3, increasing=True)
    a, b, c = np.linalg.lstsq(design, y[use], rcond=None)[0]
    if not c > 0:
        return nothing
    freedom = int(use.sum()) - 3
    spread = _residual(design, y[use]) / freedom if freedom else np.nan
    covariance = np.asarray(np.linalg.inv(design.T @ design) * spread, dtype=np.float64)
    low, high = _fieller(b, c, covariance, freedom)
    free = -b / (2 * c)
    at = float(np.clip(free, grid[0] - centre, grid[last] - centre))
    slope = np.array([0.0, -1 / (2 * c), b / (2 * c**2)])
    return LrOptimum(
        float(np.exp(centre + at)),
        None if low is None else float(np.exp(centre + low)),
        None if high is None else float(np.exp(min(centre + high, 700.0))),
        bool(inside and grid[0] < centre + free < grid[-1]),
        cliff,
        float(a + b * at + c * at**2),
        tested,
        used,
        float(2 * c),
        float(np.sqrt(slope @ covariance @ slope)) if freedom else None,
    )


def _fieller(b: float, c: float, covariance: Floats, freedom: int) -> tuple[float | None, float | None]:
    """All v with (b + 2 c v)^2 <= t^2 Var(b + 2 c v), or open ends."""
    if freedom < 1:
        return None, None
    t2 = float(stdtrit(freedom, (1 + LEVEL) / 2)) ** 2
    square = 4 * (c**2 - t2 * covariance[2, 2])
    linear = 4 * (b * c - t2 * covariance[1, 2])
    constant = b**2 - t2 * covariance[1, 1]
    inside = linear**2 - 4 * square * constant
    if square <= 0 or inside < 0:
        return None, None
    wide = np.sqrt(inside)
    return float((-linear - wide) / (2 * square)), float((-linear + wide) / (2 * square))


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
    et al. 2023, arXiv:2309.14322, section 2.2). Without an initial loss, runs that diverged raise LrError."""
    x, y = np.log(np.asarray(lrs, dtype=float)), np.asarray(losses, dtype=float)
    bad = ~np.isfinite(y) if initial_loss is None else ~(y < initial_loss)
    if bad.any() and initial_loss is None:
        raise LrError(
            f"{int(bad.sum())} runs diverged: their loss counts as the loss at initialisation (--initial-loss)"
        )
    grid, which = _distinct(x)
    clipped = np.where(bad, np.inf if initial_loss is None else initial_loss, y)
    means = np.bincount(which, clipped) / np.bincount(which)
    rises = means - means.min()
    whole = float(np.ptp(grid))
    integral = float(np.trapezoid(rises, grid) / whole) if whole > 0 else 0.0
    return Sensitivity(
        float(rises.mean()), integral, len(grid), int(bad.sum()), float(np.exp(grid[0])), float(np.exp(grid[-1]))
    )
