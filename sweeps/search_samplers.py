"""How a search chooses: Optuna's samplers, seeded anew for each trial.

A trial's parameters are so a function of (seed, number of the trial, what was told before): two trials asked for at
the same time differ, and a controller that was killed continues as if it had not been.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from sweeps.search_space import Space
from sweeps.spec import SweepError

SamplerName = Literal["tpe", "random", "grid", "cmaes", "gp"]
STARTUP = 8  # random trials before tpe and gp begin to learn


class _Grid(GridSampler):
    """Optuna's ends a loop of its own with the last point; here nobody is in such a loop."""

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None: ...


def check(name: str, space: Space) -> SamplerName:
    """Typed; raises SweepError for what does not exist or cannot search this space."""
    for known in get_args(SamplerName):
        if known == name:
            if name == "cmaes" and space.ranges < 2:
                raise SweepError("cmaes needs two ranges of numbers or more; use tpe, gp or random")
            return known  # type: ignore[no-any-return]
    raise SweepError(f"--sampler is one of {', '.join(get_args(SamplerName))}, not {name!r}")


def sampler(name: SamplerName, space: Space, seed: int, number: int) -> BaseSampler:
    """The sampler that chooses trial `number` of a search."""
    own = trial_seed(seed, number)
    if name == "tpe":
        return TPESampler(seed=own, n_startup_trials=STARTUP, multivariate=len(space.parts) > 1, constant_liar=True)
    if name == "gp":
        return GPSampler(seed=own, n_startup_trials=STARTUP, deterministic_objective=False)
    if name == "cmaes":
        return CmaEsSampler(seed=own, warn_independent_sampling=False)
    if name == "grid":
        return _Grid(_plain(space), seed=seed)  # the seed orders the grid, so it is the same for all
    return RandomSampler(seed=own)


def trial_seed(seed: int, number: int) -> int:
    """32 bits that depend on both."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "little")


def _plain(space: Space) -> dict[str, Sequence[Any]]:
    return dict(space.grid)
