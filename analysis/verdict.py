"""The word for each arm, and the rules that lead to it (docs/verdicts.md).

better, worse    the difference to the baseline is established, after Holm over all arms of the table
equivalent       the arms are established to be closer than the smallest difference that matters, also after Holm
inconclusive     neither; the reason says how many more seeds give 80 % power
invalid          the runs cannot answer, however many there are; the reason says what to mend
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any, Literal

from analysis.lint import Finding
from analysis.power import more_seeds
from analysis.stats import (
    Interval,
    NoiseFloor,
    Sample,
    SeedCorrelation,
    difference,
    floor_difference,
    holm,
    sample,
    welch,
)

Word = Literal["better", "worse", "equivalent", "inconclusive", "invalid"]
LEAST_SEEDS = 2  # without a noise floor: one run has no spread


class VerdictError(ValueError):
    """Nothing can be judged: no such baseline, an option that does not go with another."""


@dataclass(frozen=True)
class Rules:
    """What the whole table is judged by; `smallest_effect` in the unit of the values."""

    alpha: float = 0.05
    smallest_effect: float | None = None
    floor: NoiseFloor | None = None
    higher_better: bool = False


@dataclass(frozen=True)
class Arm:
    """Evidence about one arm: one finite value per seed, or a published mean, sd and n in their place."""

    name: str
    values: Mapping[Any, float] = field(default_factory=dict)
    published: Sample | None = None
    paired: bool = True  # whether equal keys of `values` mean the same seed in every arm
    diverged: int = 0  # runs whose value is not finite
    missing: int = 0  # planned runs without a value
    refused: Finding | None = None  # why this arm cannot be compared with the baseline

    @property
    def sample(self) -> Sample:
        """n, mean and variance."""
        return self.published or sample(list(self.values.values()))


@dataclass(frozen=True)
class Verdict:
    """One arm against the baseline. `gap` is arm minus baseline; p values are NaN where there is no test."""

    arm: str
    word: Word
    reason: str
    gap: Interval
    p_holm: float
    p_equivalent: float
    n: int
    diverged: int
    more_seeds: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Keys as in docs/verdicts.md; None where a number does not exist."""
        numbers = {
            "effect": self.gap.estimate,
            "ci_low": self.gap.low,
            "ci_high": self.gap.high,
            "p": self.gap.p,
            "p_holm": self.p_holm,
            "p_equivalent": self.p_equivalent,
        }
        clean = {key: None if isnan(value) else value for key, value in numbers.items()}
        counts = {"n": self.n, "diverged": self.diverged, "more_seeds": self.more_seeds, "method": self.gap.method}
        return {"arm": self.arm, "verdict": self.word, "reason": self.reason} | clean | counts


def judge(arms: Sequence[Arm], baseline: str, rules: Rules) -> list[Verdict]:
    """A verdict for every arm but the baseline, in their order. Raises VerdictError without such a baseline."""
    base = next((arm for arm in arms if arm.name == baseline), None)
    if base is None:
        raise VerdictError(f"no arm {baseline!r} to be the baseline; arms: {', '.join(arm.name for arm in arms)}")
    others = [arm for arm in arms if arm is not base]
    found = gaps(others, base, rules)
    tested = [gap.p if _refusal(arm, base, gap) is None else nan for arm, gap in zip(others, found, strict=True)]
    margin = rules.smallest_effect
    close = [nan if isnan(p) or not margin else gap.p_equivalent(margin) for p, gap in zip(tested, found, strict=True)]
    family = max(1, sum(not isnan(p) for p in tested))
    return [
        _verdict(arm, base, gap, p, q, rules, family)
        for arm, gap, p, q in zip(others, found, holm(tested), holm(close), strict=True)
    ]


def gaps(others: Sequence[Arm], base: Arm, rules: Rules) -> list[Interval]:
    """Arm minus baseline with its interval, each by the method that the table speaks for."""
    level = 1 - rules.alpha
    if rules.floor:
        return [floor_difference(arm.sample, base.sample, rules.floor, level) for arm in others]
    seeds = SeedCorrelation({arm.name: arm.values for arm in (base, *others) if arm.paired and not arm.published})
    return [
        difference(arm.values, base.values, seeds.without(arm.name, base.name), level)
        if arm.paired and base.paired and arm.values and base.values
        else welch(arm.sample, base.sample, level)
        for arm in others
    ]


