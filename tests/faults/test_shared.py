"""Runs that two plans have, runs that somebody deletes while they train, and clocks that are wrong."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import MakeSweep
from tests.user import CLASHES, User, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    someone = User(tmp_path / "home")
    yield someone
    someone.kill_workers()


def test_a_plan_that_shares_a_run_with_one_under_way_trains_its_own_and_waits(
    user: User, make_sweep: MakeSweep
) -> None:
    """More seeds of a running sweep are such a plan."""
    command = ["sweep", str(make_sweep(steps=5000, save_every=200)), "--yes", "--no-report", "-j", "1"]
    user.lab(*command, "--no-wait")
    wait_until(user.checkpoints, "the first plan's run")
    told = user.lab(*command, "--seeds", "2").stderr
    assert "already at work" not in told
    assert user.states("tiny") == ["DONE", "DONE"]
    assert set(user.attempts().values()) == {1}
    assert user.json("sql", CLASHES) == []


@pytest.mark.parametrize("what", [".", "attempts/0001"])
def test_a_run_deleted_while_it_trains_takes_no_other_with_it(user: User, make_sweep: MakeSweep, what: str) -> None:
    command = ["sweep", str(make_sweep(steps=1500, save_every=100, seeds=3)), "--yes", "--no-report", "-j", "1"]
    launcher = user.start(*command)
    wait_until(user.checkpoints, "a run to delete")
    (run,) = (path.parent for path in user.home.glob("runs/*/checkpoints"))
    shutil.rmtree(run / what)
    assert launcher.wait(timeout=120) == 1
    assert sorted(user.states("tiny")) == ["DONE", "DONE", "PLANNED"]
    (log,) = user.home.glob("sweeps/tiny/*/workers/*.log")
    assert f"run {run.name} left no attempt in {run}" in log.read_text()
    user.lab(*command)
    assert user.states("tiny") == ["DONE"] * 3


def test_a_call_from_the_future_does_not_keep_a_name_for_itself(user: User, make_sweep: MakeSweep) -> None:
    user.lab("sweep", str(make_sweep()), "--yes", "--no-report", "-j", "1")
    (call,) = user.home.glob("sweeps/tiny/*/calls/*.json")
    call.write_text(json.dumps(json.loads(call.read_text()) | {"called_at": "2099-01-01T00:00:00.000000+00:00"}))
    user.lab("sweep", str(make_sweep()), "--seeds", "2", "--yes", "--no-report", "-j", "1")
    assert user.states("tiny") == ["DONE", "DONE"]
