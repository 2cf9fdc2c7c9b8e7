"""Which checkpoint is the best: validation losses of a run's one timeline, from its row files."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from results.files import open_regular
from results.rows import rows_of


def best_step(evals: Mapping[int, float], steps: Iterable[int]) -> int | None:
    """The step of lowest validation loss among `steps`; None if none was evaluated."""
    finite = [(evals[step], step) for step in steps if math.isfinite(evals.get(step, math.nan))]
    return min(finite)[1] if finite else None


def validation_losses(files: Iterable[tuple[Path, int | None]]) -> dict[int, float]:
    """{step: validation loss} from (file, last step that counts, None for all), oldest first; of a step the newest.

    Lines that are no rows are passed over.
    """
    found: dict[int, float] = {}
    for path, limit in files:
        for step, loss in _read_losses(path):
            if limit is None or step <= limit:
                found[step] = loss
    return found


def _read_losses(path: Path) -> Iterator[tuple[int, float]]:
    try:
        with open_regular(path) as file:
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return
    for row in rows_of(lines, "eval"):
        with contextlib.suppress(ValueError):
            if row["split"] == "val":
                yield int(row["step"]), float(row["loss"])
