"""How well a search finds the best learning rate: `python -m benchmarks.search [SEEDS]`.

Simulated losses over log LR with noise and a cliff beyond which runs diverge; the real study asks and is told, the
real fit recommends. Of each surface the true optimum, the cliff and the noise are drawn anew per seed.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.lr_curve import recommend
from lmcore.config import RunConfig
from lmcore.data import DataInfo
from sweeps.search_samplers import SamplerName
from sweeps.search_space import Space
from sweeps.search_study import Result, Trials, imagined
from sweeps.spec import Range

TRIALS = 24
INITIAL = 5.5  # nats, what a diverged trial is told
FACTOR = 1.3
Surface = Callable[[float], float]

# Rise over the lowest loss in nats, at x = ln(lr / best).
SURFACES: dict[str, Surface] = {
    "parabola": lambda x: 0.08 * x * x,
    "flat parabola": lambda x: 0.03 * x * x,
    "flattening": lambda x: 0.08 * x * x / (1 + 0.3 * abs(x)),
    "lopsided": lambda x: 0.06 * x * x / (1 + 0.15 * abs(x)) if x < 0 else 0.12 * x * x,
}


@dataclass(frozen=True)
class Found:
    """One search. Factors are between 1 and infinity; `late`: share of the later half of the trials that diverged."""

    factor: float
    luckiest: float
    covered: bool
    late: float


def searched(surface: Surface, noise: float, seed: int, sampler: SamplerName = "tpe") -> Found:
    """Search once, with a cliff 2.5 to 8 times above the best learning rate."""
    dice = np.random.default_rng(seed)
    best, cliff = (math.exp(dice.uniform(*np.log(ends))) for ends in ((3e-4, 3e-2), (2.5, 8)))
    info = DataInfo("simulated", "none", "none", 0, 0, 0, 1.0)
    space = Space(RunConfig(), info, {"train.lr": Range(1e-5, 1.0, log=True)}, lambda config: info)
    trials = Trials(imagined(), space, sampler, seed)
    lrs, losses = list[float](), list[float]()
    for _ in range(TRIALS):
        trial = trials.ask()
        lrs.append(trial.params["train.lr"])
        rise = surface(math.log(lrs[-1] / best))
        loss = math.nan if lrs[-1] > cliff * best else min(3 + rise, INITIAL) + float(dice.normal(0, noise))
        losses.append(loss)
        diverged = math.isnan(loss)
        trials.tell(trial, Result("simulated", INITIAL if diverged else min(loss, INITIAL), None, {}))
    fit = recommend(lrs, losses, INITIAL)
    covered = (fit.low or 0.0) <= best <= (fit.high or math.inf)
    late = float(np.mean(np.isnan(losses[TRIALS // 2 :])))
    return Found(_factor(fit.lr, best), _factor(lrs[int(np.nanargmin(losses))], best), covered, late)


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)


def main(seeds: int = 100) -> None:
    """A line per surface and noise."""
    print(f"{TRIALS} trials, {seeds} seeds: share of the recommended LR (of the luckiest trial's) within {FACTOR}")
    for name, surface in SURFACES.items():
        for noise in (0.01, 0.02):
            found = [searched(surface, noise, seed) for seed in range(seeds)]
            within = np.mean([one.factor <= FACTOR for one in found])
            lucky = np.mean([one.luckiest <= FACTOR for one in found])
            print(
                f"{name:>14}, noise {noise:.2f}: {within:.0%} ({lucky:.0%}), worst {max(o.factor for o in found):.2f}, "
                f"interval covers {np.mean([one.covered for one in found]):.0%}, "
                f"at most {max(o.late for o in found):.0%} of later trials diverge"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
