"""Sums of power laws: L(N, D) = E + A/N^alpha + B/D^beta (Hoffmann et al. 2022, arXiv:2203.15556, eq. 10) and
L(x) = E + A/x^alpha for x one of N, D, C.

Coordinates of the fit: theta holds log E, alpha, beta and the logs of A/N^alpha and B/D^beta at the mean log N and
log D of the rows (so that amplitudes and exponents are nearly uncorrelated); every coordinate of the full vector is an
affine function of the free ones, which is how exponents are tied and parameters fixed.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.optimize import nnls

from analysis.huber import Floats

EXPONENTS = (0.01, 4.0)  # where exponents may lie
TINY = 14.0  # log units below the smallest loss at which a term counts as absent
AMPLITUDES = {"alpha": "A", "beta": "B"}
VARIABLES = {"nd": ("n", "d"), "n": ("n",), "d": ("d",), "c": ("c",)}
GRID = {1: 40, 2: 15}  # exponents tried per axis, by the number of free exponents


@dataclass(frozen=True)
class PowerSum:
    """One of the forms of `VARIABLES` over given rows. `logs` holds log N (n), log D (d) or log C (c), each (rows,);
    `target` is log loss (rows,). `fixed` maps natural names (E, A, B, alpha, beta) to values; `tied` sets beta = alpha.
    `centre` is where amplitudes are anchored, the mean of `logs` unless given."""

    form: str
    logs: Mapping[str, Floats]
    target: Floats
    fixed: Mapping[str, float] = field(default_factory=dict)
    tied: bool = False
    centre: tuple[float, ...] = ()

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Keys of `logs` in the order of the terms."""
        return VARIABLES[self.form]

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """alpha, and beta where there are two variables."""
        return tuple(AMPLITUDES)[: len(self.variables)]

    @cached_property
    def natural_names(self) -> tuple[str, ...]:
        """E, A, (B,) alpha, (beta): the order of the full vector."""
        return ("E", *(AMPLITUDES[name] for name in self.exponents), *self.exponents)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The free natural parameters, in the order of theta."""
        gone = {*self.fixed, *(["beta"] if self.tied and len(self.exponents) > 1 else [])}
        return tuple(name for name in self.natural_names if name not in gone)

    @cached_property
    def centres(self) -> Floats:
        """Mean log of each variable (terms,)."""
        return np.array(self.centre or [self.logs[v].mean() for v in self.variables])

    @cached_property
    def lower(self) -> Floats:
        """Lower bounds of theta."""
        return self._bounds(float(self.target.min()) - TINY, EXPONENTS[0])

    @cached_property
    def upper(self) -> Floats:
        """Upper bounds of theta."""
        return self._bounds(float(self.target.max()) + 5.0, EXPONENTS[1])

    def _bounds(self, amplitude: float, exponent: float) -> Floats:
        return np.array([exponent if name in self.exponents else amplitude for name in self.names])

    @cached_property
    def affine(self) -> tuple[Floats, Floats]:
        """(M, m): full vector (log E, log amplitudes at the centre, exponents) = M theta + m."""
        matrix, shift = np.zeros((len(self.natural_names), len(self.names))), np.zeros(len(self.natural_names))
        row = {name: i for i, name in enumerate(self.natural_names)}
        for name in sorted(self.natural_names, key=lambda name: name not in self.exponents):  # exponents first
            if name in self.names:
                matrix[row[name], self.names.index(name)] = 1.0
            elif name in self.fixed:
                shift[row[name]] = self.fixed[name] if name in self.exponents else np.log(self.fixed[name])
            else:
                matrix[row[name]], shift[row[name]] = matrix[row["alpha"]], shift[row["alpha"]]
        for term, exponent in enumerate(self.exponents):
            if (amplitude := AMPLITUDES[exponent]) in self.fixed:  # known at x = 1, wanted at the centre
                matrix[row[amplitude]] -= self.centres[term] * matrix[row[exponent]]
                shift[row[amplitude]] -= self.centres[term] * shift[row[exponent]]
        return matrix, shift

    @cached_property
    def _design(self) -> tuple[Floats, Floats]:
        """(X, x0): logs of the terms, flat (terms * rows,), are X theta + x0."""
        rows, terms = len(self.target), len(self.variables)
        full = np.zeros((terms + 1, rows, len(self.natural_names)))
        full[0, :, 0] = 1.0
        for term, variable in enumerate(self.variables):
            full[term + 1, :, 1 + term] = 1.0
            full[term + 1, :, 1 + terms + term] = self.centres[term] - self.logs[variable]
        matrix, shift = self.affine
        flat = full.reshape(-1, len(self.natural_names))
        return flat @ matrix, flat @ shift

    def _shares(self, theta: Floats) -> tuple[Floats, Floats]:
        """(log loss (rows,), share of each term in it (terms, rows))."""
        design, shift = self._design
        terms = (design @ theta + shift).reshape(-1, len(self.target))
        top = terms.max(axis=0)
        parts = np.exp(terms - top)
        whole = parts.sum(axis=0)
        return np.asarray(top + np.log(whole)), np.asarray(parts / whole)

    def log_loss(self, theta: Floats) -> Floats:
        """Predicted log loss (rows,)."""
        return self._shares(theta)[0]

    def slopes(self, theta: Floats) -> Floats:
        """Derivatives of log loss (rows, parameters)."""
        shares = self._shares(theta)[1]
        weighted = self._design[0] * shares.reshape(-1, 1)
        return np.asarray(weighted.reshape(len(shares), -1, len(self.names)).sum(axis=0))

    def curvature(self, theta: Floats, pull: Floats) -> Floats:
        """Second derivatives of pull @ log loss: those of log-sum-exp of functions linear in theta."""
        design, slopes = self._design[0], self.slopes(theta)
        weights = (self._shares(theta)[1] * pull).reshape(-1, 1)
        return np.asarray((design * weights).T @ design - (slopes * pull[:, None]).T @ slopes)

    def natural(self, theta: Floats) -> dict[str, float]:
        """E, A, B, alpha, beta."""
        matrix, shift = self.affine
        full = dict(zip(self.natural_names, matrix @ theta + shift, strict=True))
        for term, exponent in enumerate(self.exponents):
            amplitude = AMPLITUDES[exponent]
            full[amplitude] = np.exp(min(full[amplitude] + self.centres[term] * full[exponent], 700.0))
        return {name: float(v) for name, v in full.items()} | {"E": float(np.exp(full["E"]))}

    def theta_of(self, values: Mapping[str, float]) -> Floats:
        """The free coordinates of natural `values`."""
        theta = {name: values[name] if name in self.exponents else np.log(values[name]) for name in self.names}
        for term, exponent in enumerate(self.exponents):
            if (amplitude := AMPLITUDES[exponent]) in theta:
                theta[amplitude] -= self.centres[term] * values[exponent]
        return np.asarray(np.clip([theta[name] for name in self.names], self.lower, self.upper))

    def starts(self) -> list[Floats]:
        """Starts by variable projection, best first: at each point of a grid of exponents E, A, B are the non-negative
        least squares solution of the relative error (Golub & Pereyra 1973)."""
        free = [name for name in self.exponents if name in self.names]
        axis = np.geomspace(0.05, 1.6, GRID.get(len(free), 1))
        found = [
            self._projected(dict(zip(free, point, strict=True))) for point in itertools.product(axis, repeat=len(free))
        ]
        return [theta for _, theta in sorted(found, key=lambda pair: pair[0])]

    def _projected(self, exponents: dict[str, float]) -> tuple[float, Floats]:
        known = {**exponents, **{k: v for k, v in self.fixed.items() if k in self.exponents}}
        known.setdefault("beta", known["alpha"])
        columns = {"E": np.exp(-self.target)}
        for term, exponent in enumerate(self.exponents):
            offset = self.logs[self.variables[term]] - self.centres[term]
            columns[AMPLITUDES[exponent]] = np.exp(-known[exponent] * offset - self.target)
        wanted, free = np.ones(len(self.target)), [name for name in columns if name in self.names]
        for name, column in columns.items():
            if name not in free:
                wanted = wanted - self._at_centre(name, known) * column
        if not free:
            return float(np.abs(wanted).sum()), self._theta({}, exponents)
        amounts, _ = nnls(np.column_stack([columns[name] for name in free]), wanted)
        left = wanted - np.column_stack([columns[name] for name in free]) @ amounts
        return float(np.abs(left).sum()), self._theta(dict(zip(free, amounts, strict=True)), exponents)

    def _at_centre(self, name: str, exponents: Mapping[str, float]) -> float:
        if name == "E":
            return self.fixed["E"]
        term = list(AMPLITUDES.values()).index(name)
        return float(self.fixed[name] * np.exp(-exponents[self.exponents[term]] * self.centres[term]))

    def _theta(self, amounts: Mapping[str, float], exponents: Mapping[str, float]) -> Floats:
        floor = 1e-3 * float(np.exp(self.target.min()))  # a term that NNLS left out may still come back
        logs = {name: np.log(max(value, floor)) for name, value in amounts.items()}
        theta = np.array([{**logs, **exponents}[name] for name in self.names])
        return np.asarray(np.clip(theta, self.lower, self.upper))
