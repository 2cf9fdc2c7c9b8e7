"""L(N, D, U): loss when U unique tokens are seen D / U times (Muennighoff et al. 2023, arXiv:2305.16264, section 3).

    L = E + A / N'^alpha + B / D'^beta
    D' = U + U R_D (1 - exp(-(D/U - 1) / R_D))          tokens, discounted for repetition
    N' = U_N + U_N R_N (1 - exp(-(N/U_N - 1) / R_N))    parameters beyond those that U tokens can use
    U_N = min(N, N_opt(U)),  N_opt(U) = G (G U)^(beta/alpha),  G = (alpha A / (beta B))^(1/(alpha + beta))

R_D and R_N (R_D*, R_N* in the paper) say how many repetitions count before their value has decayed by 1/e.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from analysis.huber import DELTA, Floats, minimise
from analysis.surface import PowerSum

DECAYS = ("R_D*", "R_N*")
RANGE = (1e-3, 1e7)  # where R_D and R_N may lie; at the ends repetition is worthless, or free
WIDTH = 1e-5  # of the central differences that give second derivatives
GRID = (0.3, 2.0, 10.0, 60.0, 1000.0)
FEWEST = 12  # rows without repetition from which a surface of their own is a better start than one of all rows


@dataclass(frozen=True)
class RepeatedData:
    """As `PowerSum`; `logs` holds log N (n), log D (d) and log U (u). All seven parameters are free but for those
    in `fixed` (natural names, R_D* and R_N* among them) and beta where it is `tied` to alpha."""

    form: str
    logs: Mapping[str, Floats]
    target: Floats
    fixed: Mapping[str, float] = field(default_factory=dict)
    tied: bool = False
    centre: tuple[float, ...] = ()

    @cached_property
    def base(self) -> PowerSum:
        """The surface of fresh data on the same rows, with the same ties."""
        fixed = {k: v for k, v in self.fixed.items() if k not in DECAYS}
        return PowerSum("nd", self.logs, self.target, fixed, self.tied, self.centre)

    @cached_property
    def natural_names(self) -> tuple[str, ...]:
        """E, A, B, alpha, beta, R_D*, R_N*."""
        return (*self.base.natural_names, *DECAYS)

    @cached_property
    def _free_decays(self) -> tuple[str, ...]:
        return tuple(name for name in DECAYS if name not in self.fixed)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The free natural parameters, in the order of theta."""
        return (*self.base.names, *self._free_decays)

    @cached_property
    def centres(self) -> Floats:
        """Mean log N and log D."""
        return self.base.centres

    @cached_property
    def lower(self) -> Floats:
        """Lower bounds of theta; R_D and R_N are in logs."""
        return np.append(self.base.lower, np.full(len(self._free_decays), np.log(RANGE[0])))

    @cached_property
    def upper(self) -> Floats:
        """Upper bounds of theta."""
        return np.append(self.base.upper, np.full(len(self._free_decays), np.log(RANGE[1])))

    def log_loss(self, theta: Floats) -> Floats:
        """Predicted log loss (rows,)."""
        return np.asarray(self.log_losses(theta[None])[0])

    def log_losses(self, thetas: Floats) -> Floats:
        """The same at several points: (points, parameters) to (points, rows)."""
        return self._both(thetas, slopes=False)[0]

    def slopes(self, theta: Floats) -> Floats:
        """Derivatives of log loss (rows, parameters)."""
        return np.asarray(self._both(theta[None])[1][0].T)

    def curvature(self, theta: Floats, pull: Floats) -> Floats:
        """Second derivatives of pull @ log loss, by central differences of exact first derivatives."""
        units = WIDTH * np.eye(len(theta))
        gradients = self._both(np.concatenate([theta + units, theta - units]))[1] @ pull
        second = (gradients[: len(theta)] - gradients[len(theta) :]) / (2 * WIDTH)
        return np.asarray((second + second.T) / 2)

    def _both(self, thetas: Floats, slopes: bool = True) -> tuple[Floats, Floats]:
        """Log loss and, where wanted, its derivatives at several points: (points, rows), (points, parameters, rows)."""
        base = len(self.base.names)
        matrix, shift = self.base.affine
        full = (thetas[:, :base] @ matrix.T + shift)[:, :, None]
        log_e, a, b, alpha, beta = (full[:, i] for i in range(5))
        decays = {name: np.exp(thetas[:, base + i, None]) for i, name in enumerate(self._free_decays)}
        r_d, r_n = (decays[name] if name in decays else np.array([[self.fixed[name]]]) for name in DECAYS)
        log_a, log_b = a + self.centres[0] * alpha, b + self.centres[1] * beta
        usable, by_base = self._usable(log_a, log_b, alpha, beta)
        log_n, log_d, log_u = self.logs["n"], self.logs["d"], self.logs["u"]
        scarce = usable < log_n
        worth_n, n_by_ratio, n_by_decay = _discount(np.where(scarce, log_n - usable, 0.0), r_n)
        worth_d, _, d_by_decay = _discount(np.maximum(log_d - log_u, 0.0), r_d)
        n_eff, d_eff = np.where(scarce, usable, log_n) + worth_n, np.minimum(log_d, log_u) + worth_d
        terms = np.stack(np.broadcast_arrays(log_e, log_a - alpha * n_eff, log_b - beta * d_eff))
        top = terms.max(axis=0)
        loss = top + np.log(np.exp(terms - top).sum(axis=0))
        if not slopes:
            return loss, np.empty(0)
        of_e, of_a, of_b = np.exp(terms - loss)
        # Slopes by (log E, log A, log B, alpha, beta), then by (log E, a, b, alpha, beta), then by what is free.
        by_n = -alpha * of_a * np.where(scarce, 1 - n_by_ratio, 0.0)
        slope_a, slope_b, slope_alpha, slope_beta = (by_n * slope for slope in by_base)
        slope_a, slope_b = slope_a + of_a, slope_b + of_b
        slope_alpha = slope_alpha - of_a * n_eff + self.centres[0] * slope_a
        slope_beta = slope_beta - of_b * d_eff + self.centres[1] * slope_b
        of_base = np.einsum("jp,kjn->kpn", matrix, np.stack([of_e, slope_a, slope_b, slope_alpha, slope_beta], axis=1))
        of_decay = {"R_D*": -beta * of_b * d_by_decay, "R_N*": -alpha * of_a * n_by_decay}
        return loss, np.concatenate([of_base, *(of_decay[name][:, None] for name in self._free_decays)], axis=1)

    def _usable(self, log_a: Floats, log_b: Floats, alpha: Floats, beta: Floats) -> tuple[Floats, tuple[Floats, ...]]:
        """log N_opt(U) and its slopes by log A, log B, alpha, beta; each (points, rows)."""
        both = alpha + beta
        log_g = (np.log(alpha / beta) + log_a - log_b) / both
        reach = log_g + self.logs["u"]
        by_g = 1 + beta / alpha
        by_alpha = by_g * (1 / alpha - log_g) / both - reach * beta / alpha**2
        by_beta = by_g * (-1 / beta - log_g) / both + reach / alpha
        return log_g + reach * beta / alpha, (by_g / both, -by_g / both, by_alpha, by_beta)

    def natural(self, theta: Floats) -> dict[str, float]:
        """E, A, B, alpha, beta, R_D*, R_N*."""
        base = len(self.base.names)
        decays = dict(zip(self._free_decays, np.exp(theta[base:]).tolist(), strict=True))
        known = {name: decays.get(name, self.fixed.get(name, np.nan)) for name in DECAYS}
        return self.base.natural(theta[:base]) | known

    def theta_of(self, values: Mapping[str, float]) -> Floats:
        """The free coordinates of natural `values`."""
        decays = [np.log(values[name]) for name in self._free_decays]
        return np.asarray(np.clip(np.append(self.base.theta_of(values), decays), self.lower, self.upper))

    def starts(self) -> list[Floats]:
        """The surface of the rows without repetition (of all, where those are few), crossed with a grid of decays."""
        once = self.logs["d"] <= self.logs["u"] + 1e-3
        rows = once if once.sum() >= FEWEST else np.ones_like(once)
        logs = {name: values[rows] for name, values in self.logs.items()}
        base = replace(self.base, logs=logs, target=self.target[rows], centre=tuple(self.centres))
        surface = base.starts()[0]
        if base.names:
            surface = minimise(base, surface, DELTA, np.ones(int(rows.sum()))).theta
        grid = itertools.product(GRID, repeat=len(self._free_decays))
        return [np.append(surface, np.log(point)) for point in grid]


def _discount(log_ratio: Floats, decay: Floats) -> tuple[Floats, Floats, Floats]:
    """log(1 + R (1 - exp(-(ratio - 1) / R))), the worth of `ratio` passes in units of the first, with its slopes by
    log ratio and by log R."""
    ratio = np.exp(np.minimum(log_ratio, 600.0))
    waned = np.exp(-(ratio - 1.0) / decay)
    fresh = -np.expm1(-(ratio - 1.0) / decay)
    worth = 1.0 + decay * fresh
    by_decay = decay * (fresh - (ratio - 1.0) / decay * waned) / worth
    return np.log(worth), waned * ratio / worth, by_decay
