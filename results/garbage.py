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
    """Something that may be deleted, its size, and why it is of no use."""

    path: Path
    bytes: int
    why: str


def garbage(home: Home, run_ids: Iterable[str]) -> list[Garbage]:
    """What of these runs may go. A run that may go on is left as it is; of one that has ended stay the newest
    checkpoint that verifies and the best."""
    return [found for run_id in run_ids for found in _of_run(home.run(run_id))]


def delete(found: Iterable[Garbage]) -> int:
    """Delete, and return the bytes freed."""
    freed = 0
    for item in found:
        if item.path.name.startswith("."):
            shutil.rmtree(item.path, ignore_errors=True)
        elif item.path.exists():
            checkpoints.discard(item.path)
        freed += item.bytes
    return freed


def _of_run(run: RunFolder) -> Iterator[Garbage]:
    state = run_state(run)
    if state.state not in ENDED or (state.state is State.FAILED and state.kind == "disk"):
        return  # in use, or about to go on from where it was
    folder = run.path / "checkpoints"
    valid = run.valid_checkpoints()
    whole = [step for step in valid if checkpoints.verifies(folder, step)]
    if not whole:
        return  # nothing is safe to lose
    kept = {whole[-1], best_step(run.validation_losses(), whole)}
    for step in set(run.checkpoints()) - kept:
        why = "an older checkpoint" if step in valid else "a void checkpoint"
        yield _garbage(checkpoints.step_folder(folder, step), why)
    for path, _ in checkpoints.leftovers(folder):
        yield _garbage(path, "left by a killed attempt")


def _garbage(path: Path, why: str) -> Garbage:
    return Garbage(path, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()), why)
