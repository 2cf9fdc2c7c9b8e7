"""Progress of a sweep while somebody waits: per run and in all, with the time left."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from results.home import Home
from results.state import SETTLED, RunState, State
from sweeps import slurm
from sweeps.show import counts_line, duration
from sweeps.stored import StoredPlan, judge, run_states

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 30.0
SCHEDULER_EVERY_S = 10.0
WAITING = (State.PLANNED, State.SUBMITTED, State.QUEUED)


@dataclass
class Eta:
    """Time left, from the FLOPs done since we began to look."""

    runs: Sequence[Mapping[str, Any]]
    began: float
    at_start: float | None = None

    def line(self, states: Sequence[RunState]) -> str:
        """'63 %, about 4 min left', without the time while nothing has moved yet."""
        done, total = self._done(states), sum(run["train_flops"] for run in self.runs)
        if self.at_start is None:
            self.at_start = done
        seconds, gained = time.monotonic() - self.began, done - self.at_start
        left = "" if gained <= 0 else f", about {duration((total - done) * seconds / gained)} left"
        return f"{done / total:.0%}{left}"

    def _done(self, states: Sequence[RunState]) -> float:
        return sum(
            float(run["train_flops"]) * (1.0 if state.state in SETTLED else state.step / run["steps"])
            for run, state in zip(self.runs, states, strict=True)
        )


def watch(plan: StoredPlan, home: Home, working: Callable[[], bool] | None, console: Console) -> list[RunState]:
    """Show progress until every run has ended or nobody works any more, here or for another plan that has the same
    runs; returns the last states.

    `working` tells whether local workers live; None asks SLURM's queue instead.
    """
    eta = Eta(plan.runs, time.monotonic())
    look = _Look(plan, home, working)
    if not console.is_terminal:
        return _lines(look, eta, console)
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            states, over = look()
            live.update(_screen(plan, states, eta))
            if over:
                return states
            time.sleep(LOOK_EVERY_S)


class _Look:
    """States now, and whether it is over. SLURM is asked rarely: a busy scheduler does not like to be polled."""

    def __init__(self, plan: StoredPlan, home: Home, working: Callable[[], bool] | None) -> None:
        self.plan, self.home, self.working = plan, home, working
        self.queue, self.asked = slurm.Queue(), -SCHEDULER_EVERY_S

    def __call__(self) -> tuple[list[RunState], bool]:
        idle = not self.working() if self.working else self._queue_empty()  # asked first: what ended has written all
        if idle and not self.working:
            self.queue, states = judge(self.home, self.plan.folder, self.plan.run_ids)
            return states, not (self.queue.live or _any_runs(states))  # a second look may have found somebody
        states = run_states(self.home, self.plan.run_ids, self.queue)
        # Failed and cancelled runs may be waiting for a worker that still starts up, so they do not end the wait.
        return states, (idle and not _any_runs(states)) or all(state.state in SETTLED for state in states)

    def _queue_empty(self) -> bool:
        if time.monotonic() - self.asked > SCHEDULER_EVERY_S:
            self.queue, self.asked = slurm.queue(self.plan.folder, confirm=True), time.monotonic()
        return self.queue.answered and not self.queue.live


def _any_runs(states: Sequence[RunState]) -> bool:
    return any(state.state is State.RUNNING for state in states)


def _lines(look: _Look, eta: Eta, console: Console) -> list[RunState]:
    """Without a terminal: one line per change of state, and a summary now and then."""
    before: dict[str, State] = {}
    said = time.monotonic()
    names = {run["run_id"]: f"{run['arm']} seed {run['seed']}" for run in look.plan.runs}
    while True:
        states, over = look()
        for state in states:
            if before and state.state is not before[state.run_id] and state.state not in WAITING:
                console.print(f"{names[state.run_id]} ({state.run_id}): {state.state} at step {state.step}")
        before = {state.run_id: state.state for state in states}
        if over or time.monotonic() - said > LINE_EVERY_S:
            said = time.monotonic()
            console.print(f"{counts_line(states)} ({eta.line(states)})")
        if over:
            return states
        time.sleep(LOOK_EVERY_S)


def _screen(plan: StoredPlan, states: Sequence[RunState], eta: Eta) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for run, state in zip(plan.runs, states, strict=True):
        if state.state is State.RUNNING:
            bar = ProgressBar(total=run["steps"], completed=state.step, width=30)
            table.add_row(Text(run["arm"]), f"seed {run['seed']}", bar, f"{state.step}/{run['steps']}")
    return Group(table, Text(f"{plan.content['sweep']}: {counts_line(states)} ({eta.line(states)})"))
