import json
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats as reference

from analysis import table
from analysis.flops import flops_shares
from analysis.select import Plan, resolve_plan
from tests.analysis.synthetic import FFN, STEPS, Arm, Builder, final_loss, five_arms


@pytest.fixture(scope="module")
def rows(con: Any) -> dict[str, Any]:
    return {row["arm"]: row for row in table.summary(con, resolve_plan(con, "ffn_ablation"))}


@pytest.fixture(scope="module")
def troubled(con: Any) -> dict[str, Any]:
    return {row["arm"]: row for row in table.summary(con, resolve_plan(con, "trouble"))}


def test_arms_stand_in_plan_order(rows: dict[str, Any]) -> None:
    assert list(rows) == list(FFN)
    assert [arm for arm, row in rows.items() if row["baseline"]] == ["relu"]


def test_losses_are_means_of_the_known_runs_with_t_intervals(rows: dict[str, Any]) -> None:
    losses = [final_loss(five_arms()[3], seed) for seed in range(3)]
    low, high = reference.t.interval(0.95, 2, np.mean(losses), reference.sem(losses))
    row = rows["swiglu"]
    assert (row["val_loss"], row["val_loss_low"], row["val_loss_high"]) == pytest.approx((np.mean(losses), low, high))
    assert row["bits_per_byte"] == pytest.approx(np.mean(losses) / math.log(2))
    assert row["perplexity"] == pytest.approx(np.mean(np.exp(losses)))


@pytest.mark.parametrize("arm", ["gelu", "silu", "swiglu", "geglu"])
def test_difference_is_the_known_offset(rows: dict[str, Any], arm: str) -> None:
    row = rows[arm]
    assert row["difference"] == pytest.approx(FFN[arm])
    assert (row["difference_n"], row["difference_method"]) == (3, "paired t")
    assert (row["difference_high"] < 0) == (arm in ("swiglu", "geglu"))


def test_the_baseline_has_no_difference_to_itself(rows: dict[str, Any]) -> None:
    assert {value for key, value in rows["relu"].items() if key.startswith("difference")} == {None}


def test_sizes_and_speed(rows: dict[str, Any]) -> None:
    row = rows["swiglu"]
    assert (row["params"], row["params_non_embedding"], row["match_residual"]) == (800_344, 783_960, 0.0008)
    assert (row["flops_per_token"], row["tokens"]) == (5e6, STEPS * 4096)
    assert row["train_flops"] == row["flops_per_token"] * row["tokens"]
    assert row["tokens_per_s"] == pytest.approx(4096 / (0.05 * 1.02))  # the median of three seeds


def test_every_planned_run_is_counted_once(troubled: dict[str, Any]) -> None:
    for row in troubled.values():
        assert row["done"] + row["diverged"] + row["failed"] + row["unfinished"] == row["planned"] == 3
    assert [table.troubles(row) for row in troubled.values()] == [
        {},
        {"diverged": 1},
        {"unfinished": 3},
        {"unfinished": 1},
        {"failed": 1},
    ]


def test_a_diverged_run_is_not_in_the_mean_and_its_seed_not_in_the_pairs(troubled: dict[str, Any]) -> None:
    arm = Arm("gelu", FFN["gelu"])
    assert troubled["gelu"]["val_loss"] == pytest.approx((final_loss(arm, 0) + final_loss(arm, 2)) / 2)
    assert troubled["gelu"]["difference_n"] == 2


def test_an_arm_without_finished_runs_has_no_numbers(troubled: dict[str, Any]) -> None:
    row = troubled["silu"]
    assert {row[key] for key in ("val_loss", "val_loss_low", "difference", "tokens_per_s", "perplexity")} == {None}


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_run_that_is_done_without_a_finite_loss_has_diverged(value: Any) -> None:
    builder = Builder().plan(five_arms()[:2])
    builder.con.execute("UPDATE runs SET val_loss = ? WHERE group_id = 'g-gelu' AND seed = 0", [value])
    row = table.summary(builder.con, resolve_plan(builder.con, "ffn_ablation"))[1]
    builder.con.close()
    assert (row["done"], row["diverged"], row["difference_n"]) == (2, 1, 2)


def test_a_run_of_the_plan_that_the_record_lacks_is_unfinished() -> None:
    builder = Builder().plan(five_arms()[:1])
    builder.con.execute("DELETE FROM runs WHERE seed = 2")
    row = table.summary(builder.con, resolve_plan(builder.con, "ffn_ablation"))[0]
    builder.con.close()
    assert (row["planned"], row["done"], row["unfinished"]) == (3, 2, 1)


def test_the_residual_of_largest_size_keeps_its_sign() -> None:
    arms = five_arms()[:1]
    builder = Builder().plan(arms)
    builder.con.execute("UPDATE plan_runs SET match_residual = -0.02 WHERE seed = 1")
    row = table.summary(builder.con, resolve_plan(builder.con, "ffn_ablation"))[0]
    builder.con.close()
    assert row["match_residual"] == -0.02


@pytest.mark.parametrize("name", ["ffn_ablation", "trouble", "hostile", "stories", "waiting"])
def test_rows_are_json_and_fit_the_frame(con: Any, name: str) -> None:
    plan = resolve_plan(con, name)
    rows = table.summary(con, plan)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert table.summary_frame(con, plan).to_dicts() == rows


def test_terminal_table_shows_names_as_they_are(con: Any) -> None:
    console = Console(width=200, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table.terminal_table(table.summary(con, resolve_plan(con, "hostile"))))
    assert "[red]" in capture.get()
    with console.capture() as capture:
        console.print(table.terminal_table(table.summary(con, resolve_plan(con, "trouble"))))
    assert "2/3, 1 diverged" in capture.get()
    assert "baseline" in capture.get()


def test_flops_shares_add_up_and_keep_amounts(con: Any, plan: Plan) -> None:
    shares = flops_shares(con, plan)
    assert shares.group_by("arm").agg(shares["share"].sum())["arm"].n_unique() == 5
    for _, part in shares.group_by("arm"):
        assert part["share"].sum() == pytest.approx(1)
    gate = shares.filter(component="ffn_gate")
    assert gate["arm"].to_list() == ["swiglu", "geglu"]
    assert gate["flops_per_token"].to_list() == [2.0 * 4 * 128 * 344] * 2


def test_an_arm_without_account_has_no_shares() -> None:
    builder = Builder().plan(five_arms()[:2])
    builder.con.execute("UPDATE runs SET account = NULL WHERE group_id = 'g-gelu'")
    shares = flops_shares(builder.con, resolve_plan(builder.con, "ffn_ablation"))
    builder.con.close()
    assert shares["arm"].unique().to_list() == ["relu"]
