"""kill -9 at random moments over everything that takes part in a sweep, and what has to hold afterwards."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping

from tests.user import CLASHES, LAB, User

TABLES = ("runs", "attempts", "train", "evals", "positions", "telemetry", "plan_runs")

Kill = Callable[[], bool]  # whether there was somebody to kill


def storm(user: User, sweep: str, command: list[str], kills: int, others: Mapping[str, Kill] | None = None) -> str:
    """Keep a sweep and an ingester going while `kills` processes of them die, then let it end; returns the counts.

    Victims are workers, their children, launchers, ingesters and whoever `others` names, drawn with a fixed seed. Each
    kind is met at least once, but for `others`: a real scheduler decides when there is whom to meet.
    """
    dice, killed, over = random.Random(20), Counter[str](), False
    launcher, reader = user.start(*command), _ingest(user)
    try:
        end = time.monotonic() + 60 + 20 * kills  # on a busy machine
        while killed.total() < kills and time.monotonic() < end:
            time.sleep(dice.uniform(0.05, 1.5))
            victims: dict[str, Kill] = {
                "worker": lambda: _strike(user, dice, children=False),
                "child": lambda: _strike(user, dice, children=True),
                "launcher": lambda: _end(launcher),  # noqa: B023
                "ingester": lambda: _end(reader),  # noqa: B023
                **(others or {}),
            }
            unmet = [] if others else [kind for kind in victims if not killed[kind]]
            what = dice.choice(unmet or ["worker", "child", *victims])
            killed[what] += victims[what]()
            if reader.poll() is not None:
                reader = _ingest(user)
            if launcher.poll() is not None:
                if over := set(user.states(sweep)) == {"DONE"}:
                    break
                launcher = user.start(*command)
    finally:
        _end(launcher)
        _end(reader)
    assert killed.total() == kills or ((over or others) and killed.total() >= min(kills, 10)), killed
    assert others or all(killed[kind] for kind in victims), killed
    _let_it_end(user, command)
    return f"{killed.total()} kills: {dict(killed)}, {sum(user.attempts().values())} attempts"


def _let_it_end(user: User, command: list[str]) -> None:
    for _ in range(3):  # an attempt that three kills in a row left without progress waits for a call
        if user.lab(*command, code=None, timeout=900).returncode == 0:
            return


def _ingest(user: User) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*LAB, "ingest"], env=user.environment, stdin=quiet, stdout=quiet, stderr=quiet)


def _end(process: subprocess.Popen[bytes]) -> bool:
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


def _strike(user: User, dice: random.Random, children: bool) -> bool:
    pids = user.worker_pids()
    trainers = user.trainers()
    if not trainers and dice.random() < 0.7:
        return False  # mostly not while it only starts up, or none would ever come to train
    wanted = trainers if children else [pid for pid in pids if pid not in trainers]
    try:
        os.kill(dice.choice(wanted), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


def assert_nothing_lost(user: User, calm: User, sweep: str, rows_per_run: int) -> None:
    """Every run is DONE with every step exactly once, all as in the undisturbed home, and a rebuild says the same."""
    runs = len(calm.states(sweep))
    assert user.states(sweep) == ["DONE"] * runs
    assert user.json("sql", CLASHES) == []
    counts = user.json("sql", "SELECT count(*) AS n FROM train GROUP BY run_id")
    assert [row["n"] for row in counts] == [rows_per_run] * runs
    assert user.weights() == calm.weights() != {}
    assert user.curves() == calm.curves() != []
    before = _content_hash(user)
    user.lab("ingest", "--rebuild")
    assert _content_hash(user) == before


def _content_hash(user: User) -> list[object]:
    """One hash per table over all its rows, in no particular order."""
    query = " UNION ALL ".join(f"SELECT '{t}' AS t, count(*) AS n, bit_xor(hash(r)) AS h FROM {t} r" for t in TABLES)
    rows: list[object] = user.json("sql", query)
    return rows
