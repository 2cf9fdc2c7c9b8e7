"""Pull-workers as SLURM array tasks, submitted through submitit."""

import shlex
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission
from submitit.slurm.slurm import SlurmExecutor

from results.files import now, write_json
from sweeps import slurm, worker
from sweeps.spec import SweepError

DEFAULT_MINUTES = 60
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
    write_json(intent, record)
    executor = make_executor(Path(job.plan) / "jobs", name, snapshot, tasks, cpus, options)
    with executor.batch():
        submitted = [executor.submit(job) for _ in range(tasks)]
    job_id = str(submitted[0].job_id).partition("_")[0]
    write_json(intent, record | {"job_id": job_id})
    return job_id


def make_executor(
    folder: Path, name: str, snapshot: Path, tasks: int, cpus: int, options: dict[str, Any]
) -> SlurmExecutor:
    """submitit's executor with everything our jobs need. Raises SweepError for an unknown SLURM option."""
    executor = SlurmExecutor(folder=folder, python=shlex.quote(sys.executable))
    minutes = int(options.get("time", DEFAULT_MINUTES))
    parameters = {
        "job_name": name,
        "cpus_per_task": cpus,
        "array_parallelism": tasks,
        "time": minutes,
        "signal_delay_s": min(WARN_BEFORE_END_S, int(minutes * 60 / 5)),
        "stderr_to_stdout": True,
        "setup": [
            f"export PYTHONPATH={shlex.quote(str(snapshot))} PYTHONSAFEPATH=1",
            f"export OMP_NUM_THREADS={cpus} OPENBLAS_NUM_THREADS=1",
        ],
    }
    try:
        executor.update_parameters(**parameters | options)
    except ValueError as error:
        raise SweepError(f"--slurm: {error}") from None
    return executor
