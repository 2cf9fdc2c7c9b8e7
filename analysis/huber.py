"""Minimise the SUM of Huber losses of log-loss residuals, by a damped Newton method with exact derivatives.

The sum matters: a mean over hundreds of rows, each of order 1e-5 with delta = 1e-3, is so small that the default
tolerances of common optimisers stop at the start; the published a = 0.4565 for Chinchilla came about that way
(Besiroglu et al. 2024, "Chinchilla Scaling: A replication attempt", arXiv:2404.10102).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DELTA = 1e-3  # Hoffmann et al. 2022, arXiv:2203.15556, appendix D.3
STAGES = (30.0, 5.0)  # multiples of delta that are solved first, roughly: the wide Huber zone leads to the narrow one
PRECISE = 1e-11  # stop when no step promises to lower the objective by more than this share


class Model(Protocol):
    """A parametric prediction of log loss, and what was observed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Free parameters, in the order of theta."""

    @property
    def lower(self) -> Floats:
        """Lower bounds of theta."""

    @property
    def upper(self) -> Floats:
        """Upper bounds of theta."""

    @property
    def target(self) -> Floats:
        """Observed log loss (rows,)."""

    def log_loss(self, theta: Floats) -> Floats:
        """Predicted log loss, (rows,)."""

    def slopes(self, theta: Floats) -> Floats:
        """Derivatives of log loss, (rows, parameters)."""

    def curvature(self, theta: Floats, pull: Floats) -> Floats:
        """Second derivatives of `pull @ log_loss(theta)`, (parameters, parameters)."""

    def natural(self, theta: Floats) -> dict[str, float]:
        """The parameters under their published names, fixed ones included."""


@dataclass(frozen=True)
class Solution:
    """Where a minimisation ended: parameters in the model's own coordinates, the summed objective."""

    theta: Floats
    objective: float
    converged: bool


def huber(residuals: Floats, delta: float) -> Floats:
    """r^2/2 within delta, delta (|r| - delta/2) beyond. Infinite delta gives least squares."""
    size = np.abs(residuals)
    if not np.isfinite(delta):
        return size**2 / 2
    return np.where(size <= delta, size**2 / 2, delta * (size - delta / 2))


def objective(model: Model, theta: Floats, delta: float, weights: Floats | None = None) -> float:
    """Sum over rows of weight times Huber loss of log predicted minus log observed."""
    losses = huber(model.log_loss(theta) - model.target, delta)
    total = float(losses.sum() if weights is None else weights @ losses)
    return total if np.isfinite(total) else np.inf


def minimise(model: Model, start: Floats, delta: float, weights: Floats, warm: bool = False) -> Solution:
    """The local minimum that `start` (parameters,) leads to, inside the model's bounds.

    `warm` says that `start` is near the minimum already, so that the wider Huber zones are not needed first.
    """
    theta = np.clip(start, model.lower, model.upper)
    if not warm and np.isfinite(delta):
        for wide in STAGES:
            theta = _newton(model, theta, wide * delta, weights, steps=25, precise=1e-4).theta
    return _newton(model, theta, delta, weights, steps=200, precise=PRECISE)


def _newton(model: Model, theta: Floats, delta: float, weights: Floats, steps: int, precise: float) -> Solution:
    value, damping = objective(model, theta, delta, weights), 1e-3
    for _ in range(steps):
        gradient, hessian, scale = _derivatives(model, theta, delta, weights)
        free = ~((theta <= model.lower) & (gradient > 0) | (theta >= model.upper) & (gradient < 0))
        if not free.any() or not np.isfinite(value):
            return Solution(theta, value, bool(np.isfinite(value)))
        step, better, promised = np.zeros_like(theta), np.inf, 0.0
        while damping < 1e12:
            step[free], promised = _step(gradient[free], hessian[np.ix_(free, free)], scale[free], damping)
            moved = np.clip(theta + step, model.lower, model.upper)
            better = objective(model, moved, delta, weights)
            if better < value or promised <= precise * value:
                break
            damping *= 5
        if not better < value:
            return Solution(theta, value, promised <= max(precise, 1e-8) * value or value < 1e-25)
        gain, theta, value = value - better, moved, better
        damping = max(damping / 8, 1e-12)
        if promised <= precise * value or (gain <= precise * value and damping < 1e-3) or value < 1e-25:
            return Solution(theta, value, True)
    return Solution(theta, value, False)


def _derivatives(model: Model, theta: Floats, delta: float, weights: Floats) -> tuple[Floats, Floats, Floats]:
    residuals, slopes = model.log_loss(theta) - model.target, model.slopes(theta)
    pull = weights * np.clip(residuals, -delta, delta)
    inside = weights * (np.abs(residuals) <= delta)
    hessian = (slopes * inside[:, None]).T @ slopes + model.curvature(theta, pull)
    # The scale of each parameter comes from the secant weights, which see rows outside the Huber zone as well.
    secant = weights * np.minimum(1.0, delta / np.maximum(np.abs(residuals), 1e-300))
    scale = np.einsum("np,n->p", slopes**2, secant)
    return slopes.T @ pull, hessian, np.maximum(scale, 1e-14 * scale.max() + 1e-300)


def _step(gradient: Floats, hessian: Floats, scale: Floats, damping: float) -> tuple[Floats, float]:
    """A damped Newton step with directions of negative curvature turned round, and the decrease it promises."""
    root = np.sqrt(scale)
    values, vectors = np.linalg.eigh(hessian / np.outer(root, root))
    turned = np.maximum(np.abs(values), 1e-14) + damping
    along = vectors.T @ (gradient / root)
    promised = float(np.sum(along**2 / turned) / 2)
    return -(vectors @ (along / turned)) / root, promised
