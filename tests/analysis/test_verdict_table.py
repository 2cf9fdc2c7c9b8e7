"""Anyone's table: published decisions, and tables that prove nothing."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.stats import NoiseFloor
from analysis.tables import TableError
from analysis.verdict import Rules, VerdictError
from analysis.verdict_show import of_table
from analysis.verdict_table import Columns, TableVerdict, judge_table
from tests.shared import SHARED, case

TRACK3 = SHARED / "data" / "scaling" / "nanogpt_track3"


def track3(name: str = "final_losses.csv") -> Path:
    if not (TRACK3 / name).exists():
        pytest.skip(f"no {TRACK3 / name}")
    return TRACK3 / name


def written(tmp_path: Path, head: str, rows: Sequence[Sequence[Any]], name: str = "table.csv") -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([head.split(","), *rows])
    (tmp_path / name).write_text(text.getvalue())
    return tmp_path / name


def words(judged: TableVerdict) -> dict[str, str]:
    return {v.arm: v.word for v in judged.verdicts}


def reasons(judged: TableVerdict) -> dict[str, str]:
    return {v.arm: v.reason for v in judged.verdicts}


@pytest.mark.parametrize("pair", ["12_vs_6", "13_vs_11", "13_vs_8", "11_vs_9"])
def test_track3_gives_the_published_pairwise_decisions(pair: str) -> None:
    """The record's rule: sigma 0.0013 known, one-sided p < .001, a hundred steps are worth 0.0045 nats."""
    published = case("published_ablations.json")["modded_nanogpt_track3"]["oracle_decisions"][pair][0]
    arm, base = pair.split("_vs_")
    rules = Rules(alpha=0.002, floor=NoiseFloor(0.0013, float("inf")))
    columns = Columns("result_no", "val_loss", cost="final_step", price=0.0045 / 100)
    verdict = next(v for v in judge_table(track3(), columns, base, rules).verdicts if v.arm == arm)
    assert (verdict.gap.p < 0.002 and verdict.gap.estimate < 0) == (published == "significant")


def test_track3_judges_all_arms_and_leaves_no_doubt_where_the_record_has_none() -> None:
    judged = judge_table(track3(), Columns("arm", "val_loss"), "root:51ece938", Rules())
    found = words(judged)
    assert len(found) == 23
    assert found["root:478c0427"] == "worse"  # the same recipe, 200 steps shorter
    assert found["20260609_soap_f1_auxb2_clean"] == "better"
    assert found["root:1bd8db7a"] == "inconclusive"


def test_track3_has_the_published_pooled_sd(tmp_path: Path) -> None:
    """Arms are recipe and length, whole schedules: two groups cut short of a 2,900-step schedule are none."""
    expected = case("scaling_expected.json")["nanogpt_track3"]
    cut = (pl.col("total_steps") == 2900) & (pl.col("final_step") < 2900)
    frame = pl.read_csv(track3()).filter(~cut).with_columns(arm=pl.format("{} {}", "arm", "final_step"))
    frame.write_csv(tmp_path / "t.csv")
    judged = judge_table(tmp_path / "t.csv", Columns("arm", "val_loss"), "root:51ece938 3375", Rules())
    assert judged.pooled is not None
    assert (len(judged.arms), judged.pooled.freedom) == (24, expected["df"])
    assert judged.pooled.sd == pytest.approx(expected["pooled_sd"], abs=5e-6)
    as_it_comes = judge_table(track3(), Columns("arm", "val_loss"), "root:51ece938", Rules()).pooled
    assert as_it_comes and as_it_comes.sd == pytest.approx(expected["pooled_sd"], rel=0.01)


def test_checkpoints_of_one_run_are_no_replicates() -> None:
    columns = Columns("arm", "val_loss")
    judged = judge_table(track3("val_curves.csv"), columns, "root:51ece938", Rules())
    assert set(words(judged).values()) == {"invalid"}
    assert "intermediate checkpoints used as replicates" in judged.verdicts[0].reason
    final = judge_table(track3("val_curves.csv"), columns, "root:51ece938", Rules(), final=True)
    assert words(final) == words(judge_table(track3(), columns, "root:51ece938", Rules()))


def glu(tmp_path: Path, baseline: str) -> dict[str, str]:
    rows = case("published_ablations.json")["shazeer2020_glu_table1"]["rows"]
    path = written(tmp_path, "arm,mean,sd", [(arm, mean, sd) for arm, (mean, sd, _) in rows.items()])
    return words(judge_table(path, Columns("arm", "mean", sd="sd", n="4"), baseline, Rules()))


