"""The compute-optimal split of a budget under a fitted surface, with intervals from its bootstrap.

Minimising E + A/N^alpha + B/D^beta under C = k N D gives N = G (C/k)^a, D = (C/k)^(1-a) / G with
G = (alpha A / (beta B))^(1/(alpha + beta)) and a = beta/(alpha + beta) (Hoffmann et al. 2022, eq. 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fit import Fit, FitError
from analysis.huber import Floats
from analysis.infer import Bootstrap, percentiles
from analysis.ladder import PER_PAIR


@dataclass(frozen=True)
class Allocation:
    """What a budget of C FLOPs buys: parameters, tokens, loss in nats. Scalars, or one value per draw."""

    n: Any
    d: Any
    loss: Any

    @property
    def ratio(self) -> Any:
        """Tokens per parameter."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return self.d / self.n


def allocate(values: Mapping[str, Any], budget: float, per_pair: float = PER_PAIR) -> Allocation:
    """The best N and D for `budget` FLOPs at natural parameters `values` (numbers or arrays of draws)."""
    a, b, alpha, beta = (values[name] for name in ("A", "B", "alpha", "beta"))
    share = beta / (alpha + beta)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # draws whose exponents ran off to their bounds
        g = np.exp((np.log(alpha * a) - np.log(beta * b)) / (alpha + beta))
        n, d = g * (budget / per_pair) ** share, (budget / per_pair) ** (1 - share) / g
        return Allocation(n, d, values["E"] + a / n**alpha + b / d**beta)


def allocation_record(
    fit: Fit, boot: Bootstrap | None, budget: float, per_pair: float, largest: float
) -> dict[str, Any]:
    """N, D, D/N and loss at a budget with 95 % intervals, and how many times the largest budget it is.

    Fits of one variable give the loss alone. Raises FitError for a fit in N or in D only.
    """
    record: dict[str, Any] = {"flops": budget, "times_largest": budget / largest}
    if "beta" not in fit.values:
        return record | _loss_at(fit, boot, budget)
    best = allocate(fit.values, budget, per_pair)
    draws = allocate(boot.draws, budget, per_pair) if boot and boot.done else None
    for name in ("n", "d", "ratio", "loss"):
        key = "d_per_n" if name == "ratio" else name
        record[key] = float(getattr(best, name))
        record[f"{key}_ci"] = percentiles(_finite(getattr(draws, name))) if draws else None
    return record


def _loss_at(fit: Fit, boot: Bootstrap | None, budget: float) -> dict[str, Any]:
    if fit.spec.form != "c":
        raise FitError("a budget needs a fit in C, or in N and D")
    draws = boot.draws if boot and boot.done else None
    loss = fit.values["E"] + fit.values["A"] / budget ** fit.values["alpha"]
    interval = percentiles(draws["E"] + draws["A"] / budget ** draws["alpha"]) if draws else None
    return {"loss": loss, "loss_ci": interval}


def _finite(draws: Floats) -> Floats:
    return draws[np.isfinite(draws)]
