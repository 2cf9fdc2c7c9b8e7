"""Kills at scale: `LAB_KILLS` times kill -9 at random moments, then everything must be as if nothing had happened.

`make kills` does 200. The victims are workers, their children, launchers and ingesters, drawn with a fixed seed.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.conftest import MakeSweep
from tests.user import LAB, User

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LAB_KILLS", "40"))
CLASHES = "SELECT run_id, step, count(*) AS n FROM train GROUP BY ALL HAVING n <> 1"
STEPS = 20_000


def ingest(user: User) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*LAB, "ingest"], env=user.environment, stdin=quiet, stdout=quiet, stderr=quiet)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def strike(user: User, dice: random.Random, launcher: subprocess.Popen[bytes], reader: subprocess.Popen[bytes]) -> str:
    """kill -9 one process; returns what it was, "" if nothing was there."""
    what = dice.choice(["worker", "worker", "child", "child", "launcher", "ingester"])
    if what == "launcher" and launcher.poll() is None:
        kill(launcher)
        return what
    if what == "ingester" and reader.poll() is None:
        kill(reader)
        return what
    pids = user.worker_pids()
    children = [pid for pid in pids if parent(pid) in pids]
    wanted = children if what == "child" else [pid for pid in pids if pid not in children]
    if not wanted or what not in ("worker", "child"):
        return ""
    if not children and dice.random() < 0.7:
        return ""  # mostly not while it only starts up, or none would ever come to train
    try:
        os.kill(dice.choice(wanted), signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return what


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_everything_is_killed_at_random_and_nothing_is_lost(tmp_path: Path, make_sweep: MakeSweep) -> None:
    path = make_sweep(seeds=4, steps=STEPS, save_every=200)
    calm, user = User(tmp_path / "calm"), User(tmp_path / "home")
    calm.lab("sweep", str(path), "--yes", "-j", "2")
    command = ["sweep", str(path), "--yes", "-j", "2"]
    dice, killed = random.Random(20), Counter[str]()
    launcher, reader = user.start(*command), ingest(user)
    try:
        end = time.monotonic() + 60 + 5 * KILLS
        while killed.total() < KILLS and time.monotonic() < end:
            time.sleep(dice.uniform(0.05, 1.5))
            if what := strike(user, dice, launcher, reader):
                killed[what] += 1
            if reader.poll() is not None:
                reader = ingest(user)
            if launcher.poll() is not None:
                if set(user.states("tiny")) == {"DONE"}:
                    break
                launcher = user.start(*command)
    finally:
        kill(launcher)
        kill(reader)
    user.kill_workers()
    for _ in range(3):  # an attempt that three kills in a row left without progress waits for a call
        if user.lab(*command, code=None, timeout=600).returncode == 0:
            break
    print(f"\n{killed.total()} kills: {dict(killed)}, {sum(user.attempts().values())} attempts")
    assert user.states("tiny") == ["DONE"] * 4
    assert user.json("sql", CLASHES) == []
    assert [row["n"] for row in user.json("sql", "SELECT count(*) AS n FROM train GROUP BY run_id")] == [20] * 4
    assert user.weights() == calm.weights() != {}
    assert user.curves() == calm.curves() != []
    before = content_hash(user)
    user.lab("ingest", "--rebuild")
    assert content_hash(user) == before
    assert killed.total() >= min(KILLS, 10)


def content_hash(user: User) -> list[object]:
    """One hash per table over all its rows, in no particular order."""
    tables = ("runs", "attempts", "train", "evals", "telemetry", "plan_runs")
    query = " UNION ALL ".join(f"SELECT '{t}' AS t, count(*) AS n, bit_xor(hash(r)) AS h FROM {t} r" for t in tables)
    rows: list[object] = user.json("sql", query)
    return rows
