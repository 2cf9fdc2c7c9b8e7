import math
from typing import Any

import pytest

from analysis.lint import Finding
from analysis.stats import NoiseFloor, Sample
from analysis.verdict import Arm, Rules, Verdict, VerdictError, judge

BASE = {0: 3.00, 1: 3.01, 2: 2.99, 3: 3.005}


def shifted(by: float, name: str = "arm", **given: Any) -> Arm:
    jitter = {0: 0.001, 1: -0.001, 2: 0.0005, 3: -0.0005}
    return Arm(name, {seed: value + by + jitter[seed] for seed, value in BASE.items()}, **given)


def one(arm: Arm, base: Arm | None = None, **rules: Any) -> Verdict:
    return judge([base or Arm("base", BASE), arm], "base", Rules(**rules))[0]


@pytest.mark.parametrize(
    ("by", "rules", "word"),
    [
        (-0.05, {}, "better"),
        (+0.05, {}, "worse"),
        (-0.05, {"higher_better": True}, "worse"),
        (+0.05, {"higher_better": True}, "better"),
        (0.0002, {}, "inconclusive"),
        (0.0002, {"smallest_effect": 0.01}, "equivalent"),
        (0.0002, {"smallest_effect": 0.0005}, "inconclusive"),
        (-0.004, {"smallest_effect": 0.01}, "equivalent"),  # established, and established not to matter
        (-0.05, {"smallest_effect": 0.01}, "better"),
    ],
)
def test_words(by: float, rules: Any, word: str) -> None:
    assert one(shifted(by), **rules).word == word


def test_the_reason_says_how_many_more_seeds() -> None:
    verdict = one(shifted(0.0002), smallest_effect=0.0005)
    assert verdict.more_seeds is not None and verdict.more_seeds > 0
    assert f"needs {verdict.more_seeds} more seed" in verdict.reason and "80 % power" in verdict.reason


def test_holm_is_over_all_arms_that_can_be_judged() -> None:
    arms = [Arm("base", BASE), *(shifted(0.002 * i, f"a{i}") for i in range(3))]
    refused = Arm("no", BASE, refused=Finding("mixed_code", "error", "mixed code", "run it again"))
    with_refused, without = judge([*arms, refused], "base", Rules()), judge(arms, "base", Rules())
    assert [v.p_holm for v in with_refused[:3]] == [v.p_holm for v in without]
    assert without[2].p_holm == pytest.approx(3 * without[2].gap.p)
    assert with_refused[3].word == "invalid" and with_refused[3].reason == "mixed code; run it again"
    assert math.isnan(with_refused[3].p_holm)


def test_one_run_has_no_spread_unless_it_is_known() -> None:
    verdict = one(Arm("arm", {0: 2.5}), Arm("base", {0: 3.0}))
    assert verdict.word == "invalid" and "too few seeds: base 1, arm 1" in verdict.reason
    assert verdict.gap.estimate == -0.5 and verdict.to_json()["ci_low"] is None
    assert one(Arm("arm", {0: 2.5}), Arm("base", {0: 3.0}), floor=NoiseFloor(0.01, 20)).word == "better"


def test_divergence_is_counted_and_flatters_nobody() -> None:
    lucky = one(shifted(-0.05, diverged=1))
    assert (lucky.word, lucky.diverged, lucky.n) == ("inconclusive", 1, 4)
    assert "1 of 5 runs of arm diverged" in lucky.reason
    assert one(shifted(+0.05, diverged=1)).word == "worse"
    assert one(shifted(-0.05, diverged=1), Arm("base", BASE, diverged=1)).word == "better"
    assert one(shifted(0.0, diverged=1), smallest_effect=0.01).word == "inconclusive"
    assert one(shifted(+0.05), Arm("base", BASE, diverged=1)).word == "inconclusive"


def test_an_arm_that_always_diverges_is_worse_and_a_single_run_proves_nothing() -> None:
    assert one(Arm("arm", diverged=3)).word == "worse"
    assert one(Arm("arm", diverged=1)).word == "invalid"
    assert one(Arm("arm", diverged=3), Arm("base", BASE, diverged=1)).word == "invalid"
    assert one(shifted(0), Arm("base", diverged=3)).word == "invalid"


def test_published_means_are_judged_by_welch() -> None:
    base, arm = Arm("base", published=Sample(4, 1.997, 0.005**2)), Arm("arm", published=Sample(4, 1.942, 0.004**2))
    verdict = one(arm, base)
    assert verdict.word == "better" and verdict.gap.method == "Welch t"
    assert verdict.gap.error == pytest.approx(math.sqrt((0.005**2 + 0.004**2) / 4))


def test_values_without_any_spread_are_no_evidence() -> None:
    """Copies of one run: a point for an interval, and p = 0."""
    arms = [Arm(name, dict.fromkeys(range(3), value)) for name, value in (("base", 3.0), ("new", 2.0))]
    found = judge(arms, "base", Rules())[0]
    assert (found.word, "no spread" in found.reason) == ("invalid", True)
    assert judge(arms, "base", Rules(floor=NoiseFloor(0.01, 20)))[0].word == "better"
    gone = judge([Arm("base", {0: 3.0, 1: 3.1}), Arm("new")], "base", Rules())[0]
    assert (gone.to_json()["p"], gone.to_json()["effect"]) == (None, None)


def test_rounded_losses_that_differ_by_one_number_are_judged_by_their_spread() -> None:
    """3.02 - 3.01 and 3.00 - 2.99 are equal but for what subtracting leaves: paired, p would be 1e-28."""
    base, arm = {0: 3.00, 1: 3.02, 2: 3.01}, {0: 2.99, 1: 3.01, 2: 3.00}
    found = one(Arm("arm", arm), Arm("base", base))
    assert (found.word, found.gap.method) == ("inconclusive", "Welch t")
    assert found.gap.p == pytest.approx(0.2879, abs=1e-3)  # scipy.stats.ttest_ind(equal_var=False)
    flat = one(Arm("arm", dict.fromkeys(range(3), 2.93)), Arm("base", dict.fromkeys(range(3), 3.01)))
    assert (flat.word, "no spread" in flat.reason) == ("invalid", True)


def test_without_baseline() -> None:
    with pytest.raises(VerdictError, match="no arm 'x' to be the baseline; arms: base"):
        judge([Arm("base", BASE)], "x", Rules())


def test_identical_runs_are_equivalent_and_else_undecided() -> None:
    assert one(Arm("arm", BASE), smallest_effect=0.1).word == "equivalent"
    assert one(Arm("arm", BASE)).word == "inconclusive"
