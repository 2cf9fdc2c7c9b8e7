import json
from typing import Any

import pytest

from analysis.compare import Comparison, compare
from analysis.select import resolve_plan
from analysis.verdict import VerdictError
from tests.analysis.synthetic import Arm, Builder

FIRST = [Arm("relu"), Arm("swiglu", -0.035, ffn="swiglu")]


def compared(second: list[Arm], change: str = "", baseline: str | None = None) -> Comparison:
    builder = Builder().plan(FIRST, sweep="one", plan_id="0a0a0a000000")
    builder.plan(second, sweep="two", plan_id="0b0b0b000000")
    if change:
        builder.con.execute(change)
    try:
        return compare(builder.con, resolve_plan(builder.con, "one"), resolve_plan(builder.con, "two"), baseline)
    finally:
        builder.con.close()


def words(found: Comparison) -> dict[str, str]:
    return {arm["arm"]: arm["verdict"] for arm in found.answer["arms"]}


def test_arms_of_both_sweeps_stand_against_the_baseline_of_the_first() -> None:
    found = compared([Arm("geglu", -0.04, ffn="geglu")])
    assert found.answer["baseline"] == "A:relu"
    assert words(found) == {"A:swiglu": "better", "B:geglu": "better"}
    assert json.loads(json.dumps(found.answer, allow_nan=False)) == found.answer


def test_what_differs_is_said() -> None:
    other = [Arm("relu", ffn="gelu", code_hash="c0de00000002", gpu="a gpu", fingerprint="other")]
    text = "\n".join(compared(other, "UPDATE runs SET seed = seed").differs)
    assert "model.ffn: A relu; B gelu" in text
    assert "code: A c0de00000001; B c0de00000002" in text
    assert "data: A a corpus, char tokenizer, fingerprint f1a9e7000001 (6 runs); B" in text
    assert "hardware: A a cpu (6 runs); B a cpu, a gpu (3 runs)" in text
    assert "seeds" not in text


@pytest.mark.parametrize(
    ("arm", "reason"),
    [
        (Arm("geglu", ffn="geglu", fingerprint="other"), "mixed data"),
        (Arm("geglu", ffn="geglu", code_hash="c0de00000002"), "mixed code"),
    ],
)
def test_other_data_and_other_code_get_no_verdict(arm: Arm, reason: str) -> None:
    found = compared([arm])
    assert words(found) == {"A:swiglu": "better", "B:geglu": "invalid"}
    assert reason in found.answer["arms"][1]["reason"]


def test_other_tokenizers_of_one_text_are_compared_in_bits_per_byte() -> None:
    change = "UPDATE runs SET tokenizer = 'bpe', val_bits_per_byte = 0.9 * val_loss WHERE data_fingerprint = 'other'"
    found = compared([Arm("geglu", -0.04, ffn="geglu", fingerprint="other")], change)
    assert found.answer["unit"] == "bits per byte"
    assert words(found)["B:geglu"] == "better"
    assert any("bits per byte, not in nats" in note for note in found.notes)
    assert found.answer["smallest_effect"] == pytest.approx(0.01 / 0.6931472)


def test_the_same_runs_in_both_sweeps_are_evidence_once() -> None:
    builder = Builder().plan(FIRST, sweep="one", plan_id="0a0a0a000000")
    builder.con.execute("INSERT INTO plans SELECT * REPLACE ('two' AS sweep) FROM plans")
    builder.con.execute("INSERT INTO plan_runs SELECT * REPLACE ('two' AS sweep) FROM plan_runs")
    plans = resolve_plan(builder.con, "one"), resolve_plan(builder.con, "two")
    found = compare(builder.con, *plans, "B:relu")
    builder.con.close()
    assert found.answer["baseline"] == "A:relu"
    assert list(words(found)) == ["A:swiglu"]
    assert found.notes == ["B:relu is the same runs as A:relu", "B:swiglu is the same runs as A:swiglu"]


def test_an_unknown_baseline_is_told(con: Any) -> None:
    with pytest.raises(VerdictError, match=r"no arm 'C:x' to be the baseline .*A:relu"):
        compare(con, resolve_plan(con, "ffn_ablation"), resolve_plan(con, "trouble"), "C:x")
