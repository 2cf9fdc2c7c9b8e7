"""What people ask about runs: all of them, one of them, what one printed."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import planned
from results.files import BadFile, open_regular
from results.home import Home
from results.query import rows
from results.record import AttemptInfo, RunFolder, owned_until
from results.rows import RowKind, tail
from results.state import ENDED, run_state

LOOK_EVERY_S = 0.5
PIECE_BYTES = 1 << 20
NO_PROGRESS: dict[str, float | None] = {"val_loss": None, "train_loss": None, "tokens_per_s": None}


class UnknownRun(LookupError):
    """No run, or more than one, has an id that begins so; `found` has those that do."""

    def __init__(self, message: str, found: list[str]) -> None:
        super().__init__(message)
        self.found = found


def resolve(home: Home, prefix: str) -> str:
    """The run id that begins with `prefix`. Raises UnknownRun."""
    found = sorted({i for i in (*home.run_ids(), *planned.all_specs(home)) if i.startswith(prefix)})
    if len(found) != 1:
        said = f"{len(found)} runs begin so: {', '.join(found[:5])}" if found else f"no such run in {home.path}"
        raise UnknownRun(f"run {prefix!r}: {said}", found)
    return found[0]


def runs(home: Home) -> list[dict[str, Any]]:
    """One row per run of the home, with the sweeps and arms it stands for."""
    return rows(
        home,
        """
        SELECT r.run_id, string_agg(DISTINCT p.sweep || ' ' || p.arm, ', ') AS arms, r.seed, r.state, r.step, r.steps,
               r.params, r.val_loss, r.tokens_per_s, r.finished_at
        FROM runs r LEFT JOIN plan_runs p USING (run_id)
        GROUP BY ALL ORDER BY arms, r.seed, r.run_id
        """,
    )


def progress(run: RunFolder) -> dict[str, float | None]:
    """Last losses and speed of a run, from its files: what `lab status` shows needs no database."""
    done = _done(run)
    if done:
        return {name: _number(done.get(name)) for name in NO_PROGRESS}
    attempts = run.attempts()
    limits = owned_until(attempts)
    train, evaluated = (_last_row(kind, attempts, limits) for kind in ("train", "eval"))
    return {
        "val_loss": _number(evaluated.get("loss")),
        "train_loss": _number(train.get("loss")),
        "tokens_per_s": _number(train.get("tokens_per_s")),
    }


def _last_row(kind: RowKind, attempts: Sequence[AttemptInfo], limits: Mapping[int, int | None]) -> dict[str, str]:
    """The newest row of this kind that the run's one timeline holds; {} if there is none."""
    for info in reversed(attempts):
        limit = limits[info.number]
        for row in reversed(tail(info.path / f"{kind}.csv", kind)):
            if row.get("split", "val") == "val" and (limit is None or int(row["step"]) <= limit):
                return row
    return {}


def _number(value: Any) -> float | None:
    """A finite number, or None: JSON has no other."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def run(home: Home, prefix: str) -> dict[str, Any]:
    """Everything the record says of one run except its curves."""
    folder = home.run(resolve(home, prefix))
    state = run_state(folder)
    return {
        "run_id": folder.run_id,
        "state": state.state.value,
        "kind": state.kind,
        "step": state.step,
        "detail": state.detail,
        "folder": str(folder.path),
        "spec": _spec(home, folder),
        "attempts": [
            {"attempt": a.number, "claim": a.claim, "start": a.start, "exit": a.exit} for a in folder.attempts()
        ],
        "checkpoints": folder.checkpoints(),
        "done": _done(folder),
    }


def _spec(home: Home, folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.spec()
    except FileNotFoundError:
        return planned.all_specs(home)[folder.run_id]


def _done(folder: RunFolder) -> dict[str, Any] | None:
    try:
        return folder.done()
    except BadFile as error:
        return {"unreadable": str(error)}


def log(home: Home, prefix: str, follow: bool) -> Iterator[str]:
    """The newest attempt's log; with `follow`, also what is still to come, over attempts, until the run ends."""
    folder = home.run(resolve(home, prefix))
    number, read = 0, 0
    while True:
        state = run_state(folder)  # before reading, so that nothing is missed between
        if state.attempts != number:
            number, read = state.attempts, 0
        path = folder.path / "attempts" / f"{number:04d}" / "log.txt"
        text, read = _read_from(path, read)
        while text:
            yield text
            text, read = _read_from(path, read)
        if not follow or state.state in ENDED:
            return
        time.sleep(LOOK_EVERY_S)


def _read_from(path: Path, offset: int) -> tuple[str, int]:
    if not path.exists():
        return "", offset
    with open_regular(path) as file:
        file.seek(offset)
        data = file.read(PIECE_BYTES)
    if len(data) == PIECE_BYTES:
        data = data[: data.rfind(b"\n") + 1] or data  # no character is cut in two
    return data.decode(errors="replace"), offset + len(data)