def test_gated_ffn_table_of_shazeer(tmp_path: Path) -> None:
    found = glu(tmp_path, "ReLU")
    assert {arm for arm, word in found.items() if word == "better"} >= {"GEGLU", "SwiGLU", "ReGLU", "Bilinear"}
    assert found["Swish"] == "inconclusive"
    assert glu(tmp_path, "SwiGLU")["GEGLU"] == "inconclusive"


HEAD = "arm,seed,loss"
ROWS = [("base", s, 3 + 0.01 * s) for s in range(4)] + [("new", s, 2.9 + 0.01 * s + 0.001 * (s % 2)) for s in range(4)]


def test_seeds_pair_whatever_the_order_of_rows(tmp_path: Path) -> None:
    columns = Columns("arm", "loss", seed="seed")
    paired = judge_table(written(tmp_path, HEAD, ROWS), columns, "base", Rules()).verdicts[0]
    turned = judge_table(written(tmp_path, HEAD, ROWS[::-1]), columns, "base", Rules()).verdicts[0]
    assert paired.gap.method == "paired t"
    assert turned.gap == paired.gap
    alone = judge_table(written(tmp_path, HEAD, ROWS), Columns("arm", "loss"), "base", Rules()).verdicts[0]
    assert alone.gap.method == "Welch t"


@pytest.mark.parametrize("bad", ["nan", "inf", "diverged"])
def test_what_is_no_finite_number_has_diverged_and_an_empty_cell_is_missing(tmp_path: Path, bad: str) -> None:
    judged = judge_table(
        written(tmp_path, HEAD, [*ROWS, ("new", 7, bad), ("new", 8, "")]), Columns("arm", "loss"), "base", Rules()
    )
    assert (judged.verdicts[0].diverged, judged.verdicts[0].n) == (1, 4)
    assert judged.arms[1].missing == 1
    assert judged.verdicts[0].word == "inconclusive"


@pytest.mark.parametrize(
    ("head", "rows", "words_"),
    [
        ("arm,run,step,loss", [(a, a + "1", s, 3 + s / 9) for a in ("base", "new") for s in range(3)], "intermediate"),
        ("arm,seed,tokens,loss", [(a, 0, s, 3 + s / 9) for a in ("base", "new") for s in range(3)], "intermediate"),
        ("arm,step,loss", [(a, s, 3 + s / 9) for a in ("base", "new") for s in range(3)], "no column names the run"),
        ("arm,seed,loss", [(a, 0, 3 + s / 9) for a in ("base", "new") for s in range(3)], "one run are no replicates"),
        ("arm,Global Step,loss", [(a, s, 3 + s / 9) for a in ("base", "new") for s in range(3)], "no column names the"),
        ("arm,seed,loss", [("base", 0, 3.0), ("new", 0, 2.0)], "too few seeds"),
    ],
)
def test_tables_that_prove_nothing(tmp_path: Path, head: str, rows: Any, words_: str) -> None:
    judged = judge_table(written(tmp_path, head, rows), Columns("arm", "loss"), "base", Rules())
    assert judged.verdicts[0].word == "invalid"
    assert words_ in judged.verdicts[0].reason


def grid(best: dict[str, float], rates: dict[str, Sequence[float]]) -> list[tuple[str, float, int, float]]:
    return [
        (arm, lr, seed, 3 + (lr - best[arm]) ** 2 + 0.001 * seed + (0 if arm == "base" else -0.2))
        for arm in best
        for lr in rates[arm]
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("best", "rates", "expected"),
    [
        ({"base": 2, "new": 2}, {"base": (1, 2, 3), "new": (1, 2, 3)}, "p = "),
        ({"base": 2, "new": 3}, {"base": (1, 2, 3), "new": (1, 2, 3)}, "LR at the edge of its grid: new is best at 3"),
        ({"base": 1, "new": 2}, {"base": (1, 2, 3), "new": (1, 2, 3)}, "LR at the edge of its grid: base is best at 1"),
        ({"base": 2, "new": 2}, {"base": (2,), "new": (1, 2, 3)}, "unequal tuning budget"),
    ],
)
def test_learning_rates(tmp_path: Path, best: Any, rates: Any, expected: str) -> None:
    path = written(tmp_path, "arm,lr,seed,loss", grid(best, rates))
    judged = judge_table(path, Columns("arm", "loss", seed="seed", lr="lr"), "base", Rules())
    assert expected in judged.verdicts[0].reason
    assert judged.verdicts[0].word == ("better" if expected == "p = " else "invalid")