def _verdict(
    arm: Arm, base: Arm, gap: Interval, p_holm: float, p_equivalent: float, rules: Rules, family: int
) -> Verdict:
    word, reason, more = _word(arm, base, gap, p_holm, p_equivalent, rules, family)
    return Verdict(arm.name, word, reason, gap, p_holm, p_equivalent, arm.sample.n, arm.diverged, more)


def _word(
    arm: Arm, base: Arm, gap: Interval, p_holm: float, p_equivalent: float, rules: Rules, family: int
) -> tuple[Word, str, int | None]:
    if _lost_all(arm, base):
        return "worse", f"all {arm.diverged} runs diverged, none of the baseline's did", None
    if refused := _refusal(arm, base, gap):
        return "invalid", f"{refused.reason}; {refused.remedy}", None
    if p_equivalent <= rules.alpha and not (arm.diverged or base.diverged):
        return "equivalent", f"less than {rules.smallest_effect:g} apart, p = {p_equivalent:.2g} after Holm", None
    if p_holm <= rules.alpha:
        word: Word = "better" if (gap.estimate > 0) == rules.higher_better else "worse"
        if flattered := _flattered(arm, base, word):
            return "inconclusive", flattered, None
        return word, f"p = {p_holm:.2g} after Holm", None
    more, words = _needs(gap, rules.alpha / family, rules.smallest_effect)
    return "inconclusive", words, more


def _needs(gap: Interval, alpha: float, smallest: float | None) -> tuple[int | None, str]:
    """How many more seeds would tell, for the declared smallest effect, or else for one as large as the one seen."""
    seen = abs(gap.estimate)
    more = more_seeds(gap, smallest or seen, alpha, smallest) if gap.error > 0 else None
    if more is None:
        return None, "no affordable number of seeds tells them apart at this spread"
    words = f"needs {_seeds(more)} for 80 % power to see {smallest or seen:.3g}"
    if smallest and seen > smallest and (fewer := more_seeds(gap, seen, alpha)) is not None:
        words += f" ({_seeds(fewer)} for one as large as seen)"
    return more, words


def _seeds(more: int) -> str:
    return f"{more} more {'seed' if more == 1 else 'seeds'}"


def _lost_all(arm: Arm, base: Arm) -> bool:
    """Two runs or more diverged, no other outcome, and the baseline has runs and lost none."""
    return arm.refused is None and arm.sample.n == 0 and arm.diverged > 1 and base.diverged == 0 and base.sample.n > 0


def _flattered(arm: Arm, base: Arm, word: Word) -> str | None:
    """Whether the side that looks better lost a larger share of its runs: the mean of the others flatters it."""
    good, other = (arm, base) if word == "better" else (base, arm)
    if _lost(good) <= _lost(other):
        return None
    runs = good.diverged + good.sample.n
    return f"{good.diverged} of {runs} runs of {good.name} diverged, and the mean of the others flatters it"


def _lost(arm: Arm) -> float:
    return arm.diverged / max(1, arm.diverged + arm.sample.n)


def _refusal(arm: Arm, base: Arm, gap: Interval) -> Finding | None:
    """Why there is no verdict about this arm, or None."""
    if base.refused or arm.refused:
        return base.refused or arm.refused
    for one in (base, arm):
        if one.sample.n == 0:
            lost = f" ({one.diverged} diverged)" if one.diverged else ""
            return Finding("too_few_seeds", "error", f"too few seeds: {one.name} has no finite value{lost}", "run it")
    if gap.exists and gap.error == 0 and arm.sample.variance == 0 == base.sample.variance:
        reason = f"no spread: all values of {arm.name} are the same, and all of {base.name}"
        return Finding("no_spread", "error", reason, "run other seeds, or give a noise floor (--sd, --sd-df)")
    if gap.exists:
        return None
    few = ", ".join(f"{one.name} {one.sample.n}" for one in (base, arm) if one.sample.n < LEAST_SEEDS)
    remedy = "run at least 3 seeds per arm, or give a noise floor known from elsewhere (--sd, --sd-df)"
    return Finding("too_few_seeds", "error", f"too few seeds: {few or gap.n}", remedy)
