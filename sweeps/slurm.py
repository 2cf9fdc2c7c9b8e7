"""What is asked of SLURM besides submitting: who am I, what is queued, what ended where, requeue me, cancel that.

The scheduler's word is a hint: an empty or failed answer is never taken for the death of a job.
"""

import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.files import BadFile, read_json
from results.state import Hint, State

log = logging.getLogger("lab.slurm")

TIMEOUT_S = 30
SECOND_LOOK_S = 1.0
GONE = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
HELD = {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
HELD_REASON = "held|(?<!thres)hold"  # "JobHeldUser", "launch failed requeued held"; not "QOSUsageThreshold"
NO_REASON = ("None", "(null)", "")
MAX_ARRAY_SIZE = 1001  # SLURM's own default
_SUBMISSION = {"uuid": str, "tasks": re.compile("[0-9]{1,9}"), "job_id?": str}
SUBMISSIONS, ADVANCES = "submissions", "advances"  # folders of a plan: its workers, and the jobs between its stages


@dataclass(frozen=True)
class Queue:
    """What squeue says of one plan's jobs. `answered` is False when it could not be asked.

    `held` and `waiting` map a task to the reason; `nameless`: a submission whose job id was never learnt, so that a
    claim may name a job that no submission knows.
    """

    answered: bool = True
    words: Mapping[str, str] = field(default_factory=dict)  # task id such as 12_3 -> SLURM's state
    held: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)  # not held, and SLURM says why
    nameless: bool = False

    @property
    def live(self) -> list[str]:
        """Tasks that wait or run."""
        return [task for task, word in self.words.items() if word not in GONE]

    @property
    def advice(self) -> str:
        """The reasons of held tasks and the command that lets them go; "" without any."""
        if not self.held:
            return ""
        tasks = list(self.held)
        ids = tasks if len(tasks) <= 8 else sorted({task.partition("_")[0] for task in tasks})
        reasons = ", ".join(sorted(set(self.held.values())))
        return f"jobs held by SLURM: {len(tasks)} ({reasons}); to let them go: scontrol release {','.join(ids)}"

    @property
    def remarks(self) -> list[str]:
        """What a person should know of the whole queue: why jobs wait, and how to let held ones go."""
        reasons = ", ".join(sorted(set(self.waiting.values())))
        waits = f"jobs waiting in SLURM's queue: {len(self.waiting)} ({reasons})" if reasons else ""
        return [line for line in (waits, self.advice) if line]

    def hint(self) -> Hint:
        """The same as a hint for run states."""
        if not self.answered:
            return Hint(pending=None)
        jobs = {task: "GONE" if word in GONE else word for task, word in self.words.items()}
        others = "GONE" if self.nameless else "UNKNOWN"
        # While anything runs or is free to start, the sweep goes on: held tasks are then a remark, not a state.
        if self.held and set(self.held) == set(self.live):
            return Hint(jobs, State.HELD, others, self.advice)
        pending = any(self.words[task] == "PENDING" for task in self.live)
        return Hint(jobs, State.QUEUED if pending else None, others)


@dataclass(frozen=True)
class Ending:
    """How a task ended, as accounting tells: SLURM's state, the node, and how long it ran in seconds."""

    task: str
    state: str
    node: str
    seconds: float


def available() -> bool:
    """Whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def own_job() -> str | None:
    """The id of the job or array task this process runs in, as squeue prints it; None outside SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def own_node() -> str | None:
    """What SLURM calls this machine; None outside SLURM."""
    return os.environ.get("SLURMD_NODENAME")


def own_name() -> dict[str, str]:
    """The name of the job this process runs in, for the owner of a lock; nothing outside SLURM."""
    name = os.environ.get("SLURM_JOB_NAME")
    return {"job_name": name} if name and own_job() else {}


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether the job that `own_name` told of is over, asked twice."""
    name = owner.get("job_name")
    for wait in (0, SECOND_LOOK_S):
        time.sleep(wait if name else 0)
        rows = _rows([name]) if name else None
        if rows is None or any(word not in GONE for _, word, _ in rows):
            return False
    return True


def own_end_time() -> float | None:
    """When SLURM will end this job (epoch seconds); None outside SLURM or without a limit."""
    job = own_job()
    if job is None:
        return None
    if told := os.environ.get("SLURM_JOB_END_TIME"):
        return float(told)
    left = ask("squeue", "--noheader", "--job", job, "--format", "%L")  # SLURM before 23.02 sets no such variable
    remaining = seconds(left.strip()) if left else None
    return None if remaining is None else time.time() + remaining


def requeue_self() -> None:
    """Put this job, and of an array only this task, back into the queue. Nothing outside SLURM."""
    job = own_job()
    if job is not None:
        log.info("requeue %s", job)
        ask("scontrol", "requeue", job)


def cancel(job_ids: Iterable[str]) -> None:
    """End jobs, queued or running."""
    ids = list(job_ids)
    if ids:
        ask("scancel", *ids)


def max_array_size() -> int:
    """How many tasks an array may have at this site; SLURM's default where it does not say."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config") or "", re.MULTILINE)
    return max(1, int(found[1])) if found else MAX_ARRAY_SIZE


