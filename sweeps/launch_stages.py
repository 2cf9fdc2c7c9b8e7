"""A tuned sweep on SLURM: a small job after the jobs of each stage starts the next, and leaves another after that.

It depends on them with `afterany`, so that however they end it looks: what is missing is started again, what is over is
followed by the next stage. Nothing on the login node has to stay alive. A job that is lost is replaced by the next
`lab sweep`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission

from results.home import Home
from results.lock import Busy
from results.state import SETTLED, RunState, State
from sweeps import advances, show, slurm, snapshot, stored, tune
from sweeps.launch import Launched, Options, held, launch, own_command
from sweeps.launch_slurm import SiteLimit, check, submit_array
from sweeps.spec import SweepError
from sweeps.tune import StagePlan

MOST_MINUTES = 30  # of an advancing job, which takes seconds
MOST_TRIES = 3  # jobs in a row between which no run made a step
LOOKS, LOOK_EVERY_S = 10, 30.0  # while squeue does not answer


@dataclass(frozen=True)
class Advancer:
    """What submitit carries; as `SlurmWorker`, it is imported from the snapshot."""

    home: str
    folder: str

    def __call__(self) -> int:
        advance(Home(Path(self.home)), Path(self.folder), slurm.own_name().get("job_name", ""))
        return 0

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)

    __submitit_checkpoint__ = checkpoint


def start(stage: StagePlan, home: Home, options: Options) -> Launched:
    """Launch a stage for a person, and a job that goes on after it unless one is waiting. Raises SweepError."""
    folder = stage.root_folder(home)
    with held(folder / ".advancing", "advance of this sweep"):
        launched = launch(stage, home, options)
        if (launched.job_ids or launched.busy) and not advances.others(folder):
            _follow(stage, home, replace(options, on_behalf_of=own_command()), launched, 1)
        return launched


def advance(home: Home, folder: Path, name: str) -> None:
    """One look of an advancing job called `name`; what it did, or why it stopped, is in its record."""
    try:
        with held(folder / ".advancing", "advance of this sweep"):
            said = _advance(tune.read(home, folder), home, advances.record(folder, name), name)
            advances.say(folder, name, said)
    except (SweepError, SiteLimit, Busy, OSError) as error:
        advances.say(folder, name, f"stopped: {error}")


def _advance(first: StagePlan, home: Home, record: Mapping[str, Any], name: str) -> str:
    plans = tune.stages(first, home)
    for plan in plans:
        plan.write(home)
    stage = plans[-1]
    queue, states = _look(stage, home)
    if not queue.answered:
        return "stopped: squeue does not answer"
    if all(state.state in SETTLED for state in states):
        return "all stages are over"
    if any(state.state is State.CANCELLED and home.run(state.run_id).cancel_requested() for state in states):
        return "stopped: the sweep was cancelled"
    tries = 1 if queue.live or _progress(stage, states) != record.get("progress") else int(record["tries"]) + 1
    if tries > MOST_TRIES:
        return f"stopped: {MOST_TRIES} times jobs ended without a step; `lab failures {stage.sweep}` says why"
    options = _options(record)
    launched = launch(stage, home, options)
    if not (launched.job_ids or launched.busy):
        return f"stopped at {show.counts_line(states)}; `lab failures {stage.sweep}` says what to do"
    if not advances.others(first.folder(home), name):
        _follow(stage, home, options, launched, tries)
    return f"stage {stage.stage}: " + (f"started SLURM job {', '.join(launched.job_ids)}" if launched.job_ids else "on")


def _look(stage: StagePlan, home: Home) -> tuple[slurm.Queue, list[RunState]]:
    for look in range(LOOKS):
        time.sleep(LOOK_EVERY_S if look else 0)
        queue, states = stored.judge(home, stage.folder(home), [run.run_id for run in stage.runs])
        if queue.answered:
            break
    return queue, states


def _follow(stage: StagePlan, home: Home, options: Options, launched: Launched, tries: int) -> None:
    """Submit the job that looks again when the jobs of this stage have ended. It takes what the workers take, so that a
    site that accepts them accepts it."""
    folder = stage.root_folder(home)
    live = [task.partition("_")[0] for task in slurm.queue(stage.folder(home)).live]
    after = sorted({*live, *launched.job_ids})
    states = stored.run_states(home, [run.run_id for run in stage.runs], slurm.Queue())
    own = {key: value for key, value in options.slurm.items() if key != "max_array_size"}
    own |= {"time": min(MOST_MINUTES, check(dict(options.slurm)))}
    if after:
        own["dependency"] = "afterany:" + ":".join(after)
    record = {
        "stage": stage.stage,
        "after": after,
        "tries": tries,
        "progress": _progress(stage, states),
        "jobs": options.jobs,
        "runs_per_gpu": options.runs_per_gpu,
        "slurm": dict(options.slurm),
        "command": list(options.on_behalf_of),
    }
    source = home.snapshots / snapshot.take(home)
    try:
        submit_array(Advancer(str(home.path), str(folder)), folder, source, 1, 1, own, record, slurm.ADVANCES)
    except SiteLimit as limit:
        raise SweepError(f"sbatch refused the job that leads to the next stage: {limit}; call again later") from None


def _progress(stage: StagePlan, states: list[RunState]) -> list[Any]:
    """Changes whenever a run makes a step or ends, or a stage does."""
    return [stage.plan_id, sum(state.state in SETTLED for state in states), sum(state.step for state in states)]


def _options(record: Mapping[str, Any]) -> Options:
    command = record["command"] or ["lab", "sweep"]
    return Options(
        "slurm", record["jobs"], slurm=record["slurm"], runs_per_gpu=record["runs_per_gpu"], on_behalf_of=command
    )
