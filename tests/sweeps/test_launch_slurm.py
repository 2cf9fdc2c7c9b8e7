"""The text handed to sbatch, held by a golden file, and what squeue's answers are taken to mean."""

import os
from pathlib import Path
from typing import Any

import pytest

from results.files import write_json
from results.state import State
from sweeps import slurm
from sweeps.launch_slurm import SlurmWorker, make_executor
from sweeps.spec import SweepError

GOLDEN = Path(__file__).parent / "golden_sbatch.txt"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand in for SLURM's; submitit only looks whether srun is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "srun", "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return folder


def sbatch_text(options: dict[str, Any]) -> str:
    executor = make_executor(Path("/home/plan/jobs"), "lab-0123", Path("/home/snapshots/abc"), 3, 2, options)
    executor.parameters["map_count"] = 3
    executor.python = "/venv/bin/python"
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "uid")
    return text


def test_the_sbatch_text_is_the_golden_one(tools: Path) -> None:
    assert sbatch_text({"partition": "gpu", "gpus_per_node": 1, "mem": "16GB"}) == GOLDEN.read_text()


def test_a_short_job_is_warned_late_enough_to_work(tools: Path) -> None:
    assert "--signal=USR2@12" in sbatch_text({"time": 1})
    assert "--signal=USR2@90" in sbatch_text({})


def test_an_unknown_slurm_option_is_refused(tools: Path) -> None:
    with pytest.raises(SweepError, match="partitoin"):
        sbatch_text({"partitoin": "gpu"})


def test_names_with_spaces_and_quotes_stay_one_word(tools: Path) -> None:
    executor = make_executor(Path("/a b/jobs"), "lab-0", Path("/it's here/s n"), 1, 1, {})
    text = executor._make_submission_file_text(executor._submitit_command_str, "uid")
    assert "PYTHONPATH='/it'\"'\"'s here/s n'" in text


def test_what_submitit_carries_puts_itself_back(tools: Path) -> None:
    worker = SlurmWorker("/home", "/plan", "call")
    assert worker.checkpoint().function is worker
    assert worker.__submitit_checkpoint__().function is worker


def submitted(plan: Path, tasks: int = 2) -> None:
    (plan / "submissions").mkdir(parents=True)
    write_json(plan / "submissions" / "lab-1.json", {"uuid": "lab-1", "tasks": str(tasks), "job_id": "7"})


@pytest.mark.parametrize(
    ("answer", "words", "pending"),
    [
        ("echo '7_0|RUNNING|None'; echo '7_1|PENDING|Resources'", {"7_0": "RUNNING", "7_1": "PENDING"}, State.QUEUED),
        ("echo '7_0|RUNNING|None'", {"7_0": "RUNNING", "7_1": "GONE"}, None),
        ("true", {"7_0": "GONE", "7_1": "GONE"}, None),
        ("echo '7_0|PENDING|launch failed requeued held'", {"7_0": "PENDING", "7_1": "GONE"}, State.HELD),
        ("echo '7_0|PENDING|QOSUsageThreshold'", {"7_0": "PENDING", "7_1": "GONE"}, State.QUEUED),
        ("echo '7_0|PENDING|JobHoldMaxRequeue'", {"7_0": "PENDING", "7_1": "GONE"}, State.HELD),
        ("echo '7_0|CONFIGURING|None'; echo '7_1|STAGE_OUT|None'", {"7_0": "CONFIGURING", "7_1": "STAGE_OUT"}, None),
        ("exit 1", {}, None),
        ("echo garbage", {}, None),
    ],
)
def test_what_squeue_says(
    answer: str, words: dict[str, str], pending: State | None, tools: Path, tmp_path: Path
) -> None:
    program(tools, "squeue", answer)
    submitted(tmp_path)
    queue = slurm.queue(tmp_path)
    assert queue.answered is bool(words)
    assert dict(queue.hint().jobs) == words
    assert queue.hint().pending is pending


def test_why_jobs_wait_is_told_where_slurm_says_it(tools: Path, tmp_path: Path) -> None:
    program(tools, "squeue", "echo '7_0|PENDING|Priority'; echo '7_1|PENDING|(null)'; echo '7_2|PENDING|JobHeldUser'")
    submitted(tmp_path, 3)
    assert slurm.queue(tmp_path).remarks == [
        "jobs waiting in SLURM's queue: 1 (Priority)",
        "jobs held by SLURM: 1 (JobHeldUser); to let them go: scontrol release 7_2",
    ]


def test_a_job_must_be_missing_twice_to_count_as_gone(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SECOND_LOOK_S", 0.01)
    program(tools, "squeue", f"test -e {tmp_path}/seen && echo '7|RUNNING|None'; touch {tmp_path}/seen")
    submitted(tmp_path, tasks=1)
    assert slurm.queue(tmp_path, confirm=True).live == ["7"]


def test_nothing_is_asked_where_nothing_was_submitted(tools: Path, tmp_path: Path) -> None:
    program(tools, "squeue", "exit 1")
    assert slurm.queue(tmp_path) == slurm.Queue()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("59", 59), ("1:00", 60), ("2:00:01", 7201), ("1-00:00:00", 86400), ("UNLIMITED", None), ("NOT_SET", None)],
)
def test_time_left_as_slurm_writes_it(text: str, seconds: int | None) -> None:
    assert slurm.seconds(text) == seconds


def test_only_this_array_task_is_requeued(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tools, "scontrol", f'echo "$@" > {tmp_path}/asked')
    for name, value in (("SLURM_JOB_ID", "9"), ("SLURM_ARRAY_JOB_ID", "7"), ("SLURM_ARRAY_TASK_ID", "1")):
        monkeypatch.setenv(name, value)
    slurm.requeue_self()
    assert (tmp_path / "asked").read_text() == "requeue 7_1\n"