def queue(plan: Path, confirm: bool = False, kind: str = SUBMISSIONS) -> Queue:
    """The jobs submitted for a plan. With `confirm`, a job must be missing twice to count as gone."""
    submissions = read_submissions(plan, kind)
    if not submissions:
        return Queue()
    rows = _rows([s["uuid"] for s in submissions])
    if rows is None:
        return Queue(answered=False)
    words, held, waiting = dict.fromkeys(_tasks(submissions), "COMPLETED"), dict[str, str](), dict[str, str]()
    for task, word, reason in rows:
        words[task] = word
        if word in HELD or (word == "PENDING" and re.search(HELD_REASON, reason, re.IGNORECASE)):
            held[task] = reason
        elif word == "PENDING" and reason not in NO_REASON:
            waiting[task] = reason
    found = Queue(words=words, held=held, waiting=waiting, nameless=any("job_id" not in s for s in submissions))
    if confirm and any(word in GONE for word in words.values()):
        time.sleep(SECOND_LOOK_S)
        return twice(found, queue(plan, kind=kind))
    return found


def twice(first: Queue, second: Queue) -> Queue:
    """Two looks as one: gone is only what was gone both times."""
    if not (first.answered and second.answered):
        return Queue(answered=False)
    words = dict(second.words)
    for task, word in first.words.items():
        if word not in GONE and words.get(task, "COMPLETED") in GONE:
            words[task] = word
    return replace(second, words=words)


def endings(plan: Path) -> list[Ending]:
    """How the tasks of a plan ended, as far as accounting, or else the controller's memory, still knows."""
    jobs = [s["job_id"] for s in read_submissions(plan) if "job_id" in s]
    if not jobs:
        return []
    columns = "JobID,State,NodeList,ElapsedRaw"
    text = ask("sacct", "-X", "--noheader", "--parsable2", "-j", ",".join(jobs), "--format", columns, quiet=True)
    rows = [line.split("|") for line in (text or "").splitlines()]
    found = [Ending(r[0], r[1].partition(" ")[0], r[2], float(r[3])) for r in rows if len(r) == 4 and r[3].isdigit()]
    return found or [ending for job in jobs for ending in _remembered(job)]


def _remembered(job: str) -> list[Ending]:
    """The same from `scontrol show job`, which forgets a job minutes after its end."""
    found = []
    for text in re.split(r"(?=^JobId=)", ask("scontrol", "show", "job", job, quiet=True) or "", flags=re.MULTILINE):
        fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        if "JobState" in fields:
            array, index = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
            task = f"{array}_{index}" if array and index else fields["JobId"]
            ran = seconds(fields.get("RunTime", "")) or 0
            found.append(Ending(task, fields["JobState"], fields.get("NodeList", ""), float(ran)))
    return found


def read_submissions(plan: Path, kind: str = SUBMISSIONS) -> list[dict[str, Any]]:
    """The intents of a plan: uuid (the job's name), tasks, and job_id once sbatch has answered."""
    found = []
    for path in sorted((plan / kind).glob("*.json")):
        try:
            found.append(read_json(path, _SUBMISSION) or {})
        except BadFile as error:
            log.warning("%s", error)
    return [s for s in found if "uuid" in s]


def _tasks(submissions: list[dict[str, Any]]) -> list[str]:
    """Every task id that was submitted, as squeue would print it."""
    ids = []
    for submission in submissions:
        job, tasks = submission.get("job_id"), int(submission["tasks"])
        if job:
            ids += [f"{job}_{i}" for i in range(tasks)] if tasks > 1 else [job]
    return ids


def _rows(names: list[str]) -> list[tuple[str, str, str]] | None:
    """(task id, state, reason) of live jobs with these names; None when squeue gave no usable answer."""
    text = ask("squeue", "--noheader", "--array", "--name", ",".join(names), "--format", "%i|%T|%r")
    if text is None:
        return None
    rows = [line.strip().split("|") for line in text.splitlines() if line.strip()]
    if any(len(row) != 3 for row in rows):
        log.warning("squeue answered something else than asked: %r", text[:200])
        return None
    return [(task, word, reason) for task, word, reason in rows]


def ask(*command: str, quiet: bool = False) -> str | None:
    """stdout of a SLURM command; None, and unless `quiet` a warning, when it failed or did not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.log(logging.DEBUG if quiet else logging.WARNING, "%s: %s", command[0], error)
        return None
    if done.returncode:
        text = " ".join(command)[:200]
        log.log(logging.DEBUG if quiet else logging.WARNING, "%s failed: %s", text, done.stderr.strip())
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
