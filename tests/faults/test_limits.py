"""Site limits: the size of arrays, the number of queued jobs, the throttle."""

import re
import time
from pathlib import Path

import pytest

from tests.fake_slurm import Cluster
from tests.faults.conftest import EVERYTHING, ON_SLURM, MakeSweep
from tests.faults.disk import shim, slow
from tests.user import User, wait_until

pytestmark = pytest.mark.slow


def arrays(cluster: Cluster) -> list[tuple[int, int]]:
    """(tasks, throttle) of every array whose script still exists, which are those that were accepted."""
    found = []
    for arguments in cluster.calls("sbatch"):
        script = Path(arguments[-1])
        if script.exists() and (match := re.search(r"--array=0-(\d+)%(\d+)", script.read_text())):
            found.append((int(match[1]) + 1, int(match[2])))
    return found


def done(user: User) -> int:
    return len(list(user.home.glob("runs/*/DONE.json")))


def test_arrays_are_cut_and_what_is_refused_is_said_and_continued(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    """40 workers where an array has 15 tasks at most and 25 jobs may be queued: 25 now, the rest with the next call."""
    cluster.set(nodes={}, max_array_size=15, max_submit=25)
    command = ["sweep", str(make_sweep(seeds=60)), *ON_SLURM, "-j", "40", "--no-wait"]
    first = user.lab(*command)
    assert "QOSMaxSubmitJobPerUserLimit" in first.stderr
    assert "with 25 workers" in first.stderr
    # squeue tells how many; the arrays' scripts tell their sizes.
    assert (15, 15) in arrays(cluster)
    assert all(size <= 15 and throttle == size for size, throttle in arrays(cluster))
    assert sum(task["state"] == "PENDING" for task in cluster.tasks()) + cluster.order()["waiting"] == 25
    refused = user.lab(*command, code=1)
    assert "nothing was submitted" in refused.stderr
    cluster.set(max_submit=100)
    assert "with 15 workers" in user.lab(*command).stderr
    assert cluster.order()["waiting"] + len(cluster.tasks()) == 40
    assert "already at work" in user.lab(*command).stderr
    cluster.set(nodes={"n1": 2})
    wait_until(lambda: done(user) == 60, "all runs", 120, every=0.5)
    assert set(user.attempts().values()) == {1}
    assert len(list(user.home.glob("sweeps/*/*/submissions/*.json"))) == len(
        {*user.home.glob("sweeps/*/*/submissions/*")}
    )


def test_where_scontrol_does_not_tell_the_limit_can_be_given(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    cluster.set(nodes={}, max_array_size=10)
    cluster.lie("scontrol", mode="fail")
    command = ["sweep", str(make_sweep(seeds=30)), *ON_SLURM, "-j", "25", "--no-wait"]
    user.lab(*command, "--slurm", "max_array_size=10")
    assert len(cluster.calls("sbatch")) == 3


def test_tasks_that_start_at_once_find_their_files(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    cluster.set(nodes={"n1": 40})
    user.lab("sweep", str(make_sweep(seeds=40)), *ON_SLURM, "-j", "12")
    assert user.states("tiny") == ["DONE"] * 40
    assert {task["state"] for task in cluster.tasks()} == {"COMPLETED"}


def test_tasks_that_start_at_once_find_their_files_on_a_slow_file_system(
    user: User, cluster: Cluster, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    """5 ms per operation, for the launcher and for the jobs, which start before sbatch has answered."""
    cluster.set(nodes={"n1": 4})
    user.environment |= slow(shim(tmp_path), user.home, 5)
    user.lab("sweep", str(make_sweep(seeds=12)), *ON_SLURM, "-j", "4")
    assert user.states("tiny") == ["DONE"] * 12
    assert {task["state"] for task in cluster.tasks()} == {"COMPLETED"}
    assert set(user.attempts().values()) == {1}


def test_many_runs_under_a_small_limit_all_run_once(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    """`LAB_FAULTS=all`: 2,500 runs under SLURM's usual limits; otherwise a fifth of all these numbers."""
    share = 1 if EVERYTHING else 5
    runs = 2500 // share
    cluster.set(nodes={"n1": 2, "n2": 2}, max_array_size=1001 // share, max_submit=500 // share)
    began = time.monotonic()
    user.lab("sweep", str(make_sweep(seeds=runs, steps=1)), *ON_SLURM, "-j", "4", "--no-wait")
    print(f"submitted in {time.monotonic() - began:.1f} s")
    wait_until(lambda: done(user) == runs, f"{runs} runs", 900, every=2)
    print(f"done after {time.monotonic() - began:.1f} s")
    assert set(user.attempts().values()) == {1}
    assert cluster.order()["most_running"] <= 4
