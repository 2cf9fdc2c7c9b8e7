"""A sweep of 10,000 runs as a user meets it: `python -m benchmarks.many [RUNS]`.

Plans, submits to a fake SLURM under a site's limits (MaxArraySize 1001, 500 queued jobs; jobs are held back, so that
only submitting is measured; 5,000 once more on a file system with 5 ms per operation), and asks for the status of a
home with as many finished run folders. Whole commands, start-up of the interpreter included.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import write_home
from results.home import Home
from tests.fake_slurm import Cluster, possible
from tests.faults.disk import shim, slow

SWEEP = """
from lmcore.config import ModelConfig, RunConfig, TrainConfig
from sweeps.spec import Sweep

def sweep():
    model = ModelConfig(d_model=32, n_layer=1, n_head=2, context=16)
    base = RunConfig(model=model, train=TrainConfig(steps=4, batch=2, eval_every=4, checkpoint_every=4))
    arms = {f"lr{i}": {"train.lr": 1e-4 * 1.05**i} for i in range(100)}
    return Sweep(question="How does a large sweep feel?", base=base, baseline="lr0", seeds=%d, arms=arms)
"""
SLOW_RUNS = 5000
PLAN_S, SUBMIT_S, STATUS_S = 5.0, 60.0, 2.0


def timed(arguments: list[str], home: Path, environment: dict[str, str]) -> float:
    """Seconds that one `lab` command takes."""
    command = [sys.executable, "-m", "cli", *arguments, "--home", str(home)]
    began = time.perf_counter()
    subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def best(arguments: list[str], home: Path, environment: dict[str, str], rounds: int = 3) -> float:
    return min(timed(arguments, home, environment) for _ in range(rounds))


def main(runs: int = 10_000) -> None:
    """Print one line per measurement."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "large.py").write_text(SWEEP % (runs // 100))
        sweep = ["sweep", str(place / "large.py")]
        say(f"plan of {runs} runs", best([*sweep, "--dry-run", "--json"], place / "planned", {}), PLAN_S)
        if possible():
            cluster = Cluster(max_array_size=1001, max_submit=500, nodes={})
            try:
                submit = [*sweep, "--cluster", "slurm", "-j", "400", "--yes", "--no-wait"]
                say(f"submit of {runs} runs", timed(submit, place / "planned", cluster.environment), SUBMIT_S)
                status = best(["status", "large", "--json"], place / "planned", cluster.environment)
                say(f"status of {runs} planned runs", status, STATUS_S)
            finally:
                cluster.close()
            slow_submit(place, sweep)
        write_home(Home(place / "done"), runs, 10)
        say(f"status of {runs} finished runs", best(["status", "many", "--json"], place / "done", {}), STATUS_S)
        say("the same as a table", best(["status", "many"], place / "done", {}), STATUS_S)


def slow_submit(place: Path, sweep: list[str]) -> None:
    """Plan and submit where every operation on the results home takes 5 ms; tasks start at once."""
    cluster, home = Cluster(max_array_size=1001, max_submit=500, nodes={"n1": 4}), place / "slow"
    try:
        library = shim(place)
        submit = [*sweep, "--cluster", "slurm", "-j", "400", "--yes", "--no-wait", "--seeds", str(SLOW_RUNS // 100)]
        took = timed(submit, home, cluster.environment | slow(library, home, 5))
        say(f"submit of {SLOW_RUNS} runs at 5 ms per operation", took, SUBMIT_S)
        time.sleep(20)
        failed = [t for t in cluster.tasks() if t["state"] == "FAILED"]
        begun = len(list(home.glob("runs/*/attempts/0001")))
        print(f"meanwhile {begun} runs have begun, {len(failed)} tasks failed", flush=True)
    finally:
        cluster.close()


def say(what: str, seconds: float, target: float) -> None:
    print(f"{what}: {seconds:.2f} s (target under {target:g} s)", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
