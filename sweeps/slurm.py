"""What is asked of SLURM besides submitting: who am I, what is queued, requeue me, cancel that.

The scheduler's word is a hint: an empty or failed answer is never taken for the death of a job.
"""

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from results.files import BadFile, read_json
from results.state import Hint, State

log = logging.getLogger("lab.slurm")

TIMEOUT_S = 30
SECOND_LOOK_S = 1.0
GONE = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}


@dataclass(frozen=True)
class Queue:
    """What squeue says of one plan's jobs. `answered` is False when it could not be asked."""

    answered: bool = True
    words: Mapping[str, str] = field(default_factory=dict)  # task id such as 12_3 -> SLURM's state
    held: frozenset[str] = frozenset()

    @property
    def live(self) -> list[str]:
        """Tasks that wait or run."""
        return [task for task, word in self.words.items() if word not in GONE]

    def hint(self) -> Hint:
        """The same as a hint for run states."""
        if not self.answered:
            return Hint(pending=None)
        jobs = {task: "GONE" if word in GONE else word for task, word in self.words.items()}
        waiting = [task for task in self.live if self.words[task] == "PENDING"]
        if waiting and self.held.issuperset(waiting):
            return Hint(jobs, State.HELD)
        return Hint(jobs, State.QUEUED if waiting else None)


def available() -> bool:
    """Whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def own_job() -> str | None:
    """The id of the job or array task this process runs in, as squeue prints it; None outside SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def own_end_time() -> float | None:
    """When SLURM will end this job (epoch seconds); None outside SLURM or without a limit."""
    job = own_job()
    if job is None:
        return None
    if told := os.environ.get("SLURM_JOB_END_TIME"):
        return float(told)
    left = _ask("squeue", "--noheader", "--job", job, "--format", "%L")  # SLURM before 23.02 sets no such variable
    remaining = seconds(left.strip()) if left else None
    return None if remaining is None else time.time() + remaining


def requeue_self() -> None:
    """Put this job, and of an array only this task, back into the queue. Nothing outside SLURM."""
    job = own_job()
    if job is not None:
        log.info("requeue %s", job)
        _ask("scontrol", "requeue", job)


def cancel(job_ids: Iterable[str]) -> None:
    """End jobs, queued or running."""
    ids = list(job_ids)
    if ids:
        _ask("scancel", *ids)


def queue(plan: Path, confirm: bool = False) -> Queue:
    """The jobs submitted for a plan. With `confirm`, a job must be missing twice to count as gone."""
    submissions = read_submissions(plan)
    if not submissions:
        return Queue()
    rows = _rows([s["uuid"] for s in submissions])
    if rows is None:
        return Queue(answered=False)
    words, held = dict.fromkeys(_tasks(submissions), "COMPLETED"), set()
    for task, word, reason in rows:
        words[task] = word
        if "held" in reason.lower():
            held.add(task)
    if confirm and any(word in GONE for word in words.values()):
        time.sleep(SECOND_LOOK_S)
        again = queue(plan)
        words = {task: again.words.get(task, word) if word in GONE else word for task, word in words.items()}
        return Queue(again.answered, words, frozenset(held) | again.held)
    return Queue(True, words, frozenset(held))


def read_submissions(plan: Path) -> list[dict[str, str]]:
    """The intents of a plan: uuid (the job's name), tasks, and job_id once sbatch has answered."""
    found = []
    for path in sorted((plan / "submissions").glob("*.json")):
        try:
            found.append(read_json(path) or {})
        except BadFile as error:
            log.warning("%s", error)
    return [s for s in found if "uuid" in s]


def _tasks(submissions: list[dict[str, str]]) -> list[str]:
    """Every task id that was submitted, as squeue would print it."""
    ids = []
    for submission in submissions:
        job, tasks = submission.get("job_id"), int(submission["tasks"])
        if job:
            ids += [f"{job}_{i}" for i in range(tasks)] if tasks > 1 else [job]
    return ids


def _rows(names: list[str]) -> list[tuple[str, str, str]] | None:
    """(task id, state, reason) of live jobs with these names; None when squeue gave no usable answer."""
    text = _ask("squeue", "--noheader", "--array", "--name", ",".join(names), "--format", "%i|%T|%r")
    if text is None:
        return None
    rows = [line.strip().split("|") for line in text.splitlines() if line.strip()]
    if any(len(row) != 3 for row in rows):
        log.warning("squeue answered something else than asked: %r", text[:200])
        return None
    return [(task, word, reason) for task, word, reason in rows]


def _ask(*command: str) -> str | None:
    """stdout of a SLURM command; None, and a warning, when it failed or did not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", command[0], error)
        return None
    if done.returncode:
        log.warning("%s failed: %s", " ".join(command), done.stderr.strip())
        return None
    return done.stdout


def seconds(text: str) -> int | None:
    """SLURM's [days-][hours:]minutes:seconds; None for UNLIMITED, NOT_SET and the like."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return total + 86400 * int(days or 0)
