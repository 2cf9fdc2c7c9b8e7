"""IsoFLOP profiles: the best N at each budget by parabola, Akima spline and fitted surface, and the exponents.

Parabola of loss in log N: Hoffmann et al. 2022 (arXiv:2203.15556), approach 2. Akima interpolation of log loss in
log N: Porian et al. 2024 (arXiv:2406.19146), section 3. A parabola is no power law: on a wide or off-centre grid its
vertex is not the optimum even without noise; `parabola_bias` computes that error from a surface.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import Akima1DInterpolator
from scipy.special import stdtrit

from analysis.allocate import allocate
from analysis.huber import Floats
from analysis.ladder import PER_PAIR

TOGETHER = float(np.log(1.1))  # budgets within 10 % are one profile
FINE = 4001  # points at which a spline is searched before refinement
NARROW, OFF_CENTRE = 4.0, 0.5  # N from smallest to largest; share of the half width
FEWEST = 4  # sizes, from which a parabola has something to disagree with


@dataclass(frozen=True)
class Profile:
    """One budget: mean log loss of each N, in order of N. Arrays are (sizes,); `spread` is that of log C in it."""

    flops: float
    log_n: Floats
    log_d: Floats
    log_loss: Floats
    spread: float

    @property
    def best(self) -> int:
        """Index of the lowest observed loss."""
        return int(np.argmin(self.log_loss))


@dataclass(frozen=True)
class Optimum:
    """Where a method puts the best N of one budget; None of it counts unless `interior`."""

    log_n: float
    log_d: float
    loss: float
    interior: bool
    sd: float | None = None


@dataclass(frozen=True)
class Line:
    """log y = intercept + slope log C by weighted least squares, with Student intervals."""

    slope: float
    slope_low: float
    slope_high: float
    intercept: float
    points: int
    log_c: Floats
    covariance: Floats

    def at(self, flops: float) -> tuple[float, float, float]:
        """(y, low, high) at C, 95 % interval of the line."""
        x = np.array([1.0, np.log(flops)])
        middle, sd = float(x @ [self.intercept, self.slope]), float(np.sqrt(x @ self.covariance @ x))
        wide = _student(self.points - 2) * sd
        low, high = (middle - wide, middle + wide) if np.isfinite(wide) else (-np.inf, np.inf)
        return float(np.exp(middle)), float(np.exp(low)), float(np.exp(min(high, 700.0)))


def _student(freedom: int) -> float:
    return float(stdtrit(freedom, 0.975)) if freedom > 0 else np.inf


def line(log_c: Floats, log_y: Floats, sd: Floats | None = None) -> Line | None:
    """Least squares of log y on log C, weighted by 1/sd^2 where sd (points,) is given; None below two budgets."""
    if len(log_c) < 2 or np.ptp(log_c) < 1e-9:
        return None
    weights = np.ones(len(log_c)) if sd is None else 1 / sd**2
    design = np.column_stack([np.ones(len(log_c)), log_c - log_c.mean()])
    inverse = np.linalg.inv(design.T @ (design * weights[:, None]))
    middle, slope = inverse @ design.T @ (weights * log_y)
    left = log_y - design @ [middle, slope]
    freedom = len(log_c) - 2
    spread = float(weights @ left**2) / freedom if freedom else np.nan
    turn = np.array([[1.0, -log_c.mean()], [0.0, 1.0]])  # from the centred line to the intercept at C = 1
    covariance = turn @ (inverse * spread) @ turn.T if freedom else np.full((2, 2), np.nan)
    wide = _student(freedom) * float(np.sqrt(covariance[1, 1])) if freedom else np.inf
    return Line(
        float(slope),
        float(slope - wide),
        float(slope + wide),
        float(middle - slope * log_c.mean()),
        len(log_c),
        log_c,
        covariance,
    )


def profiles(log_c: Floats, log_n: Floats, log_d: Floats, loss: Floats) -> list[Profile]:
    """Rows gathered into budgets, in order; rows of one budget and one N are averaged."""
    order, found = np.argsort(log_c, kind="stable"), list[list[int]]()
    for row in order:
        if found and log_c[row] - log_c[found[-1][0]] < TOGETHER:
            found[-1].append(int(row))
        else:
            found.append([int(row)])
    return [_profile(np.array(rows), log_c, log_n, log_d, loss) for rows in found]


def _profile(rows: Any, log_c: Floats, log_n: Floats, log_d: Floats, loss: Floats) -> Profile:
    which = np.unique(np.round(log_n[rows], 6), return_inverse=True)[1]
    sizes, tokens, losses = (np.bincount(which, v[rows]) / np.bincount(which) for v in (log_n, log_d, np.log(loss)))
    return Profile(float(np.exp(np.median(log_c[rows]))), sizes, tokens, losses, float(np.ptp(log_c[rows])))


def by_parabola(profile: Profile) -> Optimum | None:
    """The vertex of the least squares parabola of loss in log N, its sd by the delta method; None if it opens down."""
    found = vertex(profile.log_n, np.exp(profile.log_loss))
    if found is None:
        return None
    at, loss, sd = found
    return _optimum(profile, at, loss, sd)


def vertex(log_x: Floats, loss: Floats) -> tuple[float, float, float | None] | None:
    """(log x at the lowest point, loss there, sd of log x or None) of the parabola through the points."""
    if len(log_x) < 3:
        return None
    centre, scale = log_x.mean(), max(float(np.ptp(log_x)) / 2, 1e-9)
    design = np.vander((log_x - centre) / scale, 3)
    (c, b, a), *_ = np.linalg.lstsq(design, loss, rcond=None)
    if not c > 1e-14 * abs(a):
        return None
    at = -b / (2 * c)
    sd = None
    if (freedom := len(log_x) - 3) > 0:
        left = loss - design @ [c, b, a]
        slope = np.array([b / (2 * c**2), -1 / (2 * c), 0.0])
        sd = float(scale * np.sqrt(slope @ np.linalg.inv(design.T @ design) @ slope * (left @ left) / freedom))
    return float(centre + scale * at), float(a + b * at + c * at**2), sd


def by_akima(profile: Profile) -> Optimum | None:
    """The lowest point of the Akima spline of log loss in log N."""
    if len(profile.log_n) < 3:
        return None
    spline = Akima1DInterpolator(profile.log_n, profile.log_loss)
    fine = np.linspace(profile.log_n[0], profile.log_n[-1], FINE)
    at = int(np.argmin(spline(fine)))
    near = np.linspace(fine[max(at - 1, 0)], fine[min(at + 1, FINE - 1)], 401)
    x = float(near[np.argmin(spline(near))])
    found = _optimum(profile, x, float(np.exp(spline(x))), None)
    return Optimum(found.log_n, found.log_d, found.loss, 0 < at < FINE - 1)


def by_surface(profile: Profile, values: Mapping[str, float], per_pair: float) -> Optimum:
    """The optimum of the fitted surface at the profile's budget."""
    best = allocate(values, profile.flops, per_pair)
    return Optimum(float(np.log(best.n)), float(np.log(best.d)), float(best.loss), True)


