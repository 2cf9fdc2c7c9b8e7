"""Which checkpoint is the best: validation losses of a run's one timeline, from its row files."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.record import AttemptInfo


def best_step(evals: Mapping[int, float], steps: Iterable[int]) -> int | None:
    """The step of lowest validation loss among `steps`; None if none was evaluated."""
    finite = [(evals[step], step) for step in steps if math.isfinite(evals.get(step, math.nan))]
    return min(finite)[1] if finite else None


def validation_losses(attempts: Sequence["AttemptInfo"], limits: Mapping[int, int | None]) -> dict[int, float]:
    """{step: validation loss} of the run's one timeline; lines that are no rows are passed over."""
    found: dict[int, float] = {}
    for info in attempts:
        limit = limits[info.number]
        for step, loss in _read_losses(info.path / "eval.csv"):
            if limit is None or step <= limit:
                found[step] = loss
    return found


def _read_losses(path: Path) -> Iterator[tuple[int, float]]:
    try:
        lines = path.read_text(errors="replace").split("\n")[:-1]
    except OSError:
        return
    for row in csv.DictReader(lines):
        try:
            if row["split"] == "val":
                yield int(row["step"]), float(row["loss"])
        except (KeyError, TypeError, ValueError):
            continue
