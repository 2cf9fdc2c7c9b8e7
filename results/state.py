"""The state of a run, computed from its files and a hint of the scheduler. Looking changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from results.files import UNREADABLE, BadFile
from results.process import process_alive
from results.record import AttemptInfo, RunFolder
from results.rows import last_step
from results.shapes import count

ATTEMPTS_WITHOUT_PROGRESS = 3


class State(StrEnum):
    PLANNED = "PLANNED"
    SUBMITTED = "SUBMITTED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    DIVERGED = "DIVERGED"
    PRUNED = "PRUNED"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"
    HELD = "HELD"
    UNKNOWN = "UNKNOWN"


SETTLED = frozenset({State.DONE, State.DIVERGED, State.PRUNED})  # an answer; nothing will be done about it
ENDED = SETTLED | {State.FAILED, State.CANCELLED}  # nothing happens until somebody asks for it
# Attempts that ended so did not fail to make progress: somebody wanted them to stop.
_STOPPED_ON_REQUEST = ("interrupted", "superseded", "cancelled", "pruned")

_STATE_OF_REASON = {
    "failed": State.FAILED,
    "diverged": State.DIVERGED,
    "pruned": State.PRUNED,
    "cancelled": State.CANCELLED,
    "preempted": State.PREEMPTED,
    "time_limit": State.PREEMPTED,
    "interrupted": State.PREEMPTED,
    "superseded": State.PREEMPTED,
}


@dataclass(frozen=True)
class Hint:
    """What the scheduler says: a word per job id (PENDING, RUNNING, GONE, ...) and how to call runs that wait for it.

    `others`: the word for jobs that are not listed. `advice`: what a person can do about held jobs. `beating` and
    `still`: run ids whose heartbeat an observer has seen to move, or to stand still, on its own clock.
    """

    jobs: Mapping[str, str] = field(default_factory=dict)
    pending: State | None = None
    others: str = "UNKNOWN"
    advice: str = ""
    beating: frozenset[str] = frozenset()
    still: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RunState:
    """One run now: `kind` of failure, last known `step`, number of the newest attempt, why, and the `code` it ran."""

    run_id: str
    state: State
    kind: str | None
    step: int
    attempts: int
    detail: str
    code: str | None = None


def run_state(run: RunFolder, hint: Hint | None = None, attempts: Sequence[AttemptInfo] | None = None) -> RunState:
    """The state of `run`; never raises over a damaged file, which gives UNKNOWN and is named in `detail`.

    `attempts` saves reading them again when the caller already has.
    """
    try:
        return _state(run, hint or Hint(), attempts)
    except BadFile as error:
        reason = str(error)
    except UNREADABLE as error:
        reason = f"{run.path}: {type(error).__name__}: {error}"
    infos = run.attempts() if attempts is None else attempts
    return RunState(run.run_id, State.UNKNOWN, None, 0, infos[-1].number if infos else 0, reason)


def _state(run: RunFolder, hint: Hint, attempts: Sequence[AttemptInfo] | None) -> RunState:
    # DONE.json is read once more after the attempts: a run that finishes while we look is never called LOST.
    if attempts is None and (finished := _done(run)):
        return finished
    infos = run.attempts() if attempts is None else attempts
    number, code, step = (infos[-1].number, _code(infos[-1]), _last_step(infos)) if infos else (0, None, 0)
    if infos and infos[-1].exit is None:
        step = max([step, *run.valid_checkpoints(infos)])
    try:
        done = run.done()
    except BadFile as error:
        return RunState(run.run_id, State.UNKNOWN, None, step, number, str(error), code)
    if done is not None:
        return RunState(run.run_id, State.DONE, None, done["step"], number, "", code)
    if not infos:
        planned = not_begun(run.run_id, hint)
        return replace(planned, state=State.CANCELLED, detail="") if run.cancel_requested() else planned
    state, kind, detail = _attempt_state(run.run_id, infos[-1], hint)
    if _resumable(state) and (asked := run.stop_request()):
        return RunState(run.run_id, _STATE_OF_REASON[asked], None, step, number, detail, code)
    if _resumable(state) and not _progress(run, infos):
        state, kind, detail = State.FAILED, "no_progress", f"{ATTEMPTS_WITHOUT_PROGRESS} attempts, no new checkpoint"
    if _resumable(state) and hint.pending is State.HELD:
        state, detail = State.HELD, hint.advice
    return RunState(run.run_id, state, kind, step, number, detail, code)


def _code(newest: AttemptInfo) -> str | None:
    code = (newest.claim or {}).get("code_hash")
    return code if isinstance(code, str) else None


def not_begun(run_id: str, hint: Hint) -> RunState:
    """The state of a run that has no attempt."""
    state = hint.pending or State.PLANNED
    return RunState(run_id, state, None, 0, 0, hint.advice if state is State.HELD else "")


def _done(run: RunFolder) -> RunState | None:
    """DONE, from few files, because most runs of a large sweep are; None if it is not, or not readable."""
    try:
        done = run.done()
    except BadFile:
        return None
    if done is None:
        return None
    number = _count(done.get("attempt"), 1)
    return RunState(run.run_id, State.DONE, None, done["step"], number, "", done.get("code_hash"))


def claimable(state: State) -> bool:
    """Whether a worker may claim a run in this state (one that carries no cancel request)."""
    return state in (State.PLANNED, State.QUEUED, State.SUBMITTED, State.PREEMPTED, State.LOST)


def _attempt_state(run_id: str, info: AttemptInfo, hint: Hint) -> tuple[State, str | None, str]:
    if _has_ended(info):
        return _exit_state(info.exit or {})
    unreadable = [f"{path}: {reason}" for path, reason in info.bad if path.name != "start.json"]
    if unreadable or info.claim is None:
        return State.UNKNOWN, None, "; ".join(unreadable) or f"{info.path / 'claim.json'} is missing"
    where = f"pid {info.claim.get('pid')} on {info.claim.get('host')}"
    alive = process_alive(info.claim)
    if alive is not None:
        return (State.RUNNING, None, where) if alive else (State.LOST, None, f"{where} is gone")
    job = info.claim.get("job")
    word = hint.jobs.get(str(job), hint.others) if job is not None else "UNKNOWN"
    return _elsewhere(run_id, word, hint), None, f"{where}, job {job}: {word}"


def _elsewhere(run_id: str, word: str, hint: Hint) -> State:
    """The state of a claimed run on another host. Nobody's word alone makes it LOST."""
    if word == "RUNNING" or run_id in hint.beating:
        return State.RUNNING
    # A pending job was requeued; or it was asked about just before it started, and then its heartbeat moves.
    over = word in ("GONE", "PENDING") and run_id in hint.still
    return State.LOST if over else State.UNKNOWN


