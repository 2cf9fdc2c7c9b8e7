"""What may be deleted: checkpoints that nobody needs any more. Never the last good one, the best, or one in use."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from results import checkpoints
from results.home import Home
from results.keep import best_step
from results.record import RunFolder
from results.state import ENDED, State, run_state


@dataclass(frozen=True)
class Garbage:
    """Something that may be deleted, its size, and why it is of no use; `run` had so many `attempts` then."""

    path: Path
    bytes: int
    why: str
    run: RunFolder
    attempts: int


def garbage(home: Home, run_ids: Iterable[str]) -> list[Garbage]:
    """What of these runs may go. A run that may go on is left as it is; of one that has ended stay the newest
    checkpoint that verifies and the best."""
    return [found for run_id in run_ids for found in _of_run(home.run(run_id))]


def delete(found: Iterable[Garbage]) -> int:
    """Delete, and return the bytes freed. What belongs to a run that has been taken up since stays."""
    freed = 0
    for item in found:
        if not item.path.exists() or _at_rest(item.run) != item.attempts:
            continue
        if item.path.name.startswith("."):
            shutil.rmtree(item.path, ignore_errors=True)
        else:
            checkpoints.discard(item.path)
        freed += item.bytes
    return freed


def _at_rest(run: RunFolder) -> int | None:
    """The number of attempts of a run that has ended; None if it is in use, or about to go on from where it was."""
    state = run_state(run)
    goes_on = state.state not in ENDED or (state.state is State.FAILED and state.kind == "disk")
    return None if goes_on else state.attempts


def _of_run(run: RunFolder) -> Iterator[Garbage]:
    folder = run.path / "checkpoints"
    # Listed before anything else: hashing takes minutes, and what a new attempt saves meanwhile is not for us.
    steps, private = run.checkpoints(), [path for path, _ in checkpoints.leftovers(folder)]
    attempts = _at_rest(run)
    if attempts is None:
        return
    valid = run.valid_checkpoints()
    whole = [step for step in steps if step in valid and checkpoints.verifies(folder, step)]
    if not whole:
        return  # nothing is safe to lose
    kept = {whole[-1], best_step(run.validation_losses(), whole)}
    useless = [
        (checkpoints.step_folder(folder, step), "an older checkpoint" if step in valid else "a void checkpoint")
        for step in steps
        if step not in kept
    ]
    for path, why in [*useless, *((path, "left by a killed attempt") for path in private)]:
        yield Garbage(path, _size(path), why, run, attempts)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
