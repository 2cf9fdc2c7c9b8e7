"""What the rest of the project takes for granted about SLURM, seen on a real one."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import submitit

from tests.slurm import cluster

pytestmark = pytest.mark.slurm

# One line per start, then wait until the test creates `go`; a TERM is noted and obeyed.
WAITING_JOB = """\
#!/bin/bash
trap 'echo "term ${SLURM_ARRAY_TASK_ID:-0}"; exit 0' TERM
echo "start ${SLURM_ARRAY_TASK_ID:-0} restarts=${SLURM_RESTART_COUNT:-0} job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"
while [ ! -e go ]; do sleep 0.1; done
echo "end ${SLURM_ARRAY_TASK_ID:-0}"
"""


def run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def wait_for(condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}\n{run('squeue')}"
        time.sleep(0.1)


def lines(folder: Path, task: int) -> list[str]:
    """What the job itself wrote; SLURM and bash add their own lines about the signal."""
    path = folder / f"out-{task}"
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines() if line.startswith(("start", "term", "end"))]


def submit_waiting(folder: Path, *flags: str) -> str:
    """Submit WAITING_JOB from `folder`; returns the job id."""
    (folder / "job.sh").write_text(WAITING_JOB)
    return run("sbatch", "--parsable", "--open-mode=append", *flags, "job.sh", cwd=folder)


def gone(job: str) -> bool:
    return not run("squeue", "--noheader", f"--jobs={job}")


def test_submitit_runs_an_array(tmp_path: Path) -> None:
    executor = submitit.SlurmExecutor(folder=tmp_path, max_num_timeout=0)
    executor.update_parameters(partition="main", time=2, array_parallelism=2)
    command = submitit.helpers.CommandFunction(["bash", "-c", 'echo "$0 $SLURM_ARRAY_TASK_ID"'], verbose=False)
    jobs = executor.map_array(command, ["a", "b", "c"])
    assert [job.result().strip() for job in jobs] == ["a 0", "b 1", "c 2"]
    assert {job.job_id for job in jobs} == {f"{jobs[0].job_id.split('_')[0]}_{task}" for task in range(3)}


def test_requeue_of_one_array_task_reruns_only_that_task(tmp_path: Path) -> None:
    job = submit_waiting(tmp_path, "--array=0-1", "--output=out-%a")
    wait_for(lambda: all(lines(tmp_path, task) for task in (0, 1)), "both tasks start")
    run("scontrol", "requeue", f"{job}_1")
    wait_for(lambda: f"start 1 restarts=1 job={job}" in lines(tmp_path, 1), "task 1 starts again, same id")
    (tmp_path / "go").touch()
    wait_for(lambda: gone(job), "the array ends")
    assert lines(tmp_path, 0) == [f"start 0 restarts=0 job={job}", "end 0"]
    assert lines(tmp_path, 1)[-1] == "end 1"


def test_urgent_preempts_main_which_comes_back_with_the_same_id(tmp_path: Path) -> None:
    job = submit_waiting(tmp_path, "--exclusive", "--output=out-0")
    wait_for(lambda: bool(lines(tmp_path, 0)), "the job starts")
    urgent = run("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    wait_for(lambda: gone(urgent), "the urgent job runs")
    wait_for(lambda: f"start 0 restarts=1 job={job}" in lines(tmp_path, 0), "the first job starts again")
    (tmp_path / "go").touch()
    wait_for(lambda: gone(job), "it ends")
    assert lines(tmp_path, 0) == [
        f"start 0 restarts=0 job={job}",
        "term 0",
        f"start 0 restarts=1 job={job}",
        "end 0",
    ]


def ports() -> list[str]:
    """The ports of the cluster behind SLURM_CONF, as its running controller tells them."""
    return [line for line in run("scontrol", "show", "config").splitlines() if "Port" in line]


@pytest.fixture
def other_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Not tmp_path: pytest closes it to other users, and the user munge has to reach its key.
    with tempfile.TemporaryDirectory(prefix="lab-slurm-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("LAB_SLURM_DIR", folder)
        yield
        cluster.stop()


@pytest.mark.usefixtures("other_folder")
def test_a_second_cluster_lives_beside_the_first() -> None:
    before = ports()
    conf = cluster.start()
    assert cluster.start() == conf
    assert cluster.ask("sinfo", "--noheader", "--format=%R").split() == ["main", "urgent"]
    assert cluster.ask("srun", "--ntasks=1", "echo", "here", timeout=20) == "here"
    cluster.stop()
    assert not cluster.alive()
    assert ports() == before


def test_no_daemon_is_taken_for_ours_because_of_a_stale_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = cluster.pid_of("slurmd")
    monkeypatch.setenv("LAB_SLURM_DIR", str(tmp_path))
    (tmp_path / "slurmd").mkdir()
    (tmp_path / "slurmd" / "pid").write_text(str(stranger or 1))
    assert cluster.pid_of("slurmd") is None
