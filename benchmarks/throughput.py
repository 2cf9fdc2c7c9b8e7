"""What the harness costs around training: `python -m benchmarks.throughput [ROUNDS]`.

1. Inside the loop: steps of a real run (`train`, its rows written to a real run folder, asked whether to stop) beside
   steps of a bare loop over the same model, optimiser and batches, one after the other in one process.
2. Around runs: 64 small runs by whole commands in rounds of 16: two workers of one thread, one worker of one thread,
   one worker of two threads. What a run costs beside its training, after the first, is read from the record.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.tokens import random_tokens
from lmcore import optim
from lmcore.config import RunConfig, replace
from lmcore.data import TokenData
from lmcore.model import LM
from lmcore.presets import PRESETS
from lmcore.train import train
from results import query
from results.home import Home
from results.record import Attempt
from sweeps.attempt import RecordSink
from sweeps.signals import StopFlag

OVERHEAD, SPEEDUP, PER_RUN_S = 0.02, 1.7, 1.0
RUNS = 16
SWEEP = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

def sweep():
    base = replace(RunConfig(), {"model.d_model": 64, "model.n_layer": 2, "model.n_head": 4, "model.context": 64,
        "train.batch": 16, "train.steps": 200, "train.eval_every": 200, "train.eval_sequences": 64,
        "train.checkpoint_every": 200, "train.threads": %(threads)d})
    arms = {f"r{i}": {"train.lr": 1e-3 + 1e-6 * i} for i in range(%(runs)d)}
    return Sweep("How many runs an hour?", arms, base, seeds=1)
"""
MODES = {"two workers": (2, 1), "one worker": (1, 1), "one worker, two threads": (1, 2)}  # -j, threads


class Bare:
    """The loop that one would write without a harness."""

    def __init__(self, config: RunConfig, data: TokenData) -> None:
        self.config, self.data, self.step = config, data, 0
        self.model = LM(config.model, seed=config.seed)
        self.model.make_ready(config.model.context, torch.device("cpu"))
        self.optimizers = optim.build(self.model.named_parameters(), config.train)

    def update(self) -> float:
        self.step += 1
        size = self.config.train.batch, self.config.model.context
        inputs, targets = map(torch.from_numpy, self.data.batch(self.config.seed, self.step, *size))
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        optim.step(self.optimizers)
        optim.zero_grad(self.optimizers)
        return float(loss.detach())


class Beside(RecordSink):
    """A run's own sink that between two steps of the run makes and times one of the bare loop."""

    def __init__(self, attempt: Attempt, bare: Bare) -> None:
        super().__init__(attempt, StopFlag(), None, step=0)
        self.bare = bare
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.began = time.perf_counter()

    def stop_reason(self, step: int) -> str | None:
        reason = super().stop_reason(step)
        ended = time.perf_counter()
        self.ours.append(ended - self.began)
        self.bare.update()
        self.began = time.perf_counter()
        self.theirs.append(self.began - ended)
        return reason


def inside(steps: int = 300) -> tuple[float, float]:
    """Median seconds of a step of the bare loop, and of what the harness adds to it, stories-810k with a batch of 8."""
    changes = {"train.steps": steps, "train.eval_every": 10**6, "train.eval_sequences": 1, "train.batch": 8}
    config = replace(RunConfig(model=PRESETS["stories-810k"]), changes)
    data = random_tokens(config.model.vocab)
    with tempfile.TemporaryDirectory() as folder:
        run = Home(folder).run(config.run_id)
        run.create({"run_id": config.run_id})
        attempt = run.claim({})
        assert attempt is not None
        beside = Beside(attempt, Bare(config, data))
        beside.beat_on()
        train(config, data, beside)
        attempt.close()
    pairs = list(zip(beside.ours[5:], beside.theirs[5:], strict=True))  # the first steps warm up
    return statistics.median(b for _, b in pairs), statistics.median(a - b for a, b in pairs)


def sweep(place: Path, mode: str, number: int) -> tuple[float, float]:
    """Seconds of a whole `lab sweep`, and seconds that a run takes beside its training, after the first."""
    jobs, threads = MODES[mode]
    home = place / f"{number}-{jobs}-{threads}"
    path = place / "many.py"
    path.write_text(SWEEP % {"threads": threads, "runs": RUNS})
    command = [sys.executable, "-m", "cli", "sweep", str(path), "--yes", "-j", str(jobs), "--home", str(home)]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    return time.perf_counter() - began, beside_training(home, jobs)


def beside_training(home: Path, jobs: int) -> float:
    """From the end of one run to the end of the next on the same worker, less the seconds in training steps."""
    question = "SELECT a.ended_at, r.wall_s FROM attempts a JOIN runs r USING (run_id) ORDER BY a.ended_at"
    with contextlib.closing(query.open(home)) as con:
        rows: list[tuple[Any, float]] = con.sql(question).fetchall()
    ends = [_seconds(end) for end, _ in rows]
    return (jobs * (ends[-1] - ends[jobs - 1]) - sum(wall for _, wall in rows[jobs:])) / (len(rows) - jobs)


def _seconds(moment: Any) -> float:
    return (moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment))).timestamp()


def main(rounds: int = 4) -> None:
    """Print both parts."""
    step, extra = inside()
    print(f"a bare step {step * 1e3:.2f} ms, of the harness {extra * 1e3:.3f} ms: {extra / step:.2%} "
          f"(target under {OVERHEAD:.0%})", flush=True)  # fmt: skip
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    beside: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(rounds):
            for mode in MODES:
                wall, rest = sweep(Path(temporary), mode, number)
                seconds[mode].append(wall)
                beside[mode].append(rest)
    quickest = min(statistics.median(seconds[mode]) for mode in list(MODES)[1:])
    for mode, walls in seconds.items():
        wall, rest = statistics.median(walls), statistics.median(beside[mode])
        print(f"{mode}: {RUNS} runs in {wall:.1f} s, {3600 * RUNS / wall:.0f} an hour; "
              f"a run takes {rest:.2f} s beside its training (target under {PER_RUN_S:g})")  # fmt: skip
    ratio = quickest / statistics.median(seconds["two workers"])
    print(f"two workers do {ratio:.2f} times the runs of the quicker one (target {SPEEDUP})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
