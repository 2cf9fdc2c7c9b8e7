"""How the best learning rate moves with width, parameters and tokens: LR* = c width^p N^q D^r."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from analysis.huber import Floats
from analysis.infer import percentiles
from analysis.lr import LrError

RESAMPLES = 1000


@dataclass(frozen=True)
class Law:
    """ln LR* = ln(constant) + sum of exponent times ln feature. `student` are least squares intervals (None without a
    degree of freedom), `ci` percentiles of a bootstrap over configurations, None where too few resamples
    determine it."""

    constant: float
    exponents: dict[str, float]
    student: dict[str, tuple[float, float] | None]
    ci: dict[str, tuple[float, float] | None]
    configurations: int
    resamples: int
    covariance: Floats | None = field(default=None, repr=False)
    """Of (ln constant, exponents), with `configurations` minus their number degrees of freedom; None without any."""

    def at(self, features: Mapping[str, float]) -> float:
        """The learning rate that the law recommends."""
        return float(self.constant * np.prod([features[name] ** p for name, p in self.exponents.items()]))

    def interval_at(self, features: Mapping[str, float]) -> tuple[float, float] | None:
        """The 95 % t interval of the law's line there: what scatter of the optima says, not whether a power law holds
        that far. None without a degree of freedom."""
        if self.covariance is None:
            return None
        x = np.array([1.0, *(np.log(features[name]) for name in self.exponents)])
        wide = _t(self.configurations - len(x)) * float(np.sqrt(x @ self.covariance @ x))
        return self.at(features) * float(np.exp(-wide)), self.at(features) * float(np.exp(wide))


def law(features: Mapping[str, Floats], lrs: Floats, sds: Floats | None = None, seed: int = 0) -> Law:
    """Least squares of ln LR* (configurations,) on the logs of `features`, each (configurations,), by 1/sd^2 where
    standard errors of ln LR* are given. Raises LrError where the features do not determine the exponents."""
    names = [name for name, values in features.items() if np.ptp(np.log(values)) > 1e-9]
    if not names:
        raise LrError(
            f"{', '.join(features) or 'nothing'} does not vary between the configurations: there is no law to fit"
        )
    design = np.column_stack([np.ones(len(lrs)), *(np.log(features[name]) for name in names)])
    if np.linalg.matrix_rank(_scaled(design)) < design.shape[1]:
        raise LrError(f"{', '.join(names)} vary together or too few configurations: name fewer of them")
    weights = np.ones(len(lrs)) if sds is None else 1 / np.maximum(sds, 1e-3) ** 2
    found = _solve(design, np.log(lrs), weights)
    covariance = _covariance(design, np.log(lrs), weights, found)
    student = None if covariance is None else _student(covariance, found, len(lrs))
    draws = _draws(design, np.log(lrs), weights, seed)
    enough = len(draws) >= RESAMPLES // 2 and len(lrs) > design.shape[1]
    return Law(
        float(np.exp(found[0])),
        {name: float(p) for name, p in zip(names, found[1:], strict=True)},
        {name: student[i + 1] if student else None for i, name in enumerate(names)},
        {name: percentiles(draws[:, i + 1]) if enough else None for i, name in enumerate(names)},
        len(lrs),
        len(draws),
        covariance,
    )


def _scaled(design: Floats) -> Floats:
    spread = design[:, 1:] - design[:, 1:].mean(axis=0)
    return np.column_stack([design[:, 0], spread / np.maximum(np.abs(spread).max(axis=0), 1e-12)]).round(9)


def _solve(design: Floats, y: Floats, weights: Floats) -> Floats:
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0])


def _covariance(design: Floats, y: Floats, weights: Floats, found: Floats) -> Floats | None:
    freedom = len(y) - design.shape[1]
    if freedom < 1:
        return None
    spread = float(weights @ (y - design @ found) ** 2) / freedom
    return np.asarray(np.linalg.inv(design.T @ (design * weights[:, None])) * spread)


def _student(covariance: Floats, found: Floats, n: int) -> list[tuple[float, float]]:
    wide = _t(n - len(found)) * np.sqrt(np.diag(covariance))
    return [(float(p - w), float(p + w)) for p, w in zip(found, wide, strict=True)]


def _t(freedom: int) -> float:
    return float(stdtrit(freedom, 0.975))


def _draws(design: Floats, y: Floats, weights: Floats, seed: int) -> Floats:
    """Coefficients of resampled configurations (resamples, coefficients), those that determine them."""
    generator, draws = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        rows = generator.integers(0, len(y), len(y))
        if np.linalg.matrix_rank(_scaled(design[rows])) == design.shape[1]:
            draws.append(_solve(design[rows], y[rows], weights[rows]))
    return np.array(draws).reshape(len(draws), design.shape[1])
