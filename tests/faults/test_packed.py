"""Several runs in one job of a scheduler, or on one device: never more than asked, and the death of one is its own."""

import os
import time
from pathlib import Path

import pytest

from tests.fake_slurm import Cluster
from tests.faults.conftest import ON_SLURM, MakeSweep
from tests.faults.test_laptop import with_code
from tests.user import User, wait_until

pytestmark = pytest.mark.slow

GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # version 1, version 2
KILLED = """
if config.seed == 1:
    from pathlib import Path
    group = Path({group!r})
    (group / "cgroup.procs").write_text(str(os.getpid()))
    taken = []
    while True:
        taken.append(bytearray(b"x" * (16 << 20)))
"""
DEVICES = "print('device', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)"


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A control group in which the kernel kills what takes more memory than 600 MB."""
    for place in GROUPS:
        found, limits = place / f"lab-test-{os.getpid()}", ("memory.limit_in_bytes", "memory.max")
        try:
            found.mkdir()
        except OSError:
            continue
        for limit in limits:
            if (found / limit).exists():
                (found / limit).write_text(str(600 << 20))
                return found
        found.rmdir()
    pytest.skip("needs a control group for memory")


def most_at_once(user: User, cluster: Cluster, runs: int) -> int:
    """Watch until so many runs have ended; the largest number of attempts open at one time."""
    most, end = 0, time.monotonic() + 180
    while time.monotonic() < end:
        attempts = list(user.home.glob("runs/*/attempts/[0-9]*"))
        ended = [a for a in attempts if (a / "exit.json").exists()]
        most = max(most, len(attempts) - len(ended))
        if len(ended) == runs or (cluster.tasks() and not any(task["running"] for task in cluster.tasks())):
            return most
        time.sleep(0.02)
    raise AssertionError("they do not end")


def test_the_kernel_kills_one_of_four_in_a_job(
    user: User, cluster: Cluster, make_sweep: MakeSweep, tmp_path: Path, group: Path
) -> None:
    """Out of memory, told as such although the run had no last words; its neighbours end as ever."""
    try:
        with_code(tmp_path, user, KILLED.format(group=str(group)))
        user.environment["CUDA_VISIBLE_DEVICES"] = "0"
        command = ["sweep", str(make_sweep(seeds=4, steps=300)), *ON_SLURM, "-j", "4", "--runs-per-gpu", "4"]
        user.lab(*command, "--no-wait")
        assert most_at_once(user, cluster, 4) <= 4
        wait_until(lambda: not any(task["running"] for task in cluster.tasks()), "the job to end", 60)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty", 30)
        group.rmdir()
    runs = {run["seed"]: run for run in user.json("status", "tiny")["runs"]}
    assert {seed: (run["state"], run["kind"]) for seed, run in runs.items()} == {
        0: ("DONE", None),
        1: ("FAILED", "oom"),
        2: ("DONE", None),
        3: ("DONE", None),
    }
    assert "kernel" in runs[1]["detail"]
    assert set(user.attempts().values()) == {1}
    assert len(cluster.calls("sbatch")) == 1, "four runs, one job"
    groups = user.json("failures", "tiny")["groups"]
    assert [(group["kind"], group["runs"]) for group in groups] == [("oom", [runs[1]["run_id"]])]


@pytest.mark.parametrize(("gpus", "per_gpu", "jobs", "slots"), [(1, 2, 4, 2), (2, 2, 4, 4)])
def test_devices_of_a_job_are_divided_and_never_more_run_than_asked(
    user: User, cluster: Cluster, make_sweep: MakeSweep, tmp_path: Path, gpus: int, per_gpu: int, jobs: int, slots: int
) -> None:
    with_code(tmp_path, user, DEVICES)
    user.environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
    more = ["-j", str(jobs), "--runs-per-gpu", str(per_gpu), "--slurm", f"gpus_per_node={gpus}"]
    user.lab("sweep", str(make_sweep(seeds=6, steps=1500)), *ON_SLURM, *more, "--no-wait")
    most = most_at_once(user, cluster, 6)
    assert 1 < most <= jobs
    assert len(cluster.tasks()) == jobs // slots
    wait_until(lambda: user.states("tiny") == ["DONE"] * 6, "all of them", 60)
    logs = [path.read_text() for path in user.home.glob("runs/*/attempts/0001/log.txt")]
    seen = sorted(line for log in logs for line in log.splitlines() if line.startswith("device"))
    assert len(seen) == 6
    assert set(seen) == {f"device {gpu}" for gpu in range(gpus)}
