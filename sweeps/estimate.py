"""How long a plan will take here: from what earlier runs on this host gave, else from a quick measurement."""

import socket
import statistics
import time
from dataclasses import dataclass

from results.files import BadFile
from results.home import Home
from sweeps.plan import Plan

# Of a plain matrix product's speed, what small models reached in training on the CPUs this was written on.
ROUGH_EFFICIENCY = 0.2
ENOUGH_RUNS = 20


@dataclass(frozen=True)
class Estimate:
    """Seconds for the whole plan with `workers` at once, and where the number comes from."""

    seconds: float
    workers: int
    basis: str


def estimate(plan: Plan, home: Home, workers: int) -> Estimate:
    """The time of all runs that are not done yet, at `workers` runs at once."""
    left = [run for run in plan.runs if not (home.run(run.run_id).path / "DONE.json").exists()]
    flops = sum(run.account.train_flops for run in left)
    known = _flops_per_second_of_earlier_runs(home)
    basis = f"{len(known)} earlier runs on this host" if known else "a quick measurement, rough"
    speed = statistics.median(known) if known else ROUGH_EFFICIENCY * matmul_flops_per_second()
    at_once = max(1, min(workers, len(left)))
    return Estimate(flops / speed / at_once, at_once, basis)


def _flops_per_second_of_earlier_runs(home: Home) -> list[float]:
    speeds: list[float] = []
    for run_id in home.run_ids():
        run = home.run(run_id)
        try:
            done = run.done()
        except BadFile:
            continue  # named by ingest; here it is only one speed less
        if done and done.get("wall_s") and done.get("flops") and _was_here(run.path.name, home):
            speeds.append(done["flops"] / done["wall_s"])
        if len(speeds) >= ENOUGH_RUNS:
            break
    return speeds


def _was_here(run_id: str, home: Home) -> bool:
    attempts = home.run(run_id).attempts()
    return bool(attempts) and (attempts[-1].claim or {}).get("host") == socket.gethostname()


def matmul_flops_per_second(size: int = 384, seconds: float = 0.1) -> float:
    """float32 matrix-product speed of one thread of this machine (OPENBLAS_NUM_THREADS is 1 in commands), in FLOP/s."""
    import numpy as np

    a = np.ones((size, size), dtype=np.float32)
    a @ a  # the first product also loads the library
    end, best = time.perf_counter() + seconds, float("inf")
    while (began := time.perf_counter()) < end:
        a @ a
        best = min(best, time.perf_counter() - began)  # the others were disturbed
    return 2 * size**3 / best
