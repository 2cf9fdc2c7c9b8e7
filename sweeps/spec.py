"""What an experiment is: one question, its arms, and how to compare them."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from lmcore.config import RunConfig
from lmcore.resize import SizeName

Overrides = Mapping[str, Any]
TUNING_SEED = 1_000_000  # added to the seed of a tuning run; a sweep has fewer seeds, so no verdict ever uses one
# Shown in tables and in log lines, so one line each.
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


class SweepError(ValueError):
    """A sweep that cannot be planned; the message says what to change."""


@dataclass(frozen=True, config=STRICT)
class Match:
    """Solve one size of every arm so that it costs what the baseline costs.

    `by` is what must agree: all parameters, those outside the embeddings, or at the context the exact forward FLOPs or
    the bytes of the KV cache (windows counted). Within `tolerance` (relative) or refused.

    `over` is the size that is free (`lmcore.resize` does it):
      d_ff     nothing else changes
      n_layer  kinds of layers go on in their pattern
      d_model  d_head stays; heads and d_ff keep their proportion to d_model, heads rounded to whole groups
      n_head   d_head stays, and the number of query heads that share a kv head; MQA keeps its one kv head

    d_ff and d_model are multiples of the largest power of two up to `multiple` that comes within a fifth of the
    tolerance, or else the nearest number: a rounder width is not worth a bias between arms.

    `arms` names those that are matched; the others stay as they are, at a cost of their own. None: all.
    """

    by: Literal["params", "params_non_embedding", "flops", "kv_bytes"] = "params"
    over: SizeName = "d_ff"
    tolerance: float = Field(default=0.005, ge=0, lt=1)
    multiple: int = Field(default=64, ge=1)
    arms: tuple[str, ...] | None = None

    def covers(self, arm: str) -> bool:
        """Whether this arm is to cost what the baseline costs."""
        return self.arms is None or arm in self.arms


@dataclass(frozen=True, config=STRICT)
class Range:
    """Numbers from `low` to `high`, both included, whole ones for a field of whole numbers; `log`: even in the
    logarithm. A grid takes `points` of them."""

    low: int | float
    high: int | float
    log: bool = False
    points: int = Field(default=5, ge=2)


@dataclass(frozen=True, config=STRICT)
class Choices:
    """Some values of one key."""

    values: Sequence[Any]


@dataclass(frozen=True, config=STRICT)
class Search:
    """One question about settings, answered by trials of low validation loss.

    `space` maps dotted keys of the config to what may be tried; everything else is as in `base`.
    """

    question: str
    space: Mapping[Name, Range | Choices]
    base: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True, config=STRICT)
class Tune:
    """Try the same settings on every arm, so that each stands in the verdict with its own best at equal effort.

    All combinations of `space` are run on `seeds` seeds that no verdict uses: of a `Range` its `points` (at least
    three), of `Choices` every value. The best is the combination of lowest mean validation loss among those that lost
    fewest runs. Where the best of any arm lies at an end of a range, the grid is widened there once, for all arms. The
    best of each arm is then run on the sweep's own seeds, and only those runs count. What has no inside is for
    `Choices`.
    """

    space: Mapping[Name, Range | Choices]
    seeds: int = Field(default=1, ge=1, le=1000)


@dataclass(frozen=True, config=STRICT)
class Sweep:
    """One question about the architecture and the runs that answer it.

    `arms` maps a name to dotted overrides of `base`; `scales` maps a name to overrides applied before the arm's,
    with the sweep's own keys `seeds`, `smallest_effect` and `tune` allowed beside them. `smallest_effect` is the loss
    difference in nats below which two arms count as the same.
    """

    question: str
    arms: Mapping[Name, Overrides]
    base: RunConfig = field(default_factory=RunConfig)
    baseline: str | None = None
    seeds: int = Field(default=3, ge=1, le=TUNING_SEED)
    match: Match | None = None
    scales: Mapping[Name, Overrides] = field(default_factory=dict)
    default_scale: str | None = None
    smallest_effect: float | None = None
    tune: Tune | None = None

    def __post_init__(self) -> None:
        if not self.arms:
            raise SweepError("a sweep needs at least one arm")
        for where, overrides in (*self.arms.items(), *self.scales.items()):
            if "seed" in overrides:
                raise SweepError(f"{where!r} sets seed: arms share their seeds, so that they can be compared in pairs")
        for scale, overrides in self.scales.items():
            seeds = overrides.get("seeds", 1)
            if type(seeds) is not int or seeds < 1:
                raise SweepError(f"scale {scale!r}: seeds must be a whole number of at least 1, not {seeds!r}")
            if not isinstance(overrides.get("tune"), Tune | None):
                raise SweepError(f"scale {scale!r}: tune must be a Tune or None, not {overrides['tune']!r}")
        for name, known, what in (
            (self.baseline, self.arms, "baseline"),
            (self.default_scale, self.scales, "default_scale"),
        ):
            if name is not None and name not in known:
                raise SweepError(f"{what} {name!r} is not one of {sorted(known)}")
        if self.match and self.baseline is None:
            raise SweepError("match needs a baseline: the arm whose cost the others must have")
        for name in (self.match and self.match.arms) or ():
            if name not in self.arms:
                raise SweepError(f"match.arms names {name!r}, which is not one of {sorted(self.arms)}")
