"""A sweep under way: what is missing is started, watched to its end, and what went wrong is said."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from lmcore.count import checkpoint_bytes
from results.home import Home
from results.state import ENDED, SETTLED, RunState, State
from sweeps import advances, hosts, launch_local, show, slurm, stored, triage, tune
from sweeps.exits import DISK_FULL
from sweeps.launch import Launched, Options, launch
from sweeps.plan import Plan, PlannedRun
from sweeps.watch import watch

MOST_NAMED = 10  # failed runs, one line each; `lab failures` groups them
SPARE_BYTES = 100_000  # a run also writes rows, a log and its ending


def carry_out(planned: Plan, options: Options, home: Home, console: Console, wait: bool) -> tuple[Plan, dict[str, int]]:
    """Start what is missing, of a tuned sweep stage after stage; the last plan it came to and its states.

    A stage of which a run is missing for good ends it: there is nothing to choose from yet.
    """
    while True:
        stages = tune.stages(planned, home) if isinstance(planned, tune.StagePlan) else [planned]
        for earlier in stages[:-1]:
            earlier.write(home)
        stage = stages[-1]
        if isinstance(stage, tune.StagePlan):
            console.print(f"stage {advances.STAGES[stage.stage]}")
        with started(stage, options, home, console) as running:
            counts = running.wait() if wait else running.leave()
        if not wait or not all_well(counts) or not isinstance(stage, tune.StagePlan) or stage.stage == "verdict":
            return stage, counts


@contextmanager
def started(planned: Plan, options: Options, home: Home, console: Console) -> Iterator["Running"]:
    """Start what is missing. Ctrl-C inside the block asks local workers to save and stop before it goes on."""
    launched = _launch(planned, home, options)
    try:
        for line in started_lines(launched):
            console.print(line)
        yield Running(planned, launched, home, console)
    except KeyboardInterrupt:
        if launched.processes:
            console.print("stopping: each run saves first")
            stopped = launch_local.stop(launched.processes)
            console.print("saved; the same command continues" if stopped else "still saving; `lab status` tells")
        elif launched.busy or launched.job_ids:
            console.print("the workers go on; `lab cancel` stops them")
        raise


def _launch(planned: Plan, home: Home, options: Options) -> Launched:
    if options.cluster == "slurm" and isinstance(planned, tune.StagePlan):
        from sweeps.launch_stages import start

        return start(planned, home, options)
    return launch(planned, home, options)


def started_lines(launched: Launched) -> Iterator[str]:
    """What a call found and did, for a person."""
    for state in launched.unknown:
        yield f"run {state.run_id} is left alone, nobody here can tell whether it lives ({state.detail})"
    if launched.unknown:
        yield "if its worker is dead, `lab sweep ... --take-over` goes on with it"
    yield from (f"{bad}: avoided from now on" for bad in launched.avoided)
    if launched.other_code:
        listed = ", ".join(f"{n} by {code}" for code, n in launched.other_code.items())
        yield f"earlier runs were made by other code ({listed}; now it is {launched.code_hash}); see `lab lint`"
    if launched.held:
        yield launched.held
    if not launched.squeue_answers:
        yield "squeue does not answer, so nothing was started; try again later"
    missing = f"{show.several(launched.missing, 'run')} to do"
    if launched.busy:
        yield f"{missing}, {launched.busy} workers are already at work on this sweep"
    if launched.job_ids:
        jobs = ", ".join(launched.job_ids)
        yield f"{missing}, as SLURM job {jobs} with {launched.submitted} workers at most"
    if launched.refused:
        yield f"SLURM takes no more workers now ({launched.refused}); the same command later continues there"
    if launched.processes:
        workers = show.several(len(launched.processes), "local worker")
        yield f"{missing}, with {workers}"
    if launched.squeue_answers and not (launched.busy or launched.job_ids or launched.processes or launched.held):
        yield "nothing to start: no run is missing (--retry-failed starts failed ones again)"


@dataclass(frozen=True)
class Running:
    """A sweep under way."""

    plan: Plan
    launched: Launched
    home: Home
    console: Console

    def wait(self) -> dict[str, int]:
        """Show progress until the end; returns how many runs are in each state."""
        processes = self.launched.processes
        folder = self.plan.folder(self.home)

        def working() -> bool:
            return any(p.poll() is None for p in processes) or bool(launch_local.living(folder))

        on_slurm = self.launched.cluster == "slurm"
        states = watch(self._stored(), self.home, None if on_slurm else working, self.console)
        launch_local.ended(processes, launch_local.LEAVE_WITHIN_S)  # the runs have; nobody is to be left at work
        if self.console.is_terminal:  # elsewhere it was the last line of the progress
            self.console.print(show.counts_line(states))
        self._say_what_failed(states)
        left = {state.run_id for state in states if state.state not in SETTLED}
        self._say_if_the_disk_is_full([run for run in self.plan.runs if run.run_id in left])
        return show.counts(states)

    def _say_what_failed(self, states: Sequence[RunState]) -> None:
        failed = [state for state in states if state.state is State.FAILED]
        for state in failed[:MOST_NAMED]:
            self.console.print(f"{state.run_id} failed ({state.kind}): {state.detail}; `lab logs {state.run_id}`")
        folder, left = self.plan.folder(self.home), any(state.state not in ENDED for state in states)
        for group in triage.dead_workers(self.home, self._stored(), states) if left else ():
            where = f" on {group.host}" if group.host else ""
            self.console.print(
                f"{len(group.runs)} workers ended before they took a run{where} ({group.kind}): {group.error}"
            )
            self.console.print(group.remedy)
        for bad in hosts.bad_hosts(self.home, states, slurm.endings(folder)).values():
            self.console.print(f"{bad}; the next call avoids it")
        if failed or left:
            self.console.print(f"`lab failures {self.plan.sweep}` says what to do")

    def _say_if_the_disk_is_full(self, left: Sequence[PlannedRun]) -> None:
        need = min((checkpoint_bytes(run.config.model) for run in left), default=-SPARE_BYTES)
        free = shutil.disk_usage(self.home.path).free
        # What is free says nothing of a quota, nor of what was free when a worker met the end of it.
        met = any(process.poll() == DISK_FULL for process in self.launched.processes)
        if free < need + SPARE_BYTES or (met and left):
            self.console.print(
                f"no space left at {self.home.path}: {free:,} bytes are free, a checkpoint needs {need:,}; "
                "make room (or ask for quota) and call again"
            )

    def leave(self) -> dict[str, int]:
        """Return at once; the workers go on."""
        self.console.print(f"running in the background: lab status {self.plan.sweep}")
        if isinstance(self.plan, tune.StagePlan) and self.plan.stage != "verdict" and not self.launched.job_ids:
            self.console.print("the next stage begins with the next `lab sweep` after these runs have ended")
        return show.counts(stored.run_states(self.home, self._stored().run_ids, slurm.Queue()))

    def _stored(self) -> stored.StoredPlan:
        return stored.find_plan(self.home, f"{self.plan.sweep}/{self.plan.plan_id}")


def all_well(counts: dict[str, int]) -> bool:
    """Whether nothing needs care: a diverged or pruned run is a result, anything else unfinished is not."""
    return set(counts) <= SETTLED
