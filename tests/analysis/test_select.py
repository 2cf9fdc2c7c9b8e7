from typing import Any

import pytest

from analysis.select import UnknownSweep, resolve_plan
from tests.analysis.synthetic import Arm, Builder


@pytest.fixture(scope="module")
def plans() -> Any:
    builder = Builder()
    arms = [Arm("a")]
    builder.plan(arms, plan_id="aaa111", seeds=1, scale="tiny", last_call_at="2025-01-01", created_at="2025-01-09")
    builder.plan(arms, plan_id="aab222", seeds=1, scale="small", last_call_at="2025-01-05", created_at="2025-01-01")
    builder.plan(arms, plan_id="ccc333", seeds=1, scale="tiny", last_call_at=None, created_at="2025-02-01")
    builder.plan(arms, sweep="never", plan_id="old", seeds=1, last_call_at=None, created_at="2025-01-01")
    builder.plan(arms, sweep="never", plan_id="new", seeds=1, last_call_at=None, created_at="2025-01-02")
    yield builder.con
    builder.con.close()


@pytest.mark.parametrize(
    ("name", "plan_id"),
    [
        ("ffn_ablation", "aab222"),  # the newest call, not the newest plan
        ("ffn_ablation@tiny", "aaa111"),
        ("ffn_ablation/ccc", "ccc333"),
        ("ffn_ablation/aab222", "aab222"),
        ("ffn_ablation/aa", "aab222"),
        ("never", "new"),
    ],
)
def test_a_name_means_one_plan(plans: Any, name: str, plan_id: str) -> None:
    assert resolve_plan(plans, name).plan_id == plan_id


def test_the_plan_carries_its_row(plans: Any) -> None:
    plan = resolve_plan(plans, "ffn_ablation@small")
    assert (plan.baseline, plan.smallest_effect, plan.name) == ("a", 0.01, "ffn_ablation@small")


@pytest.mark.parametrize("name", ["ffn_ablatoin", "ffn_ablation@huge", "ffn_ablation/zzz", "ffn_ablation/"])
def test_an_unknown_name_lists_near_ones(plans: Any, name: str) -> None:
    with pytest.raises(UnknownSweep, match=r"known: .*ffn_ablation"):
        resolve_plan(plans, name)


def test_an_empty_database_says_so() -> None:
    with Builder().con as empty, pytest.raises(UnknownSweep, match="no plan yet"):
        resolve_plan(empty, "x")
