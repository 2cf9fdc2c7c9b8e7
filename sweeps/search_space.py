"""What a search may try: checked against the config before anything starts, and told to Optuna."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from lmcore import auto
from lmcore.config import ConfigError, DataConfig, RunConfig, replace
from lmcore.corpus import DataError
from lmcore.data import DataInfo
from sweeps.plan import resolve
from sweeps.space import check_part, is_whole, points
from sweeps.spec import Choices, Overrides, Range, Search, SweepError

Prepare = Callable[[DataConfig], DataInfo]
MOST_PROBES = 2048  # combinations tried on the config; of more than that, this many drawn
FEW = 64  # whole numbers of a range that are all tried
MANY_TRIALS = 1000  # share the machine: one thread each


@dataclass(frozen=True)
class Space:
    """A checked search space. `base` has its data resolved; `parts` as in `Search.space`."""

    base: RunConfig
    info: DataInfo
    parts: Mapping[str, Range | Choices]
    prepare: Prepare
    resolved: tuple[str, ...] = ()  # what `auto` became and why

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The same in Optuna's terms."""
        return {key: self._distribution(key, part) for key, part in self.parts.items()}

    @cached_property
    def grid(self) -> dict[str, list[Any]]:
        """Every value of a grid, by key."""
        return {key: points(key, part) for key, part in self.parts.items()}

    @property
    def ranges(self) -> int:
        """How many keys take numbers from a range."""
        return sum(isinstance(part, Range) for part in self.parts.values())

    def config(self, params: Mapping[str, Any], seed: int = 0) -> RunConfig:
        """The run of some parameters, with `seed` added to the base's. Raises ConfigError, DataError."""
        return resolve(replace(self.base, {**params, "seed": self.base.seed + seed}), self.prepare)[0]

    def probes(self) -> Iterator[dict[str, Any]]:
        """Combinations of the ends and choices: all of them, or a random part of very many."""
        values = {key: self._ends(key, part) for key, part in self.parts.items()}
        if math.prod(map(len, values.values())) <= MOST_PROBES:
            yield from (dict(zip(values, one, strict=True)) for one in itertools.product(*values.values()))
            return
        dice = random.Random(0)
        for _ in range(MOST_PROBES):
            yield {key: dice.choice(some) for key, some in values.items()}

    def _distribution(self, key: str, part: Range | Choices) -> BaseDistribution:
        if isinstance(part, Choices):
            return CategoricalDistribution(list(part.values))
        if is_whole(key):
            return IntDistribution(int(part.low), int(part.high), log=part.log)
        return FloatDistribution(float(part.low), float(part.high), log=part.log)

    def _ends(self, key: str, part: Range | Choices) -> list[Any]:
        if isinstance(part, Choices):
            return list(part.values)
        if not is_whole(key):
            return [float(part.low), float(part.high)]
        low, high = int(part.low), int(part.high)
        return list(range(low, high + 1)) if high - low < FEW else [low, high]


def check(search: Search, overrides: Overrides, prepare: Prepare) -> Space:
    """The space of a search with `--set` applied. Raises SweepError naming the key and what would be right."""
    if not search.space:
        raise SweepError("the search space is empty: name a key, such as {'train.lr': Range(1e-4, 1e-2, log=True)}")
    for key, part in search.space.items():
        if key in overrides:
            raise SweepError(f"--set {key}: this is what the search varies; edit its space instead")
        check_part("search space", key, part)
    try:
        base, info = resolve(replace(search.base, overrides), prepare)
        bases, resolved = auto.resolve({"base": base}, at_once=MANY_TRIALS)
    except (ConfigError, DataError) as error:
        raise SweepError(f"base: {error}") from None
    space = Space(bases["base"], info, search.space, prepare, tuple(resolved))
    seen: dict[str, dict[str, Any]] = {}
    for params in space.probes():
        try:
            twin = seen.setdefault(space.config(params).run_id, params)
            if twin != params:
                raise ConfigError(f"it is the same run as {twin}")
        except (ConfigError, DataError) as error:
            told = ", ".join(f"{key}={value!r}" for key, value in params.items())
            raise SweepError(f"the space holds {told}, which cannot be: {error}") from None
    return space
