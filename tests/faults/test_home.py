"""A home that is misspelt, read-only, damaged, or removed while runs train; a run that is killed while it saves."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import user
from tests.faults.conftest import MakeSweep
from tests.results.helpers import small_disk
from tests.user import CLASHES, LAB, User, wait_until

__all__ = ["user"]  # the one without a scheduler

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LAB_SAVE_KILLS", "12"))
READERS = (
    ["runs"],
    ["sql", "SELECT 1"],
    ["status", "tiny"],
    ["failures", "tiny"],
    ["cancel", "tiny"],
    ["gc"],
    ["report", "tiny"],
    ["ingest"],
)


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_a_misspelt_home_is_said_and_not_made(user: User, tmp_path: Path, command: list[str]) -> None:
    typo = tmp_path / "hmoe"
    told = user.lab(*command, "--home", str(typo), code=1)
    assert "nothing was swept" in told.stderr
    assert str(typo) in told.stderr
    assert "Traceback" not in told.stderr
    assert not typo.exists()


def test_a_damaged_list_of_specs_stops_no_cancel_and_is_written_again(user: User, make_sweep: MakeSweep) -> None:
    command = ["sweep", str(make_sweep(seeds=3, steps=2_000_000, save_every=100)), "--yes", "-j", "1"]
    user.lab(*command, "--no-wait")
    wait_until(user.checkpoints, "a checkpoint", 180)
    specs = next(user.home.glob("sweeps/tiny/*/specs.jsonl"))
    whole = specs.read_bytes()
    specs.write_bytes(whole[:-40])
    told = user.lab("cancel", "tiny")
    assert "asked 3 runs" in told.stdout
    assert str(specs) in told.stderr
    wait_until(lambda: not user.worker_pids(), "the worker to leave", 30)
    assert user.states("tiny") == ["CANCELLED"] * 3
    assert [row["state"] for row in user.json("runs")] == ["CANCELLED"] * 2, "the spec of the third cannot be read"
    user.lab(*command, "--no-wait")
    assert specs.read_bytes() == whole
    wait_until(lambda: "RUNNING" in user.states("tiny"), "it to go on", 60)


def test_the_command_that_goes_on_works_in_any_shell(user: User, make_sweep: MakeSweep) -> None:
    """$LAB_HOME of whoever typed the first command is not that of whoever types the next."""
    path = make_sweep(seeds=1, arms="{'a': {'model.d_ff': 10**12}}")
    user.lab("sweep", str(path), "--yes", code=1)
    (command,) = user.json("failures", "tiny")["commands"]
    assert command == f"lab sweep {path} --yes --home {user.home} --retry-failed"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one's own."""
    with small_disk(tmp_path / "own", "200m") as place:
        yield place


def test_a_read_only_home_can_be_read_and_says_why_it_cannot_be_used(
    small: Path, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    user, path = User(small / "home"), make_sweep(seeds=2)
    user.lab("sweep", str(path), "--yes", "-j", "2")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    assert [row["state"] for row in user.json("runs")] == ["DONE"] * 2
    run = user.json("status", "tiny")["runs"][0]["run_id"]
    assert "done at step 3" in user.lab("logs", run).stdout
    for command in (["sweep", str(path), "--yes"], ["ingest"], ["report", "tiny"]):
        told = user.lab(*command, code=1)
        assert str(user.home) in told.stderr, command
        assert "LAB_HOME" in told.stderr or "Read-only" in told.stderr, command
        assert "Traceback" not in told.stderr, command


def test_a_home_that_is_removed_ends_the_sweep_and_is_not_made_again(user: User, make_sweep: MakeSweep) -> None:
    path = make_sweep(seeds=2, steps=2_000_000, save_every=200)
    launcher = subprocess.Popen(
        [*LAB, "sweep", str(path), "--yes", "-j", "1"],
        env=user.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(user.checkpoints, "a checkpoint", 180)
    user.home.rename(user.home.with_name("moved"))
    _, told = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert str(user.home) in told
    assert "Traceback" not in told
    wait_until(lambda: not user.worker_pids(), "the worker to leave", 30)
    assert not list(user.home.rglob("*")), "runs were made in a home that is gone"
    shutil.move(user.home.with_name("moved"), user.home)
    assert user.states("tiny")[0] in ("LOST", "FAILED", "RUNNING")


def test_kill_9_while_it_saves_again_and_again(user: User, make_sweep: MakeSweep) -> None:
    """A run that does little but save. `LAB_SAVE_KILLS` times its process is killed; each time it goes on from the
    newest whole checkpoint, and what it loads never kills it."""
    path = make_sweep(steps=2_000_000, save_every=1)
    command = ["sweep", str(path), "--yes", "-j", "1", "--no-wait"]
    user.lab(*command)
    dice, resumed = random.Random(7), [0]
    for attempt in range(1, KILLS + 1):
        start = f"runs/*/attempts/{attempt:04d}/start.json"
        wait_until(lambda: list(user.home.glob(start)), f"attempt {attempt}", 120)  # noqa: B023
        before = user.newest_step()
        wait_until(lambda: user.newest_step() > before + 1, "new checkpoints", 60, every=0.002)  # noqa: B023
        time.sleep(dice.uniform(0, 0.02))
        child = user.trainers()[0]
        os.kill(child, signal.SIGKILL)
        resumed.append(user.newest_step())
    last = f"runs/*/attempts/{KILLS + 1:04d}/start.json"
    wait_until(lambda: list(user.home.glob(last)), "the last attempt", 120)
    user.lab("cancel", "tiny")
    wait_until(lambda: not user.worker_pids(), "the worker to leave", 30)
    assert_resumed_each_time(user, resumed)


def assert_resumed_each_time(user: User, reached: list[int]) -> None:
    """Attempt k + 1 began where attempt k's newest whole checkpoint was when it was killed, or at one still newer."""
    rows = user.json("sql", "SELECT attempt, resume_step, reason, error FROM attempts ORDER BY attempt")
    assert [row["attempt"] for row in rows] == [*range(1, KILLS + 2)]
    assert [row["reason"] for row in rows] == [None] * KILLS + ["cancelled"], "an attempt died of what it loaded"
    assert all(row["resume_step"] >= before for row, before in zip(rows, reached, strict=True))
    assert user.json("sql", CLASHES) == []
    log = "".join(path.read_text() for path in user.home.glob("runs/*/attempts/*/log.txt"))
    assert "damaged" not in log, "a checkpoint under its real name is whole"
    assert not list(user.home.glob("runs/*/checkpoints/.*"))
    print(f"{KILLS} kills, steps {[row['resume_step'] for row in rows]}")
