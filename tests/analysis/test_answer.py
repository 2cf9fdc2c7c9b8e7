from typing import Any

from analysis.answer import answer, headline
from analysis.select import Plan, resolve_plan
from analysis.table import summary
from tests.analysis.synthetic import Arm, Builder


def said(con: Any, plan: Plan) -> str:
    return " ".join(answer(plan, summary(con, plan))).replace("\u00a0", " ")


def said_of(arms: list[Arm], **given: Any) -> str:
    builder = Builder().plan(arms, **given)
    text = said(builder.con, resolve_plan(builder.con, "ffn_ablation"))
    builder.con.close()
    return text


def test_the_headline_has_each_word_with_its_arms(con: Any, plan: Plan) -> None:
    rows = summary(con, plan)
    assert headline(rows) == (
        "Better than relu: swiglu (-0.0350), geglu (-0.0310); Undecided against relu: gelu (-0.0040), silu (+0.0020)."
    )


def test_every_arm_has_its_sentence_with_interval_and_reason(con: Any, plan: Plan) -> None:
    text = said(con, plan)
    assert "swiglu is better by -0.0350 [" in text and "after Holm" in text
    assert "gelu is inconclusive at -0.0040 [" in text and "more seeds for 80 % power to see 0.01" in text
    assert "hold for all 4 arms at once (Holm)" in text
    assert "0.01 nats the smallest difference that matters" in text


def test_an_arm_that_is_worse_is_called_so() -> None:
    assert said_of([Arm("a"), Arm("b", 0.5)]).startswith("Worse than a: b (+0.5000).")


def test_lost_runs_are_told_beside_the_number(con: Any, trouble: Plan) -> None:
    text = said(con, trouble)
    assert "n = 2 (1 diverged)" in text
    assert "silu is invalid (3 unfinished): too few seeds: silu has no finite value; run it." in text


def test_one_seed_supports_no_conclusion() -> None:
    text = said_of([Arm("a"), Arm("b", -0.5)], seeds=1)
    assert "No verdict: b." in text and "too few seeds: a 1, b 1" in text
    assert "etter" not in text.replace("better, worse and equivalent", "")


def test_one_arm_without_baseline(con: Any) -> None:
    assert said(con, resolve_plan(con, "stories")) == (
        "There is no baseline to compare with: no verdict. "
        "stories ends at a validation loss of 1.5640 nats per token, n = 1."
    )


def test_nothing_finished_is_no_answer(con: Any) -> None:
    assert said(con, resolve_plan(con, "waiting")) == (
        "No run has finished with a finite loss yet (3 planned): no answer."
    )


def test_without_a_finished_baseline_nothing_is_compared() -> None:
    text = said_of([Arm("a", fails={0: "oom", 1: "oom", 2: "oom"}), Arm("b")])
    assert "No verdict: b." in text and "a has no finite value" in text
