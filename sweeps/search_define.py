"""What `lab search` is asked for: checked and named before anything starts."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from lmcore import count, data
from lmcore.config import ConfigError
from lmcore.corpus import DataError
from lmcore.typed import short_hash
from results.home import Home
from sweeps import search_prune, search_samplers, search_space
from sweeps.load import Found, load_search
from sweeps.plan import PlannedRun
from sweeps.search_prune import PrunerName
from sweeps.search_samplers import SamplerName
from sweeps.search_space import Space
from sweeps.search_study import Trials, imagined
from sweeps.spec import Overrides, Search, SweepError


@dataclass(frozen=True)
class Definition:
    """What is searched and how; `search_id` names it, the number of trials does not matter to it."""

    found: Found[Search]
    space: Space
    sampler: SamplerName
    pruner: PrunerName
    seed: int
    overrides: Overrides

    @property
    def search_id(self) -> str:
        """12 hex digits."""
        how = {"sampler": self.sampler, "pruner": self.pruner, "seed": self.seed}
        return short_hash({"search": self.found.name, "base": self.space.base.identity(), "space": self._space()} | how)

    def describe(self, trials: int) -> dict[str, Any]:
        """As stored with the plan."""
        how = {"sampler": self.sampler, "pruner": self.pruner, "seed": self.seed, "trials": trials}
        return {"space": self._space(), "objective": "val_loss"} | how

    def _space(self) -> dict[str, Any]:
        parts = {key: dict(vars(part)) for key, part in self.space.parts.items()}
        return {key: {k: list(v) if k == "values" else v for k, v in part.items()} for key, part in parts.items()}


def define(name: str, sampler: str, pruner: str, seed: int, overrides: Overrides, home: Home) -> Definition:
    """Check everything that can be wrong before anything starts. Raises SweepError."""
    found = load_search(name)
    home.ensure()
    space = search_space.check(found.sweep, overrides, cache(lambda config: data.prepare(config, home.data)))
    chosen = search_prune.check(pruner)
    train = space.base.train
    if chosen != "none" and train.eval_every * search_prune.ETA > train.steps:
        raise SweepError(
            f"--pruner {chosen} needs evaluations on the way: train.eval_every is {train.eval_every} "
            f"of {train.steps} steps"
        )
    return Definition(found, space, search_samplers.check(sampler, space), chosen, seed, overrides)


def first_asks(definition: Definition, number: int) -> list[PlannedRun]:
    """The runs of so many trials asked for at once, nothing written."""
    trials = Trials(imagined(), definition.space, definition.sampler, definition.seed)
    runs = []
    for i in range(number):
        trial = trials.ask()
        try:
            config = definition.space.config(trial.params)
        except (ConfigError, DataError):
            continue
        runs.append(PlannedRun(f"trial {i}", config, definition.space.info, count.account(config), None))
    return runs
