"""Start what is missing of a plan, here or on SLURM. Calling it again starts only what is still missing."""

import getpass
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from results.files import now, write_json
from results.home import Home
from results.state import RunState, State, claimable
from sweeps import launch_local, slurm, snapshot
from sweeps.plan import Plan
from sweeps.spec import SweepError
from sweeps.stored import run_states

Cluster = Literal["local", "slurm"]
MAX_ARRAY_TASKS = 32  # pull-workers per call unless -j says otherwise; each takes as many runs as its time allows


@dataclass(frozen=True)
class Options:
    """How to start a plan. `jobs` None: as many as the machine has cores for (local), or MAX_ARRAY_TASKS (SLURM)."""

    cluster: Cluster = "local"
    jobs: int | None = None
    retry_failed: bool = False
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def workers(self, plan: Plan) -> int:
        """How many runs at once at most."""
        if self.jobs is not None:
            return self.jobs
        return MAX_ARRAY_TASKS if self.cluster == "slurm" else max(1, cores() // _threads(plan))


@dataclass(frozen=True)
class Launched:
    """What a call started: local processes, a SLURM job, or nothing."""

    missing: int
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    job_id: str | None = None
    note: str = ""


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch(plan: Plan, home: Home, options: Options) -> Launched:
    """Store the plan, take a snapshot, start workers for the runs that need one. Raises SweepError."""
    if options.cluster == "slurm" and not slurm.available():
        raise SweepError("--cluster slurm needs `sbatch` on the PATH; this machine has none. Use --cluster local.")
    home.ensure()
    plan.write(home)
    folder = plan.folder(home)
    queue = slurm.queue(folder, confirm=True)
    states = run_states(home, [run.run_id for run in plan.runs], queue)
    retry = {s.run_id: s.attempts for s in states if _is_to_retry(s, options)}
    missing = [s for s in states if claimable(s.state) or s.state is State.CANCELLED or s.run_id in retry]
    code_hash = snapshot.take(home)
    call = _record_call(folder, code_hash, retry, options)
    for state in missing:
        home.run(state.run_id).clear_cancel()
    if not missing:
        return Launched(0)
    if not queue.answered:
        return Launched(len(missing), note="squeue does not answer, so nothing was started; try again later")
    if busy := launch_local.living(folder) or queue.live:
        return Launched(len(missing), note=f"{len(busy)} workers are already at work on this plan")
    workers = min(options.workers(plan), len(missing))
    source = home.snapshots / code_hash
    if options.cluster == "local":
        return Launched(len(missing), launch_local.start(home, folder, call, source, workers))
    return Launched(len(missing), job_id=_submit(plan, home, call, source, workers, options))


def _is_to_retry(state: RunState, options: Options) -> bool:
    """A full disk is no fault of the run: whoever calls again has made room."""
    return state.state is State.FAILED and (options.retry_failed or state.kind == "disk")


def _submit(plan: Plan, home: Home, call: str, source: Path, workers: int, options: Options) -> str:
    from sweeps.launch_slurm import SlurmWorker, submit

    job = SlurmWorker(str(home.path), str(plan.folder(home)), call)
    return submit(job, source, workers, _threads(plan), dict(options.slurm))


def _threads(plan: Plan) -> int:
    return max(run.config.train.threads for run in plan.runs)


def _record_call(folder: Path, code_hash: str, retry: Mapping[str, int], options: Options) -> str:
    """One file per `lab sweep`: when, by whom, with which code. The newest call is what a sweep's name means."""
    call = uuid.uuid4().hex[:12]
    (folder / "calls").mkdir(parents=True, exist_ok=True)
    content = {
        "called_at": now(),
        "code_hash": code_hash,
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "command": ["lab", *sys.argv[1:]],
        "cluster": options.cluster,
        "retry": dict(retry),
    }
    write_json(folder / "calls" / f"{call}.json", content)
    return call
