"""Plans that were stored by earlier calls, found by name, and the states of their runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmcore.config import did_you_mean
from results import planned
from results.files import BadFile, read_json
from results.home import Home
from results.state import ENDED, RunState, not_begun, run_state
from sweeps import slurm
from sweeps.spec import SweepError


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
    def names(self) -> tuple[str, str, str]:
        """What a person may call it: the sweep, the sweep at its scale, the exact plan."""
        sweep, plan_id, scale = (self.content[key] for key in ("sweep", "plan_id", "scale"))
        return sweep, f"{sweep}@{scale}" if scale else sweep, f"{sweep}/{plan_id}"


def find_plan(home: Home, name: str) -> StoredPlan:
    """The plan called last among those of that name. Raises SweepError naming what there is."""
    plans = all_plans(home)
    found = [plan for plan in plans if name in plan.names]
    if not found:
        known = sorted({n for plan in plans for n in plan.names[:2]})
        listed = f"known: {', '.join(known)}" if known else f"nothing was swept yet in {home.path}"
        raise SweepError(f"no sweep {name!r}{did_you_mean(name, known)}; {listed}")
    return max(found, key=lambda plan: plan.called_at)


def all_plans(home: Home) -> list[StoredPlan]:
    """Every readable plan of this home; a damaged one is left out here and named by `lab ingest`."""
    plans = []
    for path in sorted(home.sweeps.glob("*/*/plan.json")):
        try:
            content = read_json(path)
        except BadFile:
            continue
        if content:
            plans.append(StoredPlan(path.parent, content, max(_call_times(path.parent), default="")))
    return plans


def _call_times(folder: Path) -> Iterable[str]:
    for path in (folder / "calls").glob("*.json"):
        try:
            yield str((read_json(path) or {}).get("called_at", ""))
        except BadFile:
            continue


def run_states(home: Home, run_ids: Iterable[str], queue: slurm.Queue) -> list[RunState]:
    """The state of every run, in order, with what the scheduler says."""
    hint, begun = queue.hint(), home.folders()
    return [run_state(home.run(run_id), hint) if run_id in begun else not_begun(run_id, hint) for run_id in run_ids]


def stop(home: Home, plan: StoredPlan, by: str) -> list[str]:
    """Ask all runs of a plan to stop (they save first), and take its waiting jobs out of SLURM's queue."""
    specs = planned.specs(plan.folder)
    asked = [state.run_id for state in run_states(home, plan.run_ids, slurm.Queue()) if state.state not in ENDED]
    for run_id in asked:
        planned.begin(home.run(run_id), specs.get(run_id))
        home.run(run_id).request_cancel(by)
    queue = slurm.queue(plan.folder)
    slurm.cancel(task for task in queue.live if queue.words[task] == "PENDING")
    return asked
