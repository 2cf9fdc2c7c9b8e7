"""What an experiment is: one question, its arms, and how to compare them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lmcore.config import RunConfig
from lmcore.resize import SizeName

Overrides = Mapping[str, Any]


class SweepError(ValueError):
    """A sweep that cannot be planned; the message says what to change."""


@dataclass(frozen=True)
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
    tolerance: float = 0.005
    multiple: int = 64
    arms: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.tolerance < 0 or self.multiple < 1:
            raise SweepError(f"match needs tolerance >= 0 and multiple >= 1, not {self.tolerance} and {self.multiple}")

    def covers(self, arm: str) -> bool:
        """Whether this arm is to cost what the baseline costs."""
        return self.arms is None or arm in self.arms


@dataclass(frozen=True)
class Sweep:
    """One question about the architecture and the runs that answer it.

    `arms` maps a name to dotted overrides of `base`; `scales` maps a name to overrides applied before the arm's,
    with the sweep's own keys `seeds` and `smallest_effect` allowed beside them. `smallest_effect` is the loss
    difference in nats below which two arms count as the same.
    """

    question: str
    arms: Mapping[str, Overrides]
    base: RunConfig = field(default_factory=RunConfig)
    baseline: str | None = None
    seeds: int = 3
    match: Match | None = None
    scales: Mapping[str, Overrides] = field(default_factory=dict)
    default_scale: str | None = None
    smallest_effect: float | None = None

    def __post_init__(self) -> None:
        if not self.arms:
            raise SweepError("a sweep needs at least one arm")
        if self.seeds < 1:
            raise SweepError(f"seeds must be at least 1, not {self.seeds}")
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
