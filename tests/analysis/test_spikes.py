"""Loss spikes against a plain computation, and where they must not be seen."""

import math
import random
import statistics
from typing import Any

import pytest

from analysis.lint_sweep import lint
from analysis.select import Plan, resolve_plan
from analysis.spikes import LEAST, LIMIT, PAST, ROBUST_SD, by_run, spikes
from tests.analysis.synthetic import Arm, Builder

FIRST = "p1a2b3000000"


@pytest.fixture
def builder() -> Any:
    builder = Builder().plan([Arm("a"), Arm("b", ffn="gelu")])
    yield builder
    builder.con.close()


def found_in(builder: Builder) -> Any:
    return spikes(builder.con, resolve_plan(builder.con, "ffn_ablation"))


def raise_loss(builder: Builder, step: int, by: float, run_id: str = FIRST) -> None:
    builder.con.execute("UPDATE train_rows SET loss = loss + ? WHERE run_id = ? AND step = ?", [by, run_id, step])


def plain(losses: list[float]) -> list[int]:
    """The definition, word by word; positions from 0."""
    found = []
    for i, loss in enumerate(losses):
        past = losses[max(0, i - PAST) : i]
        if len(past) < LEAST:
            continue
        median = statistics.median(past)
        sd = ROBUST_SD * statistics.median(abs(x - median) for x in past)
        if loss > median + LIMIT * sd:
            found.append(i)
    return found


def test_what_is_found_is_what_the_definition_says() -> None:
    rng = random.Random(0)
    losses = [2 + rng.gauss(0, 0.05) + (0.6 * rng.random() if rng.random() < 0.05 else 0) for _ in range(500)]
    builder = Builder().plan([Arm("a")], seeds=1)
    builder.con.execute("DELETE FROM train_rows")
    for i, loss in enumerate(losses):
        builder.con.execute("INSERT INTO train_rows (run_id, attempt, step, loss) VALUES (?, 1, ?, ?)",
                            [FIRST, 10 * (i + 1), loss])  # fmt: skip
    assert found_in(builder)["step"].to_list() == [10 * (i + 1) for i in plain(losses)] != []
    builder.con.close()


def test_a_healthy_run_has_none(con: Any, plan: Plan) -> None:
    assert spikes(con, plan).is_empty()


def test_each_spike_is_told_with_its_run(builder: Builder) -> None:
    raise_loss(builder, 300, 2.0)
    raise_loss(builder, 301, 3.0)
    raise_loss(builder, 500, 1.0, "p1a2b3000004")
    found = found_in(builder)
    assert found.select("arm", "seed", "step").rows() == [("a", 0, 300), ("a", 0, 301), ("b", 1, 500)]
    assert (found["deviations"] > LIMIT).all()
    (first, second) = by_run(found).to_dicts()
    assert (first["n"], first["step"], first["excess"]) == (2, 301, pytest.approx(3.0, abs=0.3))
    assert (second["run_id"], second["n"], second["step"]) == ("p1a2b3000004", 1, 500)


def test_a_spike_before_the_usual_is_known_and_a_loss_that_is_not_finite_are_none(builder: Builder) -> None:
    raise_loss(builder, LEAST, 5.0)
    raise_loss(builder, 400, math.nan)
    raise_loss(builder, 410, -5.0)
    assert found_in(builder).is_empty()
    raise_loss(builder, LEAST + 1, 50.0)
    assert found_in(builder)["step"].to_list() == [LEAST + 1]


def test_the_report_warns_of_it_once(builder: Builder) -> None:
    plan = resolve_plan(builder.con, "ffn_ablation")
    assert lint(builder.con, plan) == []
    raise_loss(builder, 300, 2.0)
    (notice,) = lint(builder.con, plan)
    assert notice.code == "loss_spikes"
    assert "1 of 6 runs: a seed 0 (1 step, the highest +" in notice.reason and "at step 300" in notice.reason
