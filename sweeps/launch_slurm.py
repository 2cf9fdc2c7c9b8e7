"""Pull-workers as SLURM array tasks, submitted through submitit."""

import math
import re
import shlex
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission, FailedJobError
from submitit.slurm.slurm import SlurmExecutor

from lmcore.config import did_you_mean
from results.files import now, write_json
from sweeps import slurm, worker
from sweeps.spec import SweepError

DEFAULT_MINUTES = 60
# Set by us and relied upon; several tasks or nodes would be several workers under one job id.
OURS = {
    "job_name",
    "array_parallelism",
    "signal_delay_s",
    "stderr_to_stdout",
    "setup",
    "teardown",
    "use_srun",
    "srun_args",
}
OURS |= {"nodes", "ntasks_per_node", "tasks_per_node"}
MAX_ARRAY_SIZE = "max_array_size"  # --slurm option of our own: the site's MaxArraySize, where scontrol does not tell
LIMITS = re.compile(r"Invalid job array|Submit.*Limit|submit limit|MaxJobCount|temporarily unable", re.IGNORECASE)
NO_ANSWER = re.compile(r"timed out|connect|contact|zero bytes", re.IGNORECASE)
WARN_BEFORE_END_S = 90  # of short jobs a fifth of the time: a warning at the start would leave no time to work


@dataclass(frozen=True)
class SlurmWorker:
    """What submitit carries: strings only. The job imports this class from the snapshot on its PYTHONPATH.

    Both checkpoint methods exist because submitit asks for either name; they are used only if the warning signal
    arrives before our own handlers are in place, and put the same worker back into the queue.
    """

    home: str
    plan: str
    call: str
    slots: str = "1"

    def __call__(self) -> int:
        assignment = worker.Assignment(
            Path(self.home), Path(self.plan), self.call, slurm.own_end_time(), int(self.slots)
        )
        if code := worker.run(assignment):
            raise SystemExit(code)
        return 0

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)

    __submitit_checkpoint__ = checkpoint


class SiteLimit(RuntimeError):
    """sbatch refused an array because of its size or of how much is queued already."""


@dataclass(frozen=True)
class Submitted:
    """Jobs that SLURM took, with `tasks` workers in all, and why not more if it refused some."""

    job_ids: Sequence[str]
    tasks: int
    refused: str | None


def submit(
    job: SlurmWorker, snapshot: Path, tasks: int, cpus: int, options: dict[str, Any], exclude: Sequence[str] = ()
) -> Submitted:
    """Submit `tasks` workers in arrays as large as the site allows. Raises SweepError if it takes none.

    The arrays together have no more tasks than may run at once, so the throttle holds for all of them.
    `options` are submitit's SLURM parameters (partition, time in minutes, gpus_per_node, mem, ...).
    """
    own = dict(options)
    size = int(own.pop(MAX_ARRAY_SIZE, 0)) or slurm.max_array_size()
    if exclude:
        own["exclude"] = ",".join(sorted({*exclude, *filter(None, str(own.get("exclude", "")).split(","))}))
    job_ids: list[str] = []
    left, refused = tasks, None
    while left and size:
        at_once = min(left, size)
        try:
            job_ids.append(submit_array(job, Path(job.plan), snapshot, at_once, cpus, own, {"call": job.call}))
            left -= at_once
        except SiteLimit as limit:
            refused, size = str(limit), at_once // 2
    if not job_ids:
        raise SweepError(f"sbatch refused: {refused}; nothing was submitted, the same command tries again")
    return Submitted(job_ids, tasks - left, refused if left else None)


def submit_array(
    job: Callable[[], int],
    plan: Path,
    snapshot: Path,
    tasks: int,
    cpus: int,
    options: dict[str, Any],
    record: Mapping[str, Any],
    kind: str = slurm.SUBMISSIONS,
) -> str:
    """One array (or one job); returns its id. The intent is on disk, under `kind`, before sbatch is called.

    Raises SiteLimit, SweepError.
    """
    name = f"lab-{uuid.uuid4().hex}"
    intent = plan / kind / f"{name}.json"
    intent.parent.mkdir(parents=True, exist_ok=True)
    content = {"uuid": name, "tasks": str(tasks), "submitted_at": now(), **record}
    executor = make_executor(plan / "jobs", name, snapshot, tasks, cpus, options)
    write_json(intent, content)
    try:
        with executor.batch():
            submitted = [executor.submit(job) for _ in range(tasks)]
    except FailedJobError as error:
        raise _refusal(name, intent, str(error)) from None
    job_id = str(submitted[0].job_id).partition("_")[0]
    write_json(intent, content | {"job_id": job_id})
    return job_id


def _refusal(name: str, intent: Path, said: str) -> Exception:
    """What an error of sbatch means. An answer that got lost may hide an accepted job: it is cancelled by its name."""
    lines = [line for line in said.splitlines() if line.startswith("sbatch: ")] or [said.strip().splitlines()[-1]]
    text = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)
    if NO_ANSWER.search(text):
        slurm.ask("scancel", "--name", name)
        return SweepError(f"sbatch did not answer ({text}); should it have taken the job, it was cancelled. Try again.")
    intent.unlink()  # sbatch has said no: there is no such job
    return SiteLimit(text) if LIMITS.search(text) else SweepError(f"sbatch refused: {text}")


def make_executor(
    folder: Path, name: str, snapshot: Path, tasks: int, cpus: int, options: dict[str, Any]
) -> SlurmExecutor:
    """submitit's executor with everything our jobs need. Raises SweepError for an unknown SLURM option."""
    minutes = check(options)
    executor = SlurmExecutor(folder=folder, python=shlex.quote(sys.executable))
    parameters = {
        "job_name": name,
        "cpus_per_task": cpus,
        "array_parallelism": tasks,
        "signal_delay_s": min(WARN_BEFORE_END_S, minutes * 60 // 5),
        "stderr_to_stdout": True,
        "setup": [
            f"export PYTHONPATH={shlex.quote(str(snapshot))} PYTHONSAFEPATH=1",
            f"export OMP_NUM_THREADS={cpus} OPENBLAS_NUM_THREADS=1",
        ],
    }
    try:
        executor.update_parameters(**parameters | options | {"time": minutes})
    except (ValueError, TypeError) as error:
        raise SweepError(f"--slurm: {error}") from None
    return executor


def check(options: dict[str, Any]) -> int:
    """Refuse options that cannot be (SweepError), before anything starts; returns the time limit in minutes."""
    if own := sorted(set(options) & OURS):
        raise SweepError(f"--slurm {own[0]}: lab sets this itself")
    for key in options:
        if key not in (known := SlurmExecutor._valid_parameters() | {MAX_ARRAY_SIZE}):
            raise SweepError(f"--slurm: unknown option {key!r}{did_you_mean(key, known)}")
    return _minutes(options.get("time", DEFAULT_MINUTES))


def _minutes(time: int | str) -> int:
    """Minutes, or SLURM's own [days-][hours:]minutes:seconds, rounded up. Raises SweepError."""
    seconds = 60 * time if isinstance(time, int) else slurm.seconds(time)
    if not seconds or seconds < 0:
        raise SweepError(f"--slurm time: minutes or [days-]hours:minutes:seconds, not {time!r}")
    return math.ceil(seconds / 60)
