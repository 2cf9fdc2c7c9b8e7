"""Where a valley has its lowest point: the posterior of the bottom of y = floor + depth |x - bottom|^p, with another
depth on each side, under normal noise.

Losses over log LR rise faster towards divergence than towards slow learning; a parabola through both sides puts its
vertex on the flat side and gives an interval that leaves the truth out. Here the shape is averaged over: the powers
`POWERS` (`LIKELY`), the log ratio of the two depths by a normal prior, floor, depth and noise integrated out (flat
priors, 1/sigma), the bottom anywhere between the smallest and the largest x.
"""

from dataclasses import dataclass

import numpy as np

from analysis.huber import Floats

POWERS, LIKELY = np.array([1.5, 2.0, 3.0]), np.array([0.25, 0.5, 0.25])
UNEVEN = 0.7  # prior standard deviation of the log ratio of the two depths: a factor 4 is at two of them
FARTHEST = 3.0  # standard deviations of it that are looked at
BOTTOMS, RATIOS = 61, 13  # grid points
ZOOMS = 12  # the grid narrows to where the posterior is, until it fills half of the grid
EXACT = 1e-15  # of the variance: residuals below that are rounding
TAIL = 5e-4  # posterior outside the narrowed grid, on each side


@dataclass(frozen=True)
class Valley:
    """`bottom` is the posterior median; `low`, `high` hold the middle of the posterior, None at an end of the data that
    holds more than the tail; `floor` is the y there and `curvature` d2y/dx2 near it, under the best shape."""

    bottom: float
    low: float | None
    high: float | None
    sd: float
    floor: float
    curvature: float


@dataclass(frozen=True)
class _Grid:
    """Posterior (bottoms, ratios, powers), not normalised, and the shape at its highest point."""

    bottoms: Floats
    ratios: Floats
    weight: Floats
    floor: float
    curvature: float


def valley(x: Floats, y: Floats, level: float) -> Valley:
    """The bottom of points (rows,), four or more of them at three or more x."""
    ends = float(x.min()), float(x.max())
    bottoms, ratios = ends, (-FARTHEST * UNEVEN, FARTHEST * UNEVEN)
    for _ in range(ZOOMS):
        grid = _posterior(x, y, bottoms, ratios)
        left, right = _middle(grid.weight.sum(axis=(1, 2)))
        lower, upper = _middle(grid.weight.sum(axis=(0, 2)))
        if right - left > BOTTOMS / 2 and upper - lower > RATIOS / 2:
            break
        bottoms = float(grid.bottoms[left]), float(grid.bottoms[right])
        ratios = float(grid.ratios[lower]), float(grid.ratios[upper])
    share = grid.weight.sum(axis=(1, 2))
    below = np.cumsum(share) / share.sum()
    tail = (1 - level) / 2
    low, middle, high = np.interp([tail, 0.5, 1 - tail], below - share / share.sum() / 2, grid.bottoms)
    mean = float(share @ grid.bottoms / share.sum())
    return Valley(
        float(middle),
        None if grid.bottoms[0] == ends[0] and below[0] > tail else float(low),
        None if grid.bottoms[-1] == ends[1] and 1 - below[-2] > tail else float(high),
        float(np.sqrt(share @ (grid.bottoms - mean) ** 2 / share.sum())),
        grid.floor,
        grid.curvature,
    )


def _middle(share: Floats) -> tuple[int, int]:
    """Indices around all but the tails."""
    below = np.cumsum(share) / share.sum()
    left, right = np.searchsorted(below, [TAIL, 1 - TAIL])
    return max(int(left) - 1, 0), min(int(right) + 1, len(share) - 1)


def _posterior(x: Floats, y: Floats, bottoms: tuple[float, float], ratios: tuple[float, float]) -> _Grid:
    at, log_ratio = np.linspace(*bottoms, BOTTOMS), np.linspace(*ratios, RATIOS)
    away = (x - at[:, None, None, None]) / np.ptp(x)
    rise = np.abs(away) ** POWERS[:, None] * np.exp(np.where(away < 0, -0.5, 0.5) * log_ratio[:, None, None])
    size = rise.mean(axis=-1)  # the prior of the depth is one of the mean rise of the rows
    spread, centred = rise / size[..., None] - 1, y - y.mean()
    square, along, whole = np.maximum((spread**2).sum(axis=-1), 1e-12), spread @ centred, float(centred @ centred)
    depth = np.maximum(along / square, 0.0)
    left = np.maximum(whole - depth * along, EXACT * max(whole, 1e-300))
    log_weight = -(len(x) - 2) / 2 * np.log(left) - np.log(square) / 2
    log_weight += np.log(LIKELY) - (log_ratio[:, None] / UNEVEN) ** 2 / 2
    best = np.unravel_index(int(np.argmax(log_weight)), log_weight.shape)
    # A power is no parabola: the curvature is that of the parabola with its rise at a quarter of the width, mean of
    # both sides.
    unit = 0.25 ** POWERS[best[2]] * np.cosh(log_ratio[best[1]] / 2)
    curvature = 2 * unit * depth[best] / size[best] / (np.ptp(x) / 4) ** 2
    weight = np.exp(log_weight - log_weight.max())
    return _Grid(at, log_ratio, weight, float(y.mean() - depth[best]), float(curvature))
