"""Pull-workers as SLURM array tasks, submitted through submitit."""

import math
import shlex
import sys
import uuid
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

    def __call__(self) -> int:
        assignment = worker.Assignment(Path(self.home), Path(self.plan), self.call, slurm.own_end_time())
        if failed := worker.run(assignment):
            raise SystemExit(f"{failed} run(s) failed; see `lab status`")
        return 0

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)

    __submitit_checkpoint__ = checkpoint


def submit(job: SlurmWorker, snapshot: Path, tasks: int, cpus: int, options: dict[str, Any]) -> str:
    """Submit `tasks` workers as one array; returns the job id. The intent is on disk before sbatch is called.

    `options` are submitit's SLURM parameters (partition, time in minutes, gpus_per_node, mem, ...).
    """
    name = f"lab-{uuid.uuid4().hex}"
    intent = Path(job.plan) / "submissions" / f"{name}.json"
    intent.parent.mkdir(parents=True, exist_ok=True)
    record = {"uuid": name, "call": job.call, "tasks": str(tasks), "submitted_at": now()}
    executor = make_executor(Path(job.plan) / "jobs", name, snapshot, tasks, cpus, options)
    write_json(intent, record)
    try:
        with executor.batch():
            submitted = [executor.submit(job) for _ in range(tasks)]
    except FailedJobError as error:
        intent.unlink()  # sbatch has said no: there is no such job
        raise SweepError(f"sbatch refused: {str(error).strip().splitlines()[-1]}") from None
    job_id = str(submitted[0].job_id).partition("_")[0]
    write_json(intent, record | {"job_id": job_id})
    return job_id


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
        if key not in (known := SlurmExecutor._valid_parameters()):
            raise SweepError(f"--slurm: unknown option {key!r}{did_you_mean(key, known)}")
    return _minutes(options.get("time", DEFAULT_MINUTES))


def _minutes(time: int | str) -> int:
    """Minutes, or SLURM's own [days-][hours:]minutes:seconds, rounded up. Raises SweepError."""
    seconds = 60 * time if isinstance(time, int) else slurm.seconds(time)
    if not seconds or seconds < 0:
        raise SweepError(f"--slurm time: minutes or [days-]hours:minutes:seconds, not {time!r}")
    return math.ceil(seconds / 60)
