"""Runs of two processes as a user starts them: one record each, many at once, and what happens when a rank dies."""

import os
import signal
from pathlib import Path

import pytest

from tests.user import CLASHES, User, parent, wait_until

TWO = ("--set", "train.processes=2")


@pytest.mark.slow
def test_eight_runs_of_two_processes_at_once(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), *TWO, "--seeds", "4", "--yes", "--no-report", "-j", "8")
    assert user.states("width") == ["DONE"] * 8
    assert set(user.attempts().values()) == {1}
    assert user.json("sql", CLASHES) == []
    steps = user.json("sql", "SELECT count(*) AS n FROM train")
    assert steps == [{"n": 8 * 30}]


def test_a_killed_rank_is_a_lost_run_that_goes_on_from_its_checkpoint(user: User, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), *TWO, "--scale", "medium", "--seeds", "1", "--yes", "--no-report", "-j", "1"]
    user.lab(*command, "--no-wait")
    wait_until(user.checkpoints, "a checkpoint")
    _, _, rank = sorted(user.worker_pids(), key=lambda pid: _depth(user, pid))
    os.kill(rank, signal.SIGKILL)
    wait_until(lambda: not user.worker_pids(), "the sweep to end by itself")
    user.lab(*command)
    assert user.states("width") == ["DONE"] * 2
    assert max(user.attempts().values()) == 2
    assert user.json("sql", CLASHES) == []


@pytest.mark.parametrize("when", ["it joins", "it trains"])
def test_a_rank_that_hangs_does_not_keep_a_signal_from_being_heard(user: User, sweep_file: Path, when: str) -> None:
    command = ["sweep", str(sweep_file), *TWO, "--scale", "medium", "--seeds", "1", "--yes", "--no-report", "-j", "1"]
    user.lab(*command, "--no-wait")
    if when == "it trains":
        wait_until(user.checkpoints, "a checkpoint")
    wait_until(lambda: len(user.worker_pids()) == 3, "both ranks", every=0.001)
    worker, _, rank = sorted(user.worker_pids(), key=lambda pid: _depth(user, pid))
    os.kill(rank, signal.SIGSTOP)
    os.kill(worker, signal.SIGTERM)
    wait_until(lambda: not user.worker_pids(), "all to leave", 60)
    told = next(user.home.glob("runs/*/attempts/0001/log.txt")).read_text()
    assert "it is to stop (preempted): a process hangs" in told
    assert user.states("width").count("PREEMPTED") == 1
    user.lab(*command)
    assert user.states("width") == ["DONE"] * 2
    assert sorted(user.attempts().values()) == [1, 2]
    assert user.json("sql", CLASHES) == []


def _depth(user: User, pid: int) -> int:
    """0 for the worker, 1 for rank 0, 2 for the others."""
    return 1 + _depth(user, parent(pid)) if parent(pid) in user.worker_pids() else 0


def test_ctrl_c_stops_all_ranks_at_one_step(user: User, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), *TWO, "--scale", "long", "--seeds", "1", "--yes", "--no-report", "-j", "1"]
    launcher = user.start(*command)
    wait_until(user.checkpoints, "a checkpoint")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=60) == 130
    assert user.worker_pids() == []
    assert "PREEMPTED" in user.states("width")
