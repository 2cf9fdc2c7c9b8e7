from typing import Any

from analysis.answer import answer
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


def test_only_intervals_without_zero_are_called_differences(con: Any, plan: Plan) -> None:
    text = said(con, plan)
    better, rest = text.split("Not distinguishable from relu at n = 3: ")
    assert better.startswith("Below relu, which is better: swiglu by -0.0350 [")
    assert "geglu by -0.0310" in better
    unclear = rest.split(". ")[0]
    assert "gelu by -0.0040" in rest and "silu by +0.0020" in rest and "swiglu" not in unclear
    assert "Above" not in text
    assert "none is corrected for looking at 4 arms" in text


def test_an_arm_that_is_worse_is_called_so() -> None:
    assert "Above a, which is worse: b by +0.5000" in said_of([Arm("a"), Arm("b", 0.5)])


def test_lost_runs_are_told_beside_the_number(con: Any, trouble: Plan) -> None:
    text = said(con, trouble)
    assert "n = 2 (1 diverged)" in text
    assert "No finished run: silu (3 unfinished)." in text


def test_one_seed_supports_no_conclusion() -> None:
    text = said_of([Arm("a"), Arm("b", -0.5)], seeds=1)
    assert "One seed only, so no interval and no conclusion: b by -0.5" in text
    assert "better" not in text


def test_one_arm_without_baseline(con: Any) -> None:
    assert said(con, resolve_plan(con, "stories")) == (
        "stories ends at a validation loss of 1.5640 nats per token, n = 1. There is no baseline to compare with."
    )


def test_nothing_finished_is_no_answer(con: Any) -> None:
    assert "no answer" in said(con, resolve_plan(con, "waiting"))


def test_without_a_finished_baseline_nothing_is_compared() -> None:
    assert "no arm can be compared" in said_of([Arm("a", fails={0: "oom", 1: "oom", 2: "oom"}), Arm("b")])
