"""What an experiment is: one question, its arms, and how to compare them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lmcore.config import RunConfig

Overrides = Mapping[str, Any]


class SweepError(ValueError):
    """A sweep that cannot be planned; the message says what to change."""


@dataclass(frozen=True)
class Match:
    """Solve d_ff of every arm so that it costs what the baseline costs.

    `by` is what must agree: all parameters, those outside the embeddings, or exact forward FLOPs at the context.
    Within `tolerance` (relative) or refused. d_ff is a multiple of the largest power of two up to `multiple` that comes
    within a fifth of the tolerance, or else the nearest number: a rounder width is not worth a bias between arms.
    """

    by: Literal["params", "params_non_embedding", "flops"] = "params"
    tolerance: float = 0.005
    multiple: int = 64


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
