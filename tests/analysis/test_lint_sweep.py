from typing import Any

import pytest

from analysis.lint_sweep import lint
from analysis.provenance import provenance
from analysis.select import Plan, resolve_plan
from tests.analysis.synthetic import Arm, Builder


def notices(arms: list[Arm], change: str = "", **given: Any) -> dict[str, str]:
    builder = Builder().plan(arms, **given)
    if change:
        builder.con.execute(change)
    found = {n.code: n.reason for n in lint(builder.con, resolve_plan(builder.con, "ffn_ablation"))}
    builder.con.close()
    return found


def test_a_clean_plan_has_nothing_to_say(con: Any, plan: Plan) -> None:
    assert lint(con, plan) == []


def test_all_that_is_wrong_is_said(con: Any, trouble: Plan) -> None:
    found = {n.code: n.reason for n in lint(con, trouble)}
    assert set(found) == {
        "diverged", "failed", "unfinished", "few_seeds",
        "mixed_code", "mixed_hardware", "not_matched", "unequal_tuning",
    }  # fmt: skip
    assert "gelu seed 1" in found["diverged"]
    assert "geglu seed 0 (failed, oom: boom" in found["failed"]
    assert "4 of 15 runs" in found["unfinished"]
    assert "geglu and relu used 2 versions of the code" in found["mixed_code"]
    assert "swiglu +1.20%" in found["not_matched"]
    assert "silu (0)" in found["few_seeds"]
    assert "swiglu also changes the learning rate, 0.001 → 0.003" in found["unequal_tuning"]


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("mixed_code", Arm("b", ffn="gelu", code_hash="c0de00000009")),
        ("mixed_data", Arm("b", ffn="gelu", fingerprint="other")),
        ("mixed_hardware", Arm("b", ffn="gelu", gpu="a gpu")),
        ("not_matched", Arm("b", ffn="gelu", residual=-0.006)),
        ("diverged", Arm("b", ffn="gelu", diverges={3: 60})),
        ("failed", Arm("b", ffn="gelu", fails={3: "oom"})),
        ("unfinished", Arm("b", ffn="gelu", stops={3: 60})),
        ("unequal_tuning", Arm("b", ffn="gelu", lr=2e-3)),
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
    (notice,) = lint(builder.con, resolve_plan(builder.con, "ffn_ablation"))
    builder.con.close()
    assert notice.level == "note"
    assert "train.lr 0.001 → 0.002" in notice.reason


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


@pytest.mark.parametrize(
    ("code", "change", "words"),
    [
        ("long_warmup", 'json_merge_patch(config, \'{"train": {"warmup": 90}}\')', "a 15%"),
        ("schedule_not_matched", 'json_merge_patch(config, \'{"train": {"schedule": "constant"}}\')', "a; b"),
    ],
)
def test_schedules(code: str, change: str, words: str) -> None:
    found = notices([Arm("a"), Arm("b", ffn="gelu")], f"UPDATE runs SET config = {change}")
    assert list(found) == [code]
    assert words in found[code]


def test_repeated_data_is_told_in_epochs() -> None:
    found = notices([Arm("a")], "UPDATE runs SET train_tokens = tokens / 4")
    assert "a 4 epochs" in found["data_repeated"]
    assert "data_repeated" not in notices([Arm("a")], "UPDATE runs SET train_tokens = tokens")


def test_one_seed_has_its_own_code() -> None:
    assert "one_seed" in notices([Arm("a"), Arm("b")], seeds=1)


def test_other_tokenizers_and_other_evaluations() -> None:
    arms = [Arm("a"), Arm("b", ffn="gelu", fingerprint="other")]
    found = notices(arms, "UPDATE runs SET tokenizer = 'bpe 512' WHERE group_id = 'g-b'")
    assert "losses of different tokenizers: b against a" in found["mixed_tokenizers"]
    assert "mixed_data" not in found
    change = 'json_merge_patch(config, \'{"model": {"context": 64}}\')'
    found = notices([Arm("a"), Arm("b", ffn="gelu")], f"UPDATE runs SET config = {change} WHERE group_id = 'g-b'")
    assert "losses of different evaluation sets" in found["mixed_evaluation"]
    change = change.replace('"model": {"context": 64}', '"train": {"eval_sequences": 2}')
    found = notices([Arm("a"), Arm("b", ffn="gelu")], f"UPDATE runs SET config = {change} WHERE group_id = 'g-b'")
    assert "b ends on 2 validation sequences" in found["mixed_evaluation"]


def test_sizes_that_nobody_matched_are_a_note() -> None:
    change = "UPDATE runs SET params = params * 2 WHERE group_id = 'g-b'; UPDATE plan_runs SET match_residual = NULL"
    assert "b +100.0%" in notices([Arm("a"), Arm("b", ffn="gelu")], change)["sizes_differ"]


def test_the_tolerance_of_the_sweep_decides_what_is_matched() -> None:
    arms = [Arm("a"), Arm("b", ffn="gelu", residual=-0.015)]
    for tolerance, matched in ((0.02, True), (0.01, False), (None, False)):
        builder = Builder().plan(arms, match_tolerance=tolerance)
        found = [finding.code for finding in lint(builder.con, resolve_plan(builder.con, "ffn_ablation"))]
        assert ("not_matched" not in found) is matched