@pytest.mark.parametrize(
    ("columns", "baseline", "message"),
    [
        (Columns("arms", "loss"), "base", "no column 'arms' .--arm.; did you mean 'arm'"),
        (Columns("arm", "loss"), "bose", "no arm 'bose' in column 'arm'; near: base"),
        (Columns("arm", "loss", sd="seed"), "base", "go together"),
        (Columns("arm", "loss", sd="seed", n="many"), "base", "a column or a number"),
    ],
)
def test_wrong_names_are_told(tmp_path: Path, columns: Columns, baseline: str, message: str) -> None:
    with pytest.raises((VerdictError, TableError), match=message):
        judge_table(written(tmp_path, HEAD, ROWS), columns, baseline, Rules())


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl"])
def test_kinds_of_files(tmp_path: Path, kind: str) -> None:
    frame = pl.DataFrame(ROWS, schema=HEAD.split(","), orient="row")
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
    elif kind == "jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_csv(path, separator="\t" if kind == "tsv" else ",")
    assert words(judge_table(path, Columns("arm", "loss"), "base", Rules())) == {"new": "better"}


def test_the_answer_is_strict_json_with_the_promised_keys(tmp_path: Path) -> None:
    rows = [*ROWS, ("single", 0, 1.0), ("gone", 0, "nan")]
    answer, _ = of_table(written(tmp_path, HEAD, rows), Columns("arm", "loss"), "base", Rules(), False)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["baseline"] == "base"
    keys = {"arm", "verdict", "reason", "effect", "ci_low", "ci_high", "p_holm", "n", "diverged", "compute_gain_low"}
    assert all(keys <= set(arm) for arm in answer["arms"])


def test_tables_as_people_write_them(tmp_path: Path) -> None:
    """Names in other letters, semicolons, decimal commas, per cent, arms that are numbers."""
    rows = [f"{arm};{seed};{loss:.4f}".replace(".", ",") + "%" for arm, seed, loss in ROWS]
    (tmp_path / "t.csv").write_text("\n".join(["Variant;Seed;Val Loss", *rows, " ;9;3,0%"]))
    judged = judge_table(tmp_path / "t.csv", Columns("variant", "val_loss", seed="seed"), "base", Rules())
    assert words(judged) == {"new": "better"}
    assert judged.verdicts[0].gap.estimate == pytest.approx(-0.0995)
    assert judged.left_out == {"without an arm": 1}
    sizes = [(size, 3 + size + noise) for size in (0.5, 1) for noise in (0, 0.001, 0.002)]
    assert words(judge_table(written(tmp_path, "w,loss", sizes), Columns("w", "loss"), "0.5", Rules())) == {
        "1": "worse"
    }


def test_runs_of_unequal_cost_pay_each_for_itself(tmp_path: Path) -> None:
    """Half of an arm trained longer and is better by just what that costs; the spread within the arm is the seeds'."""
    rows = [("base", 100, 3 + s / 1000) for s in range(4)]
    rows += [("new", cost, 2.9 - (cost - 100) / 1000 + s / 1000) for cost in (100, 200) for s in range(4)]
    path = written(tmp_path, "arm,steps,run,loss", [(a, c, i, v) for i, (a, c, v) in enumerate(rows)])
    judged = judge_table(path, Columns("arm", "loss", cost="steps", price=0.001), "base", Rules())
    assert judged.verdicts[0].gap.estimate == pytest.approx(-0.1)
    assert judged.pooled and judged.pooled.sd == pytest.approx(0.00129, rel=0.01)
    unpaid = judge_table(path, Columns("arm", "loss"), "base", Rules())
    assert unpaid.pooled and unpaid.pooled.sd == pytest.approx(0.00129, rel=0.01)


@pytest.mark.parametrize(
    ("head", "rows", "columns", "message"),
    [
        ("arm,loss", [("base", 3), ("base", 3.1)], Columns("arm", "loss"), "no arm but 'base'"),
        ("arm,loss", [("base", 3), ("new", "3.1 +- 0.2")], Columns("arm", "loss"), "must hold numbers"),
        ("arm,loss,c", [("base", 3, 1), ("new", 3, "")], Columns("arm", "loss", cost="c", price=1), "missing in rows"),
        ("arm,m,sd,n", [("base", 3, 0.1, 4), ("new", 3, 0.1, "")], Columns("arm", "m", sd="sd", n="n"), "whole number"),
        ("arm,m,sd,n", [("base", 3, 0.1, 4), ("new", 3, -0.1, 4)], Columns("arm", "m", sd="sd", n="n"), "is not -0.1"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, head: str, rows: Any, columns: Columns, message: str) -> None:
    with pytest.raises((VerdictError, TableError), match=message):
        judge_table(written(tmp_path, head, rows), columns, "base", Rules())
