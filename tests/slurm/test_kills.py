"""kill -9 at random over a sweep on a real SLURM, its daemons among the victims; `LAB_KILLS` of them."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kills import assert_nothing_lost, storm
from tests.slurm import cluster
from tests.user import User, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

KILLS = int(os.environ.get("LAB_KILLS", "15"))
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
    # SLURM may drain the node over it (`cluster.bring_back` says when); an administrator's word brings it back.
    subprocess.run(["scontrol", "update", "nodename=lab-node", "state=resume"], capture_output=True)
    return True


def test_runs_launchers_and_daemons_are_killed_and_nothing_is_lost(user: User, place: Path, sweep_file: Path) -> None:
    calm, sweep = User(place / "calm"), ["sweep", str(sweep_file), *RUNS]
    calm.lab(*sweep)
    daemons = {"slurmctld": lambda: restart("slurmctld"), "slurmd": lambda: restart("slurmd")}
    print("\n" + storm(user, "width", [*sweep, "--cluster", "slurm"], KILLS, daemons))
    assert_nothing_lost(user, calm, "width", rows_per_run=STEPS // LOG_EVERY)
