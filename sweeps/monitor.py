"""`lab status --watch`: a live table of a sweep, read from the run folders, that can stay open for days."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from results import views
from results.home import Home
from results.state import ENDED, SETTLED, RunState, State
from sweeps import advances, slurm
from sweeps.show import STYLES, counts_line, duration, quantity
from sweeps.stored import StoredPlan, find_plan, run_states
from sweeps.watch import SCHEDULER_EVERY_S, Eta

LOOK_EVERY_S = 2.0
PATIENCE_S = 10.0  # between two stages of a tuned sweep, where no job on SLURM is known to go on
MOST_ROWS = 40
ORDER = (State.RUNNING, State.FAILED, State.LOST, State.HELD, State.UNKNOWN, State.PREEMPTED, State.DIVERGED)


@dataclass
class Monitor:
    """What is known between two looks."""

    plan: StoredPlan
    home: Home
    eta: Eta
    queue: slurm.Queue = field(default_factory=slurm.Queue)
    asked: float = -SCHEDULER_EVERY_S

    def look(self) -> list[RunState]:
        """States now. SLURM is asked rarely: a busy scheduler does not like to be polled."""
        if time.monotonic() - self.asked > SCHEDULER_EVERY_S:
            self.queue, self.asked = slurm.queue(self.plan.folder), time.monotonic()
        return run_states(self.home, self.plan.run_ids, self.queue)

    def screen(self, states: Sequence[RunState]) -> RenderableType:
        """The table: those that run or are in trouble first."""
        table = Table("arm", "seed", "state", "step", "loss", "tokens/s", "left", "", box=None, pad_edge=False)
        pairs = sorted(zip(states, self.plan.runs, strict=True), key=lambda pair: _rank(pair[0]))
        for state, run in pairs[:MOST_ROWS]:
            table.add_row(*self._cells(state, run))
        hidden = len(pairs) - MOST_ROWS
        more = [Text(f"... and {hidden} more")] if hidden > 0 else []
        remarks = [Text(remark, style="yellow") for remark in self.queue.remarks]
        line = f"{self.plan.content['sweep']}: {counts_line(states)} ({self.eta.line(states)})"
        return Group(table, *more, *remarks, Text(line))

    def _cells(self, state: RunState, run: Mapping[str, Any]) -> list[Text]:
        seen = views.progress(self.home.run(state.run_id))
        loss, speed = seen["train_loss"], seen["tokens_per_s"]
        left = ""
        if state.state is State.RUNNING and speed:
            left = duration((run["steps"] - state.step) * run["tokens"] / run["steps"] / speed)
        note = state.kind or ("" if state.state in (State.RUNNING, State.DONE) else state.detail[:60])
        numbers = ["" if loss is None else f"{loss:.4f}", "" if speed is None else quantity(speed)]
        words = [run["arm"], str(run["seed"]), "", f"{state.step}/{run['steps']}", *numbers, left, note]
        cells = [Text(word) for word in words]
        cells[2] = Text(state.state.value, style=STYLES.get(state.state, ""))
        return cells


def _rank(state: RunState) -> int:
    return ORDER.index(state.state) if state.state in ORDER else len(ORDER)


def monitor(name: str, home: Home, console: Console) -> None:
    """Show until Ctrl-C or until every run has ended, of a tuned sweep stage after stage. Without a terminal: one line
    per look that differs."""
    show = _live if console.is_terminal else _lines
    plan: StoredPlan | None = find_plan(home, name)
    while plan:
        states = show(Monitor(plan, home, Eta(plan.runs, time.monotonic())), console)
        plan = _next_stage(plan, states, name, home)


def _live(watching: Monitor, console: Console) -> list[RunState]:
    with Live(console=console, refresh_per_second=4, screen=False) as live:
        while True:
            states = watching.look()
            live.update(watching.screen(states))
            if all(state.state in ENDED for state in states):
                return states
            time.sleep(LOOK_EVERY_S)


def _lines(watching: Monitor, console: Console) -> list[RunState]:
    before = ""
    while True:
        states = watching.look()
        line = counts_line(states)
        if line != before:
            console.print(f"{line} ({watching.eta.line(states)})")
            before = line
        if all(state.state in ENDED for state in states):
            return states
        time.sleep(LOOK_EVERY_S)


def _next_stage(plan: StoredPlan, states: Sequence[RunState], name: str, home: Home) -> StoredPlan | None:
    """The plan that follows this one, as soon as somebody made it; None where nobody goes on."""
    if plan.content.get("stage") in (None, "verdict") or any(state.state not in SETTLED for state in states):
        return None
    first, began = plan.folder.with_name(str(plan.content["tuning"])), time.monotonic()
    while True:
        newest = find_plan(home, name)
        if newest.folder != plan.folder:
            return newest
        if time.monotonic() - began > PATIENCE_S and not advances.others(first):
            return None
        time.sleep(LOOK_EVERY_S)
