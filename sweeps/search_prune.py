"""Which trials are not worth going on with, from the losses of all of them at the same numbers of training tokens.

Nothing is remembered: each decision reads the runs' one timeline, so that what a killed attempt measured and a resumed
one measured otherwise cannot decide anything.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sweeps.spec import SweepError

PrunerName = Literal["none", "median", "asha", "hyperband"]
ETA = 3  # one of so many goes on
RUNGS = 3  # below the full budget: the first at 1 / ETA^RUNGS of it
FEWEST = 4  # other trials before a median means anything
WARMUP = 0.25  # of the budget, before the median looks


@dataclass(frozen=True)
class Curve:
    """What a trial has shown: {training tokens: validation loss}, of `budget` tokens; `live` while its run goes on."""

    number: int
    losses: Mapping[int, float]
    budget: int
    live: bool
    diverged: bool = False

    def at(self, tokens: int) -> float | None:
        """The first loss at or after so many tokens; infinite once diverged, None if not come so far."""
        later = [seen for seen in self.losses if seen >= tokens]
        if later:
            loss = self.losses[min(later)]
            return loss if math.isfinite(loss) else math.inf
        return math.inf if self.diverged else None


def check(name: str) -> PrunerName:
    """Typed; raises SweepError."""
    for known in get_args(PrunerName):
        if known == name:
            return known  # type: ignore[no-any-return]
    raise SweepError(f"--pruner is one of {', '.join(get_args(PrunerName))}, not {name!r}")


def hopeless(name: PrunerName, curves: Sequence[Curve]) -> list[int]:
    """Numbers of the live trials that should stop."""
    if name == "none":
        return []
    live = [curve for curve in curves if curve.live]
    if name == "median":
        return [curve.number for curve in live if _below_median(curve, curves)]
    if name == "asha":
        return [curve.number for curve in live if _below_rung(curve, curves, RUNGS)]
    found = []
    for curve in live:
        rivals = [other for other in curves if bracket(other.number) == bracket(curve.number)]
        if _below_rung(curve, rivals, RUNGS - bracket(curve.number)):
            found.append(curve.number)
    return found


def bracket(number: int) -> int:
    """Which of Hyperband's brackets a trial is in: they take turns, and bracket b skips the b lowest rungs, so that
    the last prunes nothing (Li et al. 2018, arXiv:1603.06560)."""
    return number % (RUNGS + 1)


def _below_median(curve: Curve, curves: Sequence[Curve]) -> bool:
    """Worse than the median of the others at the last tokens it came to (Golovin et al. 2017, section 3.2.2)."""
    tokens = max(curve.losses, default=0)
    if tokens < WARMUP * curve.budget:
        return False
    others = [loss for other in curves if other is not curve and (loss := other.at(tokens)) is not None]
    mine = curve.at(tokens)
    return mine is not None and len(others) >= FEWEST and mine > statistics.median(others)


def _below_rung(curve: Curve, curves: Sequence[Curve], rungs: int) -> bool:
    """Not in the best 1/eta of those that came to the last rung it came to (ASHA, Li et al. 2020, arXiv:1810.05934)."""
    budget = max(other.budget for other in curves)
    for rung in _rungs(budget, rungs):
        mine = curve.at(rung)
        if mine is not None:
            at_rung = sorted(loss for other in curves if (loss := other.at(rung)) is not None)
            return mine > at_rung[max(1, len(at_rung) // ETA) - 1]
    return False


def _rungs(budget: int, rungs: int) -> Iterator[int]:
    """Tokens at which trials are compared, the last first."""
    yield from (math.ceil(budget / ETA**k) for k in range(1, rungs + 1))
