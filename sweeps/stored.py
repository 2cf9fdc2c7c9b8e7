"""Plans that were stored by earlier calls, found by name, and the states of their runs."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmcore.config import did_you_mean
from results import planned
from results.files import BadFile, read_folder
from results.home import Home
from results.process import process_alive
from results.record import BEAT_EVERY_S, RunFolder
from results.state import ENDED, RunState, State, not_begun, run_state
from sweeps import slurm
from sweeps.spec import SweepError

WATCH_S = 2.5 * BEAT_EVERY_S


@dataclass(frozen=True)
class StoredPlan:
    """One plan folder: `content` is its plan.json, `called_at` the time of its newest call ("" if none)."""

    folder: Path
    content: dict[str, Any]
    called_at: str

    @property
    def runs(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.content["runs"]
        return rows

    @property
    def run_ids(self) -> list[str]:
        return [run["run_id"] for run in self.runs]

    @property
    def identity(self) -> tuple[str, str | None, str]:
        """(sweep, scale, plan id)."""
        return self.content["sweep"], self.content["scale"], self.content["plan_id"]


def find_plan(home: Home, name: str) -> StoredPlan:
    """The plan called last among those of that name. Raises SweepError naming what there is."""
    plans, damaged = _read_plans(home)
    found = [plan for plan in plans if planned.is_meant(name, *plan.identity)]
    if not found:
        called = [plan.identity for plan in plans]
        known = sorted({n for sweep, scale, _ in called for n in (sweep, planned.at_scale(sweep, scale))})
        told = [f"known: {', '.join(known)}"] if known else []
        told += [f"cannot be read: {error} (the same `lab sweep` writes it again)" for error in damaged]
        told = told or [f"nothing was swept yet in {home.path}"]
        raise SweepError(f"no sweep {name!r}{did_you_mean(name, known)}; {'; '.join(told)}")
    return max(found, key=lambda plan: plan.called_at)


def all_plans(home: Home) -> list[StoredPlan]:
    """Every readable plan of this home; a damaged one is left out here and named by `lab ingest`."""
    return _read_plans(home)[0]


def _read_plans(home: Home) -> tuple[list[StoredPlan], list[BadFile]]:
    plans, damaged = list[StoredPlan](), list[BadFile]()
    for path in sorted(home.sweeps.glob("*/*/plan.json")):
        try:
            content = planned.plan(path.parent)
        except BadFile as error:
            damaged.append(error)
            continue
        if content:
            called_at = max((str(call.get("called_at", "")) for call in calls(path.parent)), default="")
            plans.append(StoredPlan(path.parent, content, called_at))
    return plans, damaged


def calls(plan_folder: Path) -> list[dict[str, Any]]:
    """What each `lab sweep` of a plan noted, in no order; a damaged one is left out here and named by `lab ingest`."""
    return read_folder(plan_folder / "calls", planned.CALL)


def grants(plan_folder: Path, since: str = "") -> dict[str, int]:
    """What calls of a plan made at `since` or later allow to claim beyond the rules: run id -> attempts it had then."""
    granted: dict[str, int] = {}
    for call in calls(plan_folder):
        if call.get("called_at", "") >= since:
            for run_id, attempts in call.get("granted", {}).items():
                granted[run_id] = max(attempts, granted.get(run_id, 0))
    return granted


def run_states(home: Home, run_ids: Iterable[str], queue: slurm.Queue) -> list[RunState]:
    """The state of every run, in order, with what the scheduler says."""
    hint, begun = queue.hint(), home.folders()
    return [run_state(home.run(run_id), hint) if run_id in begun else not_begun(run_id, hint) for run_id in run_ids]


def code_of(states: Iterable[RunState]) -> dict[str, int]:
    """{code hash: number of runs whose newest attempt ran it}, the most common first."""
    return dict(Counter(state.code for state in states if state.code).most_common())


def judge(home: Home, plan: Path, run_ids: Sequence[str]) -> tuple[slurm.Queue, list[RunState]]:
    """Queue and states, with a second look at every run whose worker is on another host and not known to run.

    A heartbeat that moves meanwhile, on our clock, is a live worker whatever SLURM says. One that stands still is
    LOST only if SLURM knows no running job of it both times.
    """
    queue = slurm.queue(plan, confirm=True)
    states = run_states(home, run_ids, queue)
    folders = [home.run(s.run_id) for s in states if s.state is State.UNKNOWN]
    before = {run.run_id: run.attempts()[-1].heartbeat for run in folders if _is_elsewhere(run)}
    if not before:
        return queue, states
    time.sleep(WATCH_S)
    queue = slurm.twice(queue, slurm.queue(plan))
    beating = frozenset(run_id for run_id, beat in before.items() if home.run(run_id).attempts()[-1].heartbeat != beat)
    hint = replace(queue.hint(), beating=beating, still=frozenset(before) - beating)
    return queue, [run_state(home.run(s.run_id), hint) if s.run_id in before else s for s in states]


def _is_elsewhere(run: RunFolder) -> bool:
    """Whether the newest attempt has not ended and its process cannot be asked from here."""
    newest = run.attempts()[-1:]
    return any(a.exit is None and a.claim is not None and process_alive(a.claim) is None for a in newest)


def may_go_on(state: RunState, granted: Mapping[str, int]) -> bool:
    """Whether a worker trains this run or may take it up, a failed one that is to be tried again included."""
    retried = state.state is State.FAILED and granted.get(state.run_id) == state.attempts
    return retried or state.state not in ENDED


def stop(home: Home, plan: StoredPlan, by: str) -> list[str]:
    """Ask all runs of a plan to stop (they save first), and take its waiting jobs out of SLURM's queue."""
    specs, granted = planned.readable_specs(plan.folder), grants(plan.folder)
    states = run_states(home, plan.run_ids, slurm.Queue())
    asked = [state.run_id for state in states if may_go_on(state, granted)]
    for run_id in asked:
        if run_id in specs:  # else its line is damaged: the request alone will do until the plan is written again
            planned.begin(home.run(run_id), specs[run_id])
        home.run(run_id).request_cancel(by)
    queue = slurm.queue(plan.folder)
    slurm.cancel(task for task in queue.live if queue.words[task] == "PENDING")
    return asked
