"""kill -9 at random over a sweep on a real SLURM, its daemons among the victims; `LAB_KILLS` of them."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kills import assert_nothing_lost, storm
from tests.slurm import cluster
from tests.user import User, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

KILLS = int(os.environ.get("LAB_KILLS", "10"))
LOG_EVERY = 250
STEPS = max(5000, 60 * KILLS)  # so that the last kill still meets runs that train
RUNS = ["--scale", "medium", "--set", f"train.steps={STEPS}", "--set", "train.checkpoint_every=200",
        "--set", f"train.log_every={LOG_EVERY}", "--yes", "--no-report", "-j", "2"]  # fmt: skip


def restart(daemon: str) -> bool:
    """kill -9 and start again, as systemd would."""
    pid = cluster.pid_of(daemon)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: cluster.pid_of(daemon) is None, f"{daemon} to be gone", 20)
    cluster.spawn(daemon, "-f", str(cluster.conf_path()))
    return True


@pytest.fixture
def administrator() -> Iterator[None]:
    """Somebody who does what SLURM, and `lab status`, ask for: brings back a drained node, lets held jobs go.

    `cluster.bring_back` says when SLURM drains a node; the jobs that it could not start there it holds.
    """
    over = threading.Event()

    def care() -> None:
        while not over.wait(2):
            cluster.ask("scontrol", "update", "nodename=lab-node", "state=resume")
            jobs = cluster.ask("squeue", "--noheader", "--format=%i %r").splitlines()
            if held := [line.split()[0] for line in jobs if "held" in line]:
                cluster.ask("scontrol", "release", ",".join(held))

    carer = threading.Thread(target=care)
    carer.start()
    yield
    over.set()
    carer.join()


@pytest.mark.usefixtures("administrator")
def test_runs_launchers_and_daemons_are_killed_and_nothing_is_lost(user: User, place: Path, sweep_file: Path) -> None:
    calm, sweep = User(place / "calm"), ["sweep", str(sweep_file), *RUNS]
    calm.lab(*sweep)
    daemons = {"slurmctld": lambda: restart("slurmctld"), "slurmd": lambda: restart("slurmd")}
    print("\n" + storm(user, "width", [*sweep, "--cluster", "slurm"], KILLS, daemons))
    assert_nothing_lost(user, calm, "width", rows_per_run=STEPS // LOG_EVERY)
