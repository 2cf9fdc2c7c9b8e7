"""A SLURM that is made of local processes and can lie, stall and refuse: `Cluster` starts one in a folder of its own.

`bin/` of that folder, on the PATH, holds `sbatch squeue sacct scancel scontrol srun`. They ask a controller process
(`controller.py`), which a test may kill and start again while jobs go on. Every call is on record with its arguments.
Hosts are real to the jobs (each has a UTS namespace of its own, which needs root and `unshare`).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun")


def possible() -> bool:
    """Whether this machine lets us give processes a host name."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None


class Cluster:
    """One fake cluster. Settings are those of `simulator.SETTINGS`."""

    def __init__(self, **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fake-slurm-"))  # short: a socket's path has 107 characters
        (self.folder / "bin").mkdir()
        for name in NAMES:
            self._install(name)
        self.start()
        self.set(**settings)

    def _install(self, name: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {HERE / "client.py"} "$0" "$@"\n')
        path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What a user of this cluster has set."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SLURM_CONF": "/dev/null"}

    def start(self) -> None:
        """Start the controller, or start it again: it continues from its saved state."""
        command = [sys.executable, "-IS", str(HERE / "controller.py"), str(self.folder)]
        log = (self.folder / "controller.log").open("ab")
        # Without a session of its own a Ctrl-C at the tests would end it before they clean up.
        self.controller = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        log.close()
        self.killed = False
        assert self.controller.stdout is not None
        assert self.controller.stdout.readline() == b"up\n", (self.folder / "controller.log").read_text()

    def kill_controller(self) -> None:
        """kill -9; jobs go on, commands fail until `start`."""
        self.controller.kill()
        self.controller.communicate()
        self.killed = True

    def remove_command(self, name: str) -> None:
        """As on a site that has none."""
        (self.folder / "bin" / name).write_text("#!/bin/sh\nexit 127\n")

    def order(self, **order: Any) -> dict[str, Any]:
        """Tell the controller to make something happen; returns how things are."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "socket"))
            with connection.makefile("rw") as stream:
                stream.write(json.dumps({"name": "control", "args": order}) + "\n")
                stream.flush()
                reply: dict[str, Any] = json.loads(json.loads(stream.readline())["out"])
                return reply

    def set(self, **settings: Any) -> None:
        self.order(set=settings)

    def lie(self, command: str = "squeue", mode: str | None = None, **details: Any) -> None:
        """From now on that command answers so: empty, fail, garbage, slow (seconds=), words={task: word}."""
        self.set(lies={command: {"mode": mode, **details}} if mode or details else {})

    def tasks(self) -> list[dict[str, Any]]:
        """Tasks that started or were touched: id, state, node, reason, restarts, running."""
        found: list[dict[str, Any]] = self.order()["tasks"]
        return found

    def calls(self, name: str) -> list[list[str]]:
        """Arguments of every call of a command, in order."""
        path = self.folder / "calls.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row["args"] for row in rows if row["name"] == name]

    def close(self) -> None:
        """End all jobs, at once, and the controller."""
        died = self.controller.poll() is not None and not self.killed
        if self.controller.poll() is not None:
            self.kill_controller()
            self.start()
        self.set(nodes={}, kill_wait=0.0)
        for task in self.tasks():
            if task["running"]:
                self.command("scancel", "--signal=KILL", "--full", task["id"])
        end = time.monotonic() + 10
        while any(task["running"] for task in self.tasks()) and time.monotonic() < end:
            time.sleep(0.05)
        self.kill_controller()
        log = (self.folder / "controller.log").read_text()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not died, f"the fake controller died: {log}"

    def command(self, name: str, *arguments: str) -> None:
        """Call one of the commands as the user would."""
        subprocess.run([str(self.folder / "bin" / name), *arguments], check=False, capture_output=True)
