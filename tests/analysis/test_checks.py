from typing import Any

import pytest

from analysis.checks import warnings_for
from analysis.provenance import provenance
from analysis.select import Plan, resolve_plan
from tests.analysis.synthetic import Arm, Builder


def notices(arms: list[Arm], change: str = "", **given: Any) -> dict[str, str]:
    builder = Builder().plan(arms, **given)
    if change:
        builder.con.execute(change)
    found = {n.kind: n.text for n in warnings_for(builder.con, resolve_plan(builder.con, "ffn_ablation"))}
    builder.con.close()
    return found


def test_a_clean_plan_has_nothing_to_say(con: Any, plan: Plan) -> None:
    assert warnings_for(con, plan) == []


def test_all_that_is_wrong_is_said(con: Any, trouble: Plan) -> None:
    found = {n.kind: n.text for n in warnings_for(con, trouble)}
    assert set(found) == {
        "diverged", "failed", "unfinished", "mixed_code", "mixed_hardware", "unmatched", "few_seeds", "budget",
    }  # fmt: skip
    assert "gelu seed 1" in found["diverged"]
    assert "geglu seed 0 (failed, oom: boom" in found["failed"]
    assert "4 of 15 runs" in found["unfinished"]
    assert "c0de00000001 (9 runs), c0de00000002 (3 runs)" in found["mixed_code"].replace(";", ",")
    assert "swiglu +1.20%" in found["unmatched"]
    assert "silu (0)" in found["few_seeds"]
    assert "swiglu" in found["budget"] and "train.lr 0.001 → 0.003" in found["budget"]


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("mixed_code", Arm("b", ffn="gelu", code_hash="c0de00000009")),
        ("mixed_data", Arm("b", ffn="gelu", fingerprint="other")),
        ("mixed_hardware", Arm("b", ffn="gelu", gpu="a gpu")),
        ("unmatched", Arm("b", ffn="gelu", residual=-0.006)),
        ("diverged", Arm("b", ffn="gelu", diverges={3: 60})),
        ("failed", Arm("b", ffn="gelu", fails={3: "oom"})),
        ("unfinished", Arm("b", ffn="gelu", stops={3: 60})),
        ("budget", Arm("b", ffn="gelu", lr=2e-3)),
        ("budget_is_the_question", Arm("b", lr=2e-3)),
    ],
)
def test_each_fault_gives_its_own_notice(kind: str, other: Arm) -> None:
    assert list(notices([Arm("a"), other], seeds=4)) == [kind]


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("mixed_numerics", """replace(env, '"threads": 1', '"threads": 4')""", "threads 4"),
        ("mixed_versions", """replace(env, '"numpy": "2.3.0"', '"numpy": "1.26.0"')""", "numpy 2.3.0 (5 runs), 1.26.0"),
        ("mixed_versions", """replace(env, '"torch": "2.9.0"', '"torch": "2.8.0"')""", "torch"),
    ],
)
def test_mixed_environments(kind: str, change: str, words: str) -> None:
    found = notices([Arm("a"), Arm("b", ffn="gelu")], f"UPDATE attempts SET env = {change} WHERE run_id LIKE '%5'")
    assert list(found) == [kind]
    assert words in found[kind]


def test_the_limit_of_a_match_is_half_a_percent() -> None:
    assert notices([Arm("a"), Arm("b", residual=0.005)]) == {}


def test_few_seeds_below_three() -> None:
    assert "a (2), b (2)" in notices([Arm("a"), Arm("b")], seeds=2)["few_seeds"]


def test_another_budget_is_a_note_where_it_is_the_question(con: Any) -> None:
    builder = Builder().plan([Arm("a"), Arm("b", lr=2e-3)])
    (notice,) = warnings_for(builder.con, resolve_plan(builder.con, "ffn_ablation"))
    builder.con.close()
    assert not notice.serious
    assert "train.lr 0.001 → 0.002" in notice.text


def test_provenance_counts_runs(con: Any, trouble: Plan) -> None:
    origin = provenance(con, trouble)
    assert [(c["code_hash"], c["runs"], c["git_sha"]) for c in origin.code] == [
        ("c0de00000001", 9, "1f2e3d4c5b6a"),
        ("c0de00000002", 3, None),
    ]
    assert origin.code[0]["git_diff"].startswith("--- a/")
    assert origin.hardware == {"a cpu": 9, "a cpu, a gpu": 3}
    assert origin.packages == {"numpy": {"2.3.0": 12}, "python": {"3.12.1": 12}, "torch": {"2.9.0": 12}}
    assert origin.data == {"a corpus, char tokenizer, fingerprint f1a9e7000001": 15}
    assert (origin.seeds, origin.attempts) == ([0, 1, 2], 12)


def test_attempts_of_one_run_in_one_environment_count_once() -> None:
    builder = Builder().plan([Arm("a")])
    builder.con.execute("INSERT INTO attempts SELECT * REPLACE (2 AS attempt, 300 AS resume_step) FROM attempts")
    origin = provenance(builder.con, resolve_plan(builder.con, "ffn_ablation"))
    builder.con.close()
    assert (origin.attempts, origin.hardware, origin.code[0]["runs"]) == (6, {"a cpu": 3}, 3)
