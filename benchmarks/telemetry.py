"""What telemetry costs: `python -m benchmarks.telemetry [PAIRS]`.

One real run of the stories-810k shape with telemetry at every second step: a step with it is always measured beside one
without it, so whatever else the machine does falls on both alike. Rows are written to a real CSV file.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.tokens import random_tokens
from lmcore.checkpoint import Blobs
from lmcore.config import RunConfig, replace
from lmcore.presets import PRESETS
from lmcore.train import train
from results.rows import RowLog

EVERY = 100  # the interval whose share is printed
TARGET = 0.03


class Stopwatch:
    """A sink that notes when each step ends and writes telemetry as a run does."""

    def __init__(self, folder: Path) -> None:
        self.log = RowLog(folder / "telemetry.csv", "telemetry")
        self.times: list[float] = []

    def train_row(self, row: Mapping[str, float | int]) -> None: ...
    def eval_row(self, row: Mapping[str, float | int | str]) -> None: ...
    def save_checkpoint(self, step: int, blobs: Blobs) -> None: ...

    def position_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None: ...

    def telemetry_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None:
        self.log.extend(rows)

    def stop_reason(self, step: int) -> str | None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return None


def measure(pairs: int) -> tuple[float, float]:
    """Median seconds of a step without telemetry and of the telemetry of one step, over pairs of neighbours."""
    changes = {"train.steps": 2 * pairs + 3, "train.eval_every": 10**6, "train.eval_sequences": 1}
    config = replace(RunConfig(model=PRESETS["stories-810k"]), {**changes, "train.telemetry_every": 2})
    with tempfile.TemporaryDirectory() as folder:
        sink = Stopwatch(Path(folder))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        train(config, random_tokens(config.model.vocab), sink, device=device)
        sink.log.close()
    seconds = np.diff(sink.times)[2:]  # the first two steps warm up; steps 3, 5, ... are without telemetry
    without, with_it = seconds[0::2][:pairs].tolist(), seconds[1::2][:pairs].tolist()
    extra = [b - a for a, b in zip(without, with_it, strict=True)]
    return statistics.median(without), statistics.median(extra)


def main(pairs: int = 100) -> None:
    step, extra = measure(pairs)
    share = extra / (EVERY * step)
    print(f"stories-810k, batch 32, {pairs} pairs: a step {step * 1e3:.1f} ms, its telemetry {extra * 1e3:.1f} ms")
    print(f"share of step time at telemetry_every={EVERY}: {share:.3%} (target: under {TARGET:.0%})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
