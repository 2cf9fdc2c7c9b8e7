"""What is on record about the jobs that lead a tuned sweep from stage to stage on SLURM.

Each has an intent in `advances/` of the first plan, as workers have in `submissions/`, and adds at its end what it did
or why it stopped.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from results.files import now, read_json, write_json
from results.home import Home
from results.state import SETTLED, RunState, State
from sweeps import slurm, stored
from sweeps.stored import StoredPlan

STAGES = {
    "tune": "tune, every arm at the same points, on tuning seeds",
    "widen": "widen, more points for all arms because one was best at an end",
    "verdict": "verdict, the best of each arm on fresh seeds",
}


def record(folder: Path, name: str) -> dict[str, Any]:
    """The intent of one job by its name."""
    return read_json(folder / slurm.ADVANCES / f"{name}.json") or {}


def say(folder: Path, name: str, said: str) -> None:
    """Add to the intent how it ended."""
    write_json(folder / slurm.ADVANCES / f"{name}.json", record(folder, name) | {"said": said, "ended_at": now()})


def others(folder: Path, name: str | None = None) -> list[str]:
    """Advancing jobs that wait or have not said how they end, but the one called `name`. Where squeue does not answer,
    all that may be there."""
    known = slurm.read_submissions(folder, slurm.ADVANCES)
    jobs = [str(r["job_id"]) for r in known if "job_id" in r and "said" not in r and r["uuid"] != name]
    queue = slurm.queue(folder, kind=slurm.ADVANCES)
    return [job for job in jobs if not queue.answered or job in queue.live]


def notes(plan: StoredPlan, states: Iterable[RunState], home: Home) -> list[str]:
    """Which stage a plan is, and who goes on from there; nothing about a sweep that is not tuned."""
    stage = plan.content.get("stage")
    if stage is None:
        return []
    said = [f"stage: {STAGES.get(stage, stage)}", *_undone(plan, home)]
    words = {state.state for state in states}
    over = words <= SETTLED
    if stage == "verdict" and over:
        return said
    first = plan.folder.with_name(str(plan.content["tuning"]))
    known = slurm.read_submissions(first, slurm.ADVANCES)
    if known and (live := others(first)):
        return [*said, f"SLURM job {', '.join(live)} goes on when this stage has ended"]
    newest: Mapping[str, Any] = max(known, key=lambda r: str(r.get("submitted_at")), default={})
    if newest.get("said"):
        said.append(f"the job between the stages: {newest['said']}")
    later = " when these runs have ended, if it does not wait already" if State.RUNNING in words else ""
    return [*said, f"`lab sweep` goes on from here{later}"]


def _undone(plan: StoredPlan, home: Home) -> list[str]:
    """Earlier stages of which a run is not over any more: somebody deleted its folder."""
    order = list(STAGES)
    before = order[: order.index(str(plan.content["stage"]))]
    said = []
    for other in stored.all_plans(home) if before else ():
        of_same = other.content.get("tuning") == plan.content["tuning"] and other.content.get("stage") in before
        states = stored.run_states(home, other.run_ids, slurm.Queue()) if of_same else []
        if gone := sum(state.state not in SETTLED for state in states):
            said.append(
                f"{gone} of {len(states)} runs of stage {other.content['stage']} are gone: `lab sweep` mends it"
            )
    return said
