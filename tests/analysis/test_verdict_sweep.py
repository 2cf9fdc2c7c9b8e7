"""Verdicts about plans: the unit, what makes an arm invalid, and what stands beside the word."""

import json
import math
from typing import Any

import pytest

from analysis.select import Plan, resolve_plan
from analysis.stats import NoiseFloor
from analysis.table import summary, verdict_json
from analysis.verdict_sweep import Judged, judge_plan
from tests.analysis.synthetic import FFN, Arm, Builder


def judged(arms: list[Arm], change: str = "", **given: Any) -> Judged:
    builder = Builder().plan(arms, **given)
    if change:
        builder.con.execute(change)
    try:
        return judge_plan(builder.con, resolve_plan(builder.con, "ffn_ablation"))
    finally:
        builder.con.close()


def reason(found: Judged, arm: str = "b") -> str:
    verdict = found.verdicts[arm]
    return f"{verdict.word}: {verdict.reason}"


def test_the_json_has_the_promised_keys_and_the_costs(con: Any, plan: Plan) -> None:
    answer = verdict_json(con, plan, judge_plan(con, plan))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert (answer["baseline"], answer["unit"]) == ("relu", "nats per token")
    keys = {"arm", "verdict", "reason", "effect", "ci_low", "ci_high", "p_holm", "n", "diverged"}
    costs = {"params", "train_flops", "kv_bytes_per_token", "step_s", "tokens_per_s", "peak_memory_bytes",
             "match_residual", "compute_gain"}  # fmt: skip
    assert all(keys | costs <= set(arm) for arm in answer["arms"])
    swiglu = answer["arms"][2]
    assert (swiglu["arm"], swiglu["verdict"]) == ("swiglu", "better")
    assert swiglu["effect"] == pytest.approx(FFN["swiglu"])
    assert swiglu["effect_bits_per_byte"] == pytest.approx(FFN["swiglu"] / math.log(2))
    assert swiglu["effect_percent"] == pytest.approx(100 * FFN["swiglu"] / 1.5517, rel=1e-3)
    assert swiglu["compute_gain"] > 1 and swiglu["step_s"] == pytest.approx(0.05 * 1.02)


def test_gain_is_none_with_a_reason_where_there_is_no_curve(con: Any, trouble: Plan) -> None:
    rows = {row["arm"]: row for row in summary(con, trouble)}
    assert rows["silu"]["compute_gain"] is None and rows["silu"]["compute_gain_reason"]


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ([Arm("a"), Arm("b", ffn="gelu", code_hash="c0de00000002")], "invalid: mixed code"),
        ([Arm("a", code_hash="c0de00000002"), Arm("b", ffn="gelu")], "invalid: mixed code"),
        ([Arm("a"), Arm("b", ffn="gelu", fingerprint="x")], "invalid: mixed data"),
        ([Arm("a"), Arm("b", ffn="gelu", residual=0.02)], "invalid: arms not matched: b +2.00%"),
        ([Arm("a"), Arm("b", -0.05, ffn="gelu", lr=2e-3)], "invalid: unequal tuning budget: b also changes"),
        ([Arm("a"), Arm("b", -0.05, lr=2e-3)], "better"),  # the learning rate is what it asks
        (
            [Arm("a"), Arm("b", -0.05, ffn="gelu"), Arm("c", ffn="gelu", lr=2e-3)],
            "invalid: unequal tuning budget: b was tried at 2",
        ),
    ],
)
def test_what_cannot_be_compared_is_invalid(arms: list[Arm], words: str) -> None:
    assert reason(judged(arms)).startswith(words)


def test_more_training_beside_another_change_is_invalid_and_alone_it_is_the_question() -> None:
    longer = 'config = json_merge_patch(config, \'{"train": {"steps": 900}}\')'
    more = f"UPDATE runs SET {longer}, tokens = tokens * 1.5, train_flops = train_flops * 1.5 WHERE group_id = 'g-b'"
    assert reason(judged([Arm("a"), Arm("b", ffn="gelu")], more)).startswith("invalid: unequal training budget")
    assert not reason(judged([Arm("a"), Arm("b")], more)).startswith("invalid")


def grid(best: tuple[float, float]) -> list[Arm]:
    """Two kinds at three rates; the offset is the distance to the kind's best, b 0.2 nats better than a."""
    rates = (1e-3, 2e-3, 4e-3)
    return [
        Arm(f"{kind}{lr:g}", 0.1 * abs(math.log2(lr / own)) - 0.2 * (kind == "b"), ffn=ffn, lr=lr)
        for kind, ffn, own in (("a", "relu", best[0]), ("b", "gelu", best[1]))
        for lr in rates
    ]


@pytest.mark.parametrize(
    ("best", "baseline", "words"),
    [
        ((2e-3, 2e-3), "a0.002", "better: p = "),
        ((2e-3, 4e-3), "a0.002", "invalid: LR at the edge of its grid: b0.004 is best at 0.004"),
        ((1e-3, 2e-3), "a0.001", "invalid: LR at the edge of its grid: a0.001 is best"),
        ((2e-3, 2e-3), "a0.001", "invalid: unequal tuning budget: a0.001 is not at the best"),
    ],
)
def test_grids_of_learning_rates(best: tuple[float, float], baseline: str, words: str) -> None:
    found = judged(grid(best), baseline=baseline)
    assert reason(found, f"b{best[1]:g}").startswith(words)


def test_a_baseline_tried_at_one_rate_only_is_no_match_for_a_tuned_arm() -> None:
    found = judged([arm for arm in grid((2e-3, 2e-3)) if arm.name not in ("a0.001", "a0.004")], baseline="a0.002")
    assert reason(found, "b0.002").startswith("invalid: unequal tuning budget")


def test_a_noise_floor_stands_for_the_spread_of_the_seeds(con: Any, plan: Plan) -> None:
    found = judge_plan(con, plan, NoiseFloor(1e-4, 100)).verdicts["gelu"]
    assert found.gap.method == "noise floor t" and found.word == "equivalent"


def test_without_baseline_nothing_is_judged(con: Any) -> None:
    found = judge_plan(con, resolve_plan(con, "stories"))
    assert (found.baseline, found.verdicts) == (None, {})
