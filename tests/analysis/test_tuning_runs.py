"""What tuning proves and what makes it worthless, and that the planner and the verdict mean the same by the best."""

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from analysis.tuning import best_rate
from analysis.tuning_runs import TuningRuns, joined
from analysis.verdict import Arm
from sweeps.tune import best

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def tried(best: float, rates: tuple[float, ...] = RATES, seeds: int = 2, noise: float = 0.001) -> dict[Any, Arm]:
    """A parabola in log2 of the rate with its minimum at `best`."""
    return {
        (lr,): Arm("", {s: 2 + 0.1 * math.log2(lr / best) ** 2 + noise * math.cos(9 * s + lr) for s in range(seeds)})
        for lr in rates
    }


def found(arms: Mapping[str, Mapping[Any, Arm]], **at: float) -> str:
    """The refusal of arm b against arm a at these rates; "" if it may be compared."""
    tuned = TuningRuns({"train.lr": True}, arms)
    configs = {arm: {"train.lr": at.get(arm, tuned.best(arm)["train.lr"])} for arm in arms}
    finding = tuned.refusal("b", "a", configs) or tuned.refusal("a", "a", configs)
    return finding.reason if finding else ""


def test_arms_of_equal_effort_inside_their_grids_may_be_compared() -> None:
    assert found({"a": tried(2e-3), "b": tried(8e-3)}) == ""


BAD: list[tuple[dict[str, Any], dict[str, float], str]] = [
    ({"b": tried(4e-3, RATES[:4])}, {}, "unequal tuning budget: b was tried at 4 settings in 8 runs, a at 5 in 10"),
    ({"b": tried(4e-3, seeds=1)}, {}, "b was tried at 5 settings in 5 runs, a at 5 in 10"),
    ({"b": tried(4e-3, tuple(2 * lr for lr in RATES))}, {}, "a at 5 in 10, not the same"),
    ({"b": tried(4e-3)}, {"b": 2e-3}, "b is at train.lr=0.002, its best was train.lr=0.004"),
    ({"b": tried(4e-3)}, {"a": 8e-3}, "a is at train.lr=0.008, its best was train.lr=0.004"),
    ({"b": tried(1e-4)}, {}, "LR at the edge of its grid: b is best at 0.001, the smallest of 5 tried"),
    ({"b": tried(1.0)}, {}, "b is best at 0.016, the largest of 5 tried"),
    ({"a": tried(1e-4), "b": tried(4e-3)}, {}, "LR at the edge of its grid: a is best at 0.001"),
]


@pytest.mark.parametrize(("arms", "at", "reason"), BAD)
def test_what_makes_a_comparison_invalid(arms: dict[str, Any], at: dict[str, float], reason: str) -> None:
    assert reason in found({"a": tried(4e-3)} | arms, **at)


def test_divergence_is_worst_and_unfinished_tuning_is_no_effort() -> None:
    lucky = tried(4e-3) | {(2e-3,): Arm("", {0: 1.0}, diverged=1)}
    tuned = TuningRuns({"train.lr": True}, {"a": lucky})
    assert tuned.best("a") == {"train.lr": 4e-3}
    assert found({"a": lucky, "b": tried(4e-3)}) == "", "a run that diverged was tried"
    waiting = tried(4e-3) | {(2e-3,): Arm("", {0: 2.2}, missing=1)}
    assert "in 9 runs" in found({"a": tried(4e-3), "b": waiting})


def test_an_arm_that_was_not_tuned_beside_one_that_was() -> None:
    both = joined({"A": TuningRuns({"train.lr": True}, {"x": tried(4e-3)}), "B": None})
    assert both is not None
    refused = both.refusal("B:y", "A:x", {"A:x": {"train.lr": 4e-3}, "B:y": {"train.lr": 4e-3}})
    assert refused is not None and "B:y was not tuned" in refused.reason
    assert joined({"A": None, "B": None}) is None


def test_sweeps_that_tuned_other_keys_are_not_equal_and_each_keeps_its_best() -> None:
    rates = TuningRuns({"train.lr": True}, {"x": tried(4e-3)}, {"x": 5_000_000})
    both_keys = {(wd, *point): arm for wd in (0.0, 0.1) for point, arm in tried(4e-3).items()}
    more = TuningRuns({"train.weight_decay": False, "train.lr": True}, {"y": both_keys, "z": both_keys})
    both = joined({"A": rates, "B": more})
    assert both is not None
    assert both.best("A:x") == {"train.lr": 4e-3}
    assert both.best("B:y") == {"train.lr": 4e-3, "train.weight_decay": 0.0}
    configs = {arm: {"train.lr": 4e-3, "train.weight_decay": 0.0} for arm in ("A:x", "B:y", "B:z")}
    assert both.refusal("A:x", "A:x", configs) is None
    assert both.refusal("B:z", "B:y", configs) is None
    refused = both.refusal("B:y", "A:x", configs)
    assert refused is not None and "B:y was tried at 10 settings in 20 runs, A:x at 5 in 10" in refused.reason
    assert both.sentence("A:x") == "A:x is best at train.lr=0.004 of 5 settings (10 runs, 5 M tokens)"


def test_switches_have_no_edge_and_numbers_are_named() -> None:
    arms = {
        arm: {(wd, clip): Arm("", {0: 2 + wd - clip}) for wd in (0.1, 0.2, 0.3) for clip in (0.0, 1.0)}
        for arm in ("a", "b")
    }
    config = {"train.weight_decay": 0.1, "train.clip": 1.0}
    tuned = TuningRuns({"train.weight_decay": True, "train.clip": False}, arms)
    refused = tuned.refusal("b", "a", {"a": config, "b": config})
    assert refused is not None and refused.reason.startswith("train.weight_decay at the edge of its grid")
    for bounds, refused_there in ({"train.weight_decay": ["low"]}, False), ({"train.weight_decay": ["high"]}, True):
        bounded = TuningRuns(tuned.keys, arms, bounds=bounds)
        assert bool(bounded.refusal("b", "a", {"a": config, "b": config})) is refused_there
    free = TuningRuns({"train.weight_decay": False, "train.clip": False}, arms)
    assert free.refusal("b", "a", {"a": config, "b": config}) is None


def test_the_sentence_says_where_the_curve_is_lowest() -> None:
    said = TuningRuns({"train.lr": True}, {"a": tried(3e-3)}, {"a": 5_000_000}, {"a": 5.0}).sentence("a")
    assert said is not None
    assert said.startswith("a is best at train.lr=0.002 of 5 settings (10 runs, 5 M tokens)") or "0.004" in said
    assert "the curve through them is lowest at 0.00" in said


def test_planner_and_verdict_choose_the_same_point() -> None:
    dice = random.Random(0)
    for _ in range(300):
        losses = {
            (lr, clip): [math.nan if dice.random() < 0.3 else dice.choice([1.0, 1.5, 2.0]) for _ in range(2)]
            for lr in dice.sample(RATES, 3)
            for clip in (0.5, 1.0)
        }
        arms = {
            point: Arm(
                "",
                {s: loss for s, loss in enumerate(some) if math.isfinite(loss)},
                diverged=sum(map(math.isnan, some)),
            )
            for point, some in sorted(losses.items())
        }
        assert best(losses) == best_rate(arms)