def _has_ended(info: AttemptInfo) -> bool:
    # Reason "done" without DONE.json: about to write it, or killed just before. Then the process decides.
    return info.exit is not None and info.exit.get("reason") != "done"


def _exit_state(exit_: Mapping[str, Any]) -> tuple[State, str | None, str]:
    reason = str(exit_.get("reason"))
    state = _STATE_OF_REASON.get(reason, State.UNKNOWN)
    kind = exit_.get("kind") if state is State.FAILED else None
    return state, str(kind) if kind else None, str(exit_.get("error") or reason)


def _resumable(state: State) -> bool:
    return state in (State.PREEMPTED, State.LOST)


def _progress(run: RunFolder, infos: Sequence[AttemptInfo]) -> bool:
    """Whether the last three attempts may be followed by another: one of them saved something or ended otherwise."""
    recent = infos[-ATTEMPTS_WITHOUT_PROGRESS:]
    if len(recent) < ATTEMPTS_WITHOUT_PROGRESS:
        return True
    if not all(_needs_progress(info) for info in recent):
        return True
    begun = min((info.resume_step for info in recent if info.resume_step is not None), default=None)
    return begun is not None and max(run.valid_checkpoints(infos), default=0) > begun


def _needs_progress(info: AttemptInfo) -> bool:
    """Lost or preempted. An earlier attempt without exit.json was lost, or nobody could have claimed after it."""
    reason = (info.exit or {}).get("reason")
    stopped = reason in _STOPPED_ON_REQUEST
    return not _has_ended(info) or (_resumable(_exit_state(info.exit or {})[0]) and not stopped)


def _last_step(infos: Sequence[AttemptInfo]) -> int:
    """The step that the newest attempt with anything to say had reached."""
    for info in reversed(infos):
        ended = _count((info.exit or {}).get("step"), -1)
        beaten = info.heartbeat[1] if info.heartbeat else -1
        # A full disk stops the beats before it stops the rows, and after a kill they are some steps old.
        row = -1 if info.exit else last_step(info.path / "train.csv")
        step = max(ended, beaten, row, -1 if info.resume_step is None else info.resume_step)
        if step >= 0:
            return step
    return 0


def _count(value: Any, default: int) -> int:
    found = count(value)
    return default if found is None else found
