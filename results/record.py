"""The write side of the record: a run is a folder, an attempt is a numbered folder in it with one writer."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from results import checkpoints, keep
from results.files import (
    BadFile,
    claim_folder,
    encode_json,
    now,
    numbered,
    open_regular,
    read_json,
    write_bytes,
    write_json,
)
from results.process import claim_identity
from results.rows import COLUMNS, RowLog, first_step
from results.shapes import Shape, digits

log = logging.getLogger(__name__)

BEAT_EVERY_S = 2.0  # of a live attempt, whatever it is doing
NEWEST_KEPT = 2  # the newest, and the one before for when the newest is damaged
_DONE = {"step": range(2**63), "steps?": int, "code_hash?": str | None}
_STEPS = {"account": {"steps": int}}
_START = {"resume_step": range(2**63), "env?": dict}
CHECKPOINTS_KEPT = NEWEST_KEPT + 1  # and the best


StopRequest = Literal["cancelled", "pruned"]


class Superseded(RuntimeError):
    """A later attempt has taken the run over; this one must stop and change nothing."""


@dataclass(frozen=True)
class AttemptInfo:
    """One attempt as its files tell it; `heartbeat` is (counter, step), `bad` holds (path, reason)."""

    number: int
    path: Path
    claim: dict[str, Any] | None
    start: dict[str, Any] | None
    exit: dict[str, Any] | None
    heartbeat: tuple[int, int] | None
    bad: tuple[tuple[Path, str], ...] = ()

    @property
    def resume_step(self) -> int | None:
        """The step this attempt continued from; None before it started.

        Where start.json is damaged the first rows tell: they come after that step, and no row lies between.
        """
        if any(path.name == "start.json" for path, _ in self.bad):
            return self._step_before_rows()
        return self.start["resume_step"] if self.start else None

    def _step_before_rows(self) -> int | None:
        if self.number == 1:
            return 0
        firsts = (first_step(self.path / f"{kind}.csv") for kind in COLUMNS)
        return min((step - 1 for step in firsts if step is not None), default=None)


def owned_until(attempts: Sequence[AttemptInfo]) -> dict[int, int | None]:
    """For each attempt number the last step it owns: the smallest resume step of a later attempt, or None."""
    limits: dict[int, int | None] = {}
    smallest: int | None = None
    for info in reversed(attempts):
        limits[info.number] = smallest
        if info.resume_step is not None:
            smallest = info.resume_step if smallest is None else min(smallest, info.resume_step)
    return limits


class RunFolder:
    """One run: its spec, its attempts, its checkpoints, its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def create(self, spec: Mapping[str, Any]) -> None:
        """Write spec.json. Not synced: it says what the plan says, and planning again mends it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_bytes(self.path / "spec.json", encode_json(spec, indent=None).encode(), durable=False)

    def spec(self) -> dict[str, Any]:
        """The content of spec.json; FileNotFoundError without one, BadFile if it is torn."""
        spec = read_json(self.path / "spec.json")
        if spec is None:
            raise FileNotFoundError(f"run {self.run_id} has no {self.path / 'spec.json'}")
        return spec

    def attempts(self) -> list[AttemptInfo]:
        """All attempts, oldest first. Unreadable files are named in `bad` and otherwise count as absent.

        Where attempts cannot be listed, that is told by one of number 0. Never raises.
        """
        folder = self.path / "attempts"
        try:
            return [_attempt_info(self._attempt_path(number), number) for number in numbered(folder)]
        except OSError as error:
            return [AttemptInfo(0, folder, None, None, None, None, ((folder, error.strerror or str(error)),))]

    def claim(self, owner: Mapping[str, Any], after: int | None = None) -> "Attempt | None":
        """Take the run over as attempt highest + 1; None if another was faster or a cancel is requested.

        Pass as `after` the attempt number on which the decision to claim was made (`RunState.attempts`): without it,
        an attempt that began between looking and claiming would be superseded while healthy.
        """
        folder = self.path / "attempts"
        folder.mkdir(parents=True, exist_ok=True)
        number = (max(numbered(folder), default=0) if after is None else after) + 1
        if self.cancel_requested():
            return None
        content = {"job": None, "code_hash": None, **claim_identity(), **owner, "attempt": number, "claimed_at": now()}
        won = claim_folder(self._attempt_path(number), "claim.json", content)
        return Attempt(self, number, content["code_hash"]) if won else None

    def checkpoints(self) -> list[int]:
        """Steps with a checkpoint, sorted."""
        return checkpoints.steps(self._checkpoints)

    def valid_checkpoints(self, attempts: Sequence[AttemptInfo] | None = None) -> list[int]:
        """Steps whose checkpoint belongs to the run's one timeline, sorted; `attempts` saves reading them again.

        The rule for rows holds for checkpoints too: what an attempt wrote beyond the step from which a later
        attempt resumed is void, be it the work of a zombie or a damaged checkpoint that was passed over.
        """
        limits = owned_until(self.attempts() if attempts is None else attempts)
        return [step for step in self.checkpoints() if self._is_valid(step, limits)]

    def validation_losses(self) -> dict[int, float]:
        """{step: validation loss} of the run's one timeline."""
        attempts = self.attempts()
        limits = owned_until(attempts)
        return keep.validation_losses((info.path / "eval.csv", limits[info.number]) for info in attempts)

    def kept_checkpoints(self, newest: int) -> set[int]:
        """Steps whose checkpoints stay: the newest valid ones, and the one of lowest validation loss."""
        valid = self.valid_checkpoints()
        best = keep.best_step(self.validation_losses(), valid)
        return {*valid[-newest:], *([] if best is None else [best])}

    def latest_checkpoint(self) -> tuple[int, dict[str, bytes]] | None:
        """(step, blobs by name) of the newest checkpoint that verifies; damaged ones are logged and passed over."""
        valid = self.valid_checkpoints()
        for step in reversed(self.checkpoints()):
            if step not in valid:
                where = checkpoints.step_folder(self._checkpoints, step)
                log.warning("run %s: the checkpoint at step %d is void or damaged: %s", self.run_id, step, where)
                continue
            try:
                return step, checkpoints.load(self._checkpoints, step)
            except (BadFile, ValueError, OSError) as error:
                log.warning(
                    "checkpoint of run %s at step %d is damaged, trying the one before: %s", self.run_id, step, error
                )
        return None

    def done(self) -> dict[str, Any] | None:
        """The content of DONE.json, or None; BadFile if it is torn or does not say that every step was made."""
        path = self.path / "DONE.json"
        done = read_json(path, _DONE)
        if done is None:
            return None
        steps = done["steps"] if "steps" in done else self.steps()  # most runs of a large sweep cost one file
        if done["step"] < steps:
            raise BadFile(path, f"step {done['step']} is not the end of a run of {steps} steps")
        return done

    def steps(self) -> int:
        """How many steps the run has; 0 where its spec cannot say."""
        try:
            spec = read_json(self.path / "spec.json", _STEPS)
        except BadFile:
            return 0
        return 0 if spec is None else int(spec["account"]["steps"])

    def record_decode(self, device: str, rows: Sequence[Mapping[str, float | int]]) -> None:
        """What generating with this run's model costs; the newest measurement replaces the one before."""
        write_json(self.path / "decode.json", {"device": device, "measured_at": now(), "rows": list(rows)})

    def record_lengths(self, context: int, rows: Sequence[Mapping[str, float | int | str]]) -> None:
        """Loss by position in sequences of `context` tokens; the newest measurement replaces the one before."""
        write_json(self.path / "lengths.json", {"context": context, "measured_at": now(), "rows": list(rows)})

    def request_cancel(self, by: str, reason: StopRequest = "cancelled") -> None:
        """Ask whoever runs or would run this to stop, as cancelled, or as pruned: an answer, which stays."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "cancel.json", {"by": by, "reason": reason, "requested_at": now()})

    def cancel_requested(self) -> bool:
        """Whether a cancel request stands (one stat)."""
        return (self.path / "cancel.json").exists()

    def stop_request(self) -> StopRequest | None:
        """Why the run is asked to stop, if it is."""
        try:
            request = read_json(self.path / "cancel.json")
        except BadFile:
            return "cancelled"
        if request is None:
            return None
        return "pruned" if request.get("reason") == "pruned" else "cancelled"

    def clear_cancel(self) -> None:
        """Withdraw a cancel request, if there is one, and whatever else stands for one."""
        path = self.path / "cancel.json"
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)

    def checkpoint_folder(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return checkpoints.step_folder(self._checkpoints, step)

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _attempt_path(self, number: int) -> Path:
        return self.path / "attempts" / f"{number:04d}"

    def _is_valid(self, step: int, limits: Mapping[int, int | None]) -> bool:
        attempt = checkpoints.writer(self._checkpoints, step)
        if attempt is None or attempt not in limits:
            return False
        limit = limits[attempt]
        return limit is None or step <= limit


class Attempt:
    """The one writer of one attempt folder."""

    def __init__(self, run: RunFolder, number: int, code_hash: str | None) -> None:
        self.run, self.number, self.code_hash = run, number, code_hash
        self.path = run._attempt_path(number)
        self._next = run._attempt_path(number + 1)
        self._logs = {kind: RowLog(self.path / f"{kind}.csv", kind) for kind in COLUMNS}
        self._beats = 0

    def start(self, resume_step: int, env: Mapping[str, Any]) -> None:
        """Record where this attempt continues from (updates already done) and in what surroundings."""
        write_json(self.path / "start.json", {"resume_step": resume_step, "started_at": now(), "env": dict(env)})
        checkpoints.sweep_leftovers(self.run._checkpoints, self.number)

    def train_row(self, row: Mapping[str, float | int]) -> None:
        """Append one line to train.csv; visible to readers at once, durable after sync."""
        self._logs["train"].append(row)

    def eval_row(self, row: Mapping[str, Any]) -> None:
        """Append one line to eval.csv; visible to readers at once, durable after sync."""
        self._logs["eval"].append(row)

    def position_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append lines to position.csv at once; visible to readers at once, durable after sync."""
        self._logs["position"].extend(rows)

    def telemetry_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append lines to telemetry.csv at once; visible to readers at once, durable after sync."""
        self._logs["telemetry"].extend(rows)

    def sync(self) -> None:
        """Make all rows durable."""
        for rows in self._logs.values():
            rows.sync()

    def save_checkpoint(self, step: int, blobs: Mapping[str, bytes], newest: int = NEWEST_KEPT) -> None:
        """Store a checkpoint durably, rows first, and delete all but the newest ones and the best.

        Raises Superseded if a later attempt exists and StorageFull without space; earlier checkpoints stay intact.
        """
        if newest < 1:
            raise ValueError(f"at least one checkpoint is kept, not {newest}")
        self._refuse_superseded()
        self.sync()
        folder = self.run._checkpoints
        keep_existing = step in self.run.valid_checkpoints()
        try:
            checkpoints.save(folder, step, self.number, blobs, keep_existing, self._refuse_superseded)
        except FileNotFoundError:
            self._refuse_superseded()  # our successor has swept our unfinished folder away
            raise
        checkpoints.prune(folder, self.run.kept_checkpoints(newest))

    def superseded(self) -> bool:
        """Whether a later attempt has claimed the run (one stat)."""
        return self._next.exists()

    def beat(self, step: int) -> None:
        """Show progress: the counter grows with each call. Atomic, but not durable: a beat is worth no fsync."""
        self._beats += 1
        temp = self.path / ".heartbeat.tmp"
        try:
            temp.write_text(f"{self._beats} {step}\n")
            temp.replace(self.path / "heartbeat")
        except OSError:
            temp.unlink(missing_ok=True)
            raise

    def finish(self, reason: str, **details: Any) -> None:
        """Write exit.json. The first reason wins; later calls change nothing."""
        path = self.path / "exit.json"
        if path.exists():
            return
        self.sync()
        blank = {"kind": None, "step": None, "error": None, "traceback": None}
        write_json(path, {**blank, **details, "reason": reason, "ended_at": now()})

    def done(self, summary: Mapping[str, Any]) -> None:
        """Declare the run done: rows durable, exit.json, and DONE.json last. Raises Superseded, and ValueError for a
        `summary` whose step is not the run's last."""
        steps = self.run.steps()
        if summary["step"] < steps:
            raise ValueError(f"step {summary['step']} of {steps} is not the end of run {self.run.run_id}")
        self._refuse_superseded()
        self.finish("done", step=summary["step"])
        self._refuse_superseded()
        told = {"steps": steps, "attempt": self.number, "code_hash": self.code_hash, "finished_at": now()}
        write_json(self.run.path / "DONE.json", {**summary, **told})

    def close(self) -> None:
        """Close the row files."""
        for rows in self._logs.values():
            rows.close()

    def _refuse_superseded(self) -> None:
        if self.superseded():
            raise Superseded(f"attempt {self.number} of run {self.run.run_id} was superseded by {self._next.name}")


def _attempt_info(path: Path, number: int) -> AttemptInfo:
    bad: list[tuple[Path, str]] = []

    def read(name: str, shape: Shape = dict) -> dict[str, Any] | None:
        try:
            return read_json(path / name, shape)
        except BadFile as error:
            bad.append((error.path, error.reason))
        return None

    claim, start, exit_ = read("claim.json"), read("start.json", _START), read("exit.json")
    return AttemptInfo(number, path, claim, start, exit_, _heartbeat(path / "heartbeat"), tuple(bad))


def _heartbeat(path: Path) -> tuple[int, int] | None:
    try:
        with open_regular(path) as file:
            text = file.read(100).decode()
        counter, step = map(digits, text.split())
    except (OSError, ValueError):  # not yet written, or lost with the power: it is not fsynced
        return None
    return (counter, step) if counter is not None and step is not None and text.endswith("\n") else None
