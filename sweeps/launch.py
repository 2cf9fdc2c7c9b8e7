"""Start what is missing of a plan, here or on SLURM. Calling it again starts only what is still missing."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from results.files import now, write_json
from results.home import Home
from results.lock import exclusive
from results.process import user
from results.state import SETTLED, RunState, State, claimable
from sweeps import gpus, hosts, launch_local, slurm, snapshot
from sweeps.hosts import BadHost
from sweeps.load import sweep_file, whole_path
from sweeps.plan import Plan
from sweeps.spec import SweepError
from sweeps.stored import calls, code_of, judge

Cluster = Literal["local", "slurm"]
LAUNCHER_WAIT_S = 120.0
MAX_WORKERS = 32  # on SLURM unless -j says otherwise; each takes as many runs as its time allows


@dataclass(frozen=True)
class Options:
    """How to start a plan. `jobs` None: one per GPU, else as the cores allow (local), or MAX_WORKERS (SLURM).

    `runs_per_gpu` runs share a device, never more if it is given. `retry_failed` starts failed runs again; `take_over`
    those whose worker on another machine is known to be dead. `on_behalf_of`: the command that a job of ours continues;
    nobody has mended anything since, so that it tries nothing again that has failed.
    """

    cluster: Cluster = "local"
    jobs: int | None = None
    retry_failed: bool = False
    take_over: bool = False
    slurm: Mapping[str, Any] = field(default_factory=dict)
    runs_per_gpu: int | None = None
    on_behalf_of: Sequence[str] = ()

    def workers(self, plan: Plan) -> int:
        """How many runs at once at most."""
        if self.cluster == "slurm":
            return self.jobs or MAX_WORKERS * (self.runs_per_gpu or 1)
        places = len(gpus.visible()) * (self.runs_per_gpu or 1)
        if self.jobs is not None:
            return min(self.jobs, places) if self.runs_per_gpu and places else self.jobs
        return places or max(1, cores() // _threads(plan))


@dataclass(frozen=True)
class Launched:
    """What a call found and started. `busy`: workers that an earlier call started; `unknown`: runs nobody can judge.

    `refused`: why SLURM took fewer workers than asked; `held`: what to do about held jobs; `avoided`: bad hosts;
    `granted`: runs that may be claimed beyond the rules, with the number of attempts they had; `code_hash`: the code
    that runs from now on, `other_code` what earlier runs of the plan ran instead, with their number.
    """

    cluster: Cluster
    missing: int
    unknown: list[RunState]
    busy: int = 0
    squeue_answers: bool = True
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    job_ids: Sequence[str] = ()
    submitted: int = 0
    refused: str | None = None
    held: str = ""
    avoided: Sequence[BadHost] = ()
    granted: Mapping[str, int] = field(default_factory=dict)
    code_hash: str = ""
    other_code: Mapping[str, int] = field(default_factory=dict)


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch(plan: Plan, home: Home, options: Options) -> Launched:
    """Store the plan, take a snapshot, start workers for the runs that need one. Raises SweepError.

    One launcher of a plan at a time looks and starts, so that several at once do not start more workers than asked.
    """
    if options.cluster == "slurm" and not slurm.available():
        raise SweepError("--cluster slurm needs `sbatch` on the PATH; this machine has none. Use --cluster local.")
    home.ensure()
    plan.write(home)
    code_hash = snapshot.take(home)
    with held(plan.folder(home) / ".launching", "launch of this sweep"):
        return _launch(plan, home, options, code_hash)


def held(folder: Path, what: str) -> AbstractContextManager[Path]:
    """A lock that a job of ours may hold as well; one that SLURM no longer knows is succeeded. Raises lock.Busy."""
    return exclusive(folder, LAUNCHER_WAIT_S, what, slurm.own_name(), slurm.is_gone)


def _launch(plan: Plan, home: Home, options: Options, code_hash: str) -> Launched:
    folder = plan.folder(home)
    queue, states = judge(home, folder, [run.run_id for run in plan.runs])
    avoided = _bad_hosts(home, folder, states, options)
    granted = {s.run_id: s.attempts for s in states if _is_granted(home, s, options, avoided)}
    missing = [s for s in states if claimable(s.state) or s.state is State.CANCELLED or s.run_id in granted]
    unknown = [s for s in states if s.state is State.UNKNOWN and s.run_id not in granted]
    call = _record_call(folder, code_hash, granted, options, avoided)
    running = _running_for_us(home, folder, states)
    busy = max(len(launch_local.living(folder)) + len(queue.live), running)
    answers = queue.answered or options.cluster == "local"
    # Local workers need nobody's word: whatever else may be waiting in a queue finds the runs claimed.
    found = Launched("slurm" if queue.live else options.cluster, len(missing), unknown, busy, answers)
    found = replace(found, held=queue.advice, avoided=list(avoided.values()), granted=granted)
    found = replace(found, code_hash=code_hash, other_code=code_of(s for s in states if s.code != code_hash))
    # All calls together never start more than this one asks for.
    workers = min(options.workers(plan), len(missing) + running) - busy
    _withdraw_cancels(home, states)
    if not missing or workers <= 0 or not answers:
        return found
    source = home.snapshots / code_hash
    if options.cluster == "local":
        return replace(found, processes=launch_local.start(home, folder, call, source, workers))
    return _submit(plan, home, call, source, workers, options, found)


def _withdraw_cancels(home: Home, states: Sequence[RunState]) -> None:
    """Whoever calls wants the runs, also those that a worker has been asked to stop and has not stopped yet."""
    for state in states:
        # Of 10,000 new or finished runs no file is touched.
        if state.state is State.CANCELLED or (state.attempts and state.state not in SETTLED):
            home.run(state.run_id).clear_cancel()


def _running_for_us(home: Home, folder: Path, states: Sequence[RunState]) -> int:
    """Runs that workers of this plan's calls train. Another plan that has the same run brings its own workers."""
    ours = {path.stem for path in (folder / "calls").glob("*.json")}
    attempts = [home.run(s.run_id).attempts()[-1:] for s in states if s.state is State.RUNNING]
    return sum((info.claim or {}).get("call") in ours for newest in attempts for info in newest)


