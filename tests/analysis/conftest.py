from typing import Any

import pytest

from analysis.select import Plan, resolve_plan
from tests.analysis.synthetic import Arm, Builder, five_arms, hostile_arms, troubled_arms


@pytest.fixture(scope="session")
def con() -> Any:
    """One database with a plan for each situation; tests only read it."""
    builder = Builder()
    builder.plan(five_arms())
    builder.plan(troubled_arms(), sweep="trouble", plan_id="badbad000000")
    builder.plan(hostile_arms(), sweep="hostile", plan_id="051e00000000", question='<b>bold</b> & "so"')
    builder.plan([Arm("stories")], sweep="stories", plan_id="570000000000", seeds=1, baseline=None)
    builder.plan([Arm("a", waits={0, 1, 2})], sweep="waiting", plan_id="3a1700000000")
    yield builder.con
    builder.con.close()


@pytest.fixture
def plan(con: Any) -> Plan:
    return resolve_plan(con, "ffn_ablation")


@pytest.fixture
def trouble(con: Any) -> Plan:
    return resolve_plan(con, "trouble")
