"""Using `lab` as a person does: as a command, in a process of its own, with signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = re.compile(r"sweeps\.worker|submitit\.core\._submit")
LAB = [sys.executable, "-m", "cli"]
CLASHES = "SELECT run_id, step, count(*) AS n FROM train GROUP BY ALL HAVING n <> 1"
PATIENCE = 3  # a busy machine may be that many times slower than a quiet one


def _hear_the_terminal_close() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run under nohup


class User:
    """Somebody with a home for results and a terminal."""

    def __init__(self, home: Path, environment: dict[str, str] | None = None) -> None:
        self.home = home
        self.environment = os.environ | {"LAB_HOME": str(home), "COLUMNS": "200"} | (environment or {})

    def lab(
        self, *arguments: str, code: int | None = 0, timeout: float = PATIENCE * 200
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and check its exit code."""
        done = subprocess.run(
            [*LAB, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert code is None or done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json; nothing else may be on stdout."""
        return json.loads(self.lab(*arguments, "--json").stdout)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [*LAB, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_hear_the_terminal_close,
        )

    def states(self, sweep: str) -> list[str]:
        """State of every run in plan order; empty before there is a plan."""
        told = json.loads(self.lab("status", sweep, "--json", code=None).stdout)
        return [run["state"] for run in told.get("runs", [])]

    def attempts(self) -> dict[str, int]:
        """Number of attempts of every run."""
        return {run.name: len(list(run.glob("attempts/[0-9]*"))) for run in (self.home / "runs").iterdir()}

    def curves(self) -> list[dict[str, Any]]:
        """Every logged number of every run but the clocks."""
        query = "SELECT run_id, step, tokens, flops, loss, lr, grad_norm FROM train ORDER BY run_id, step"
        rows: list[dict[str, Any]] = self.json("sql", query)
        return rows

    def weights(self) -> dict[str, str]:
        """Hash of the final weights of every finished run."""
        rows = self.json("sql", "SELECT run_id, weights_sha256 FROM runs WHERE state = 'DONE'")
        return {row["run_id"]: row["weights_sha256"] for row in rows}

    def worker_pids(self) -> list[int]:
        """Processes at work on this home: workers and their children."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue  # it ended while we looked
            if WORKER.search(command) and str(self.home) in command and not zombie:
                found.append(int(entry.name))
        return found

    def trainers(self) -> list[int]:
        """Those that a worker started: they train."""
        pids = self.worker_pids()
        return [pid for pid in pids if parent(pid) in pids]

    def kill_workers(self) -> int:
        """kill -9 everything at work; returns how many processes that were."""
        pids = self.worker_pids()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself a moment ago
        return len(pids)

    def checkpoints(self) -> int:
        return len(list(self.home.glob("runs/*/checkpoints/step_*/manifest.json")))

    def trained(self) -> int:
        """Runs that have a checkpoint."""
        return len({path.parents[2] for path in self.home.glob("runs/*/checkpoints/step_*/manifest.json")})

    def newest_step(self) -> int:
        """Of all whole checkpoints; 0 without one."""
        found = self.home.glob("runs/*/checkpoints/step_*/manifest.json")
        return max((int(path.parent.name.partition("_")[2]) for path in found), default=0)


def parent(pid: int) -> int:
    """The process that started this one; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_until(true: Callable[[], object], what: str, timeout: float = 120, every: float = 0.02) -> None:
    """Poll until `true()`; fails naming what was awaited.

    `timeout`: seconds, ample on a quiet machine; a busy one gets `PATIENCE` times as many. See `within` for promises.
    """
    within(true, what, PATIENCE * timeout, every)


def within(true: Callable[[], object], what: str, seconds: float, every: float = 0.02) -> None:
    """As `wait_until`, for what the program promises to do in so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(every)