def _bad_hosts(home: Home, folder: Path, states: Sequence[RunState], options: Options) -> dict[str, BadHost]:
    """Hosts to avoid, those of earlier calls included: SLURM's accounting forgets. A laptop has no other host."""
    if options.cluster == "local":
        return {}
    earlier: dict[str, BadHost] = {}
    for call in sorted(calls(folder), key=lambda call: str(call.get("called_at", ""))):
        earlier |= {bad["name"]: BadHost(**bad) for bad in call.get("avoided", [])}
    return earlier | hosts.bad_hosts(home, states, slurm.endings(folder))


def _is_granted(home: Home, state: RunState, options: Options, avoided: Mapping[str, BadHost]) -> bool:
    """Runs that a worker may claim although what it sees for itself forbids it.

    Failed ones that are to be tried again: a full disk or a bad host is no fault of the run, whoever calls again has
    made room; and whoever calls after automatic retries have ended without progress wants another one. Lost ones,
    because only the launcher has asked the scheduler twice. Unknown ones if the caller knows better.
    """
    if state.state is State.FAILED:
        excused = state.kind in ("disk", "no_progress") and not options.on_behalf_of
        return options.retry_failed or excused or hosts.failed_on(home, state, avoided)
    return state.state is State.LOST or (state.state is State.UNKNOWN and options.take_over)


def _submit(
    plan: Plan, home: Home, call: str, source: Path, workers: int, options: Options, found: Launched
) -> Launched:
    from sweeps.launch_slurm import SlurmWorker, submit

    slots = min((options.runs_per_gpu or 1) * _devices(plan, options), workers)
    job = SlurmWorker(str(home.path), str(plan.folder(home)), call, str(slots))
    exclude = [bad.name for bad in found.avoided]
    done = submit(job, source, workers // slots, slots * _threads(plan), dict(options.slurm), exclude)
    return replace(found, job_ids=done.job_ids, submitted=done.tasks, refused=done.refused)


def _devices(plan: Plan, options: Options) -> int:
    """GPUs of a job that single runs can have for themselves; a run of several processes takes them all."""
    asked = options.slurm.get("gpus_per_node", 1)
    alone = all(run.config.train.processes == 1 for run in plan.runs)
    return asked if alone and isinstance(asked, int) and asked > 0 else 1


def own_command() -> list[str]:
    """What the user typed to start this process, as it works from any folder."""
    return ["lab", *map(_from_anywhere, sys.argv[1:])]


def _from_anywhere(word: str) -> str:
    """A sweep file or a text of one's own (`data.path=FILE`) by its whole path, any other word as it is."""
    if sweep_file(word):
        return str(whole_path(Path(word)))
    option, separator, path = word.rpartition("data.path=")
    return option + separator + str(whole_path(Path(path))) if separator and Path(path).is_file() else word


def _threads(plan: Plan) -> int:
    return max(run.config.train.means.threads * run.config.train.processes for run in plan.runs)


def _record_call(
    folder: Path, code_hash: str, granted: Mapping[str, int], options: Options, avoided: Mapping[str, BadHost]
) -> str:
    """One file per `lab sweep`: when, by whom, with which code. The newest call is what a sweep's name means."""
    call = uuid.uuid4().hex[:12]
    (folder / "calls").mkdir(parents=True, exist_ok=True)
    content = {
        "called_at": _later_than_all(folder.parent),
        "code_hash": code_hash,
        "host": socket.gethostname(),
        "user": user(),
        "command": list(options.on_behalf_of) or own_command(),
        "cluster": options.cluster,
        "granted": dict(granted),
        "avoided": [vars(bad) for bad in avoided.values()],
    }
    write_json(folder / "calls" / f"{call}.json", content)
    return call


def _later_than_all(plans: Path) -> str:
    """Now, or just after the newest call of any plan of this sweep: hosts' clocks differ, and clocks are set back."""
    times = [str(call.get("called_at", "")) for plan in plans.iterdir() for call in calls(plan)]
    moment = now()
    if (newest := max(times, default="")) < moment:
        return moment
    try:
        return (datetime.fromisoformat(newest) + timedelta(microseconds=1)).isoformat(timespec="microseconds")
    except (ValueError, OverflowError):
        return moment