def _optimum(profile: Profile, log_n: float, loss: float, sd: float | None) -> Optimum:
    log_d = float(np.interp(log_n, profile.log_n, profile.log_d))
    inside = bool(profile.log_n[0] < log_n < profile.log_n[-1])
    return Optimum(log_n, log_d, loss, inside, sd)


def parabola_bias(
    values: Mapping[str, float], grids: Sequence[tuple[float, Floats]], target: float, per_pair: float = PER_PAIR
) -> dict[str, float | None]:
    """What parabolas through noise-free losses of a surface get wrong on a grid: exponents, and N and D at `target`.

    `grids` holds (C, log N (sizes,)) per budget. Errors are in per cent of the surface's own optimum. A budget whose
    parabola opens downward is left out; with fewer than two all is None.
    """
    budgets, vertices = [], []
    for flops, log_n in grids:
        n, d = np.exp(log_n), flops / per_pair / np.exp(log_n)
        found = vertex(log_n, values["E"] + values["A"] / n ** values["alpha"] + values["B"] / d ** values["beta"])
        if found:
            budgets.append(np.log(flops))
            vertices.append(found[0])
    fitted = line(np.array(budgets), np.array(vertices))
    a = values["beta"] / (values["alpha"] + values["beta"])
    record: dict[str, float | None] = {"flops": target, "a_surface": a, "a_parabola": None}
    if fitted is None:
        return record | {"b_parabola": None, "n_error_pct": None, "d_error_pct": None}
    truth, extrapolated = allocate(values, target, per_pair), fitted.at(target)[0]
    errors = {
        "n_error_pct": float(100 * (extrapolated / truth.n - 1)),
        "d_error_pct": float(100 * (target / per_pair / extrapolated / truth.d - 1)),
    }
    return record | {"a_parabola": fitted.slope, "b_parabola": 1 - fitted.slope} | errors
