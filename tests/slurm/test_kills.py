"""kill -9 at random over a sweep on a real SLURM, its daemons among the victims; `LAB_KILLS` of them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kills import assert_nothing_lost, storm
from tests.slurm import cluster
from tests.user import User, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

KILLS = int(os.environ.get("LAB_KILLS", "15"))
RUNS = ["--scale", "medium", "--set", "train.steps=5000", "--set", "train.checkpoint_every=200",
        "--set", "train.log_every=250", "--yes", "-j", "2"]  # fmt: skip


def restart(daemon: str) -> bool:
    """kill -9 and start again, as systemd would."""
    pid = cluster.pid_of(daemon)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: cluster.pid_of(daemon) is None, f"{daemon} to be gone", 20)
    cluster.spawn(daemon, "-f", str(cluster.conf_path()))
    # Where a job ended while its slurmd was dead, SLURM may drain the node; an administrator's word brings it back.
    subprocess.run(["scontrol", "update", "nodename=lab-node", "state=resume"], capture_output=True)
    return True


@pytest.fixture
def node_is_back() -> Iterator[None]:
    yield
    subprocess.run(["scontrol", "update", "nodename=lab-node", "state=resume"], capture_output=True)
    cluster.wait_idle(60)


@pytest.mark.usefixtures("node_is_back")
def test_runs_launchers_and_daemons_are_killed_and_nothing_is_lost(user: User, place: Path, sweep_file: Path) -> None:
    calm, sweep = User(place / "calm"), ["sweep", str(sweep_file), *RUNS]
    calm.lab(*sweep)
    daemons = {"slurmctld": lambda: restart("slurmctld"), "slurmd": lambda: restart("slurmd")}
    print("\n" + storm(user, "width", [*sweep, "--cluster", "slurm"], KILLS, daemons))
    assert_nothing_lost(user, calm, "width", rows_per_run=20)
