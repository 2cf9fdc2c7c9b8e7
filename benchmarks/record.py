"""How fast the record is at size: `python -m benchmarks.record [RUNS] [ROWS_PER_RUN] [HOME]`.

Writes a home of real run folders (1,000 runs of 10,000 rows unless told otherwise; 100,000 rows make 10^8), then
measures in processes of their own: the first ingest, ingests of little and of more that is new, states, a query.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl

from results import planned, query
from results.files import now, write_json
from results.home import Home
from results.ingest import ingest
from results.rows import header

TEMPLATES = 20  # different curves; a run has one of them, because writing 10^8 rows anew takes longer than reading them
ARMS = 100
ROWS_PER_S, PEAK_BYTES = 1e6, 4 << 30


def rows(seed: int, first: int, last: int) -> bytes:
    """CSV lines of steps first..last of a noisy loss curve."""
    step = np.arange(first, last + 1)
    noise = np.random.default_rng(seed).normal(size=(2, len(step)))
    frame = pl.DataFrame(
        {
            "step": step,
            "tokens": step * 4096,
            "flops": step * 1.2345e12,
            "wall_s": step * 0.0123,
            "loss": 2 + 3 * step**-0.3 + 0.1 * noise[0],
            "lr": 1e-3 * (1 - step / (last + 1)),
            "grad_norm": np.abs(noise[1]),
            "tokens_per_s": 3.3e5 + noise[1],
        }
    )
    return frame.write_csv(include_header=False).encode()


def spec(number: int, steps: int, arms: int = ARMS) -> dict[str, Any]:
    """A spec like those of a plan."""
    account = {"steps": steps, "params": 10**6, "params_non_embedding": 9 * 10**5, "tokens": steps * 4096}
    return {
        "run_id": f"{number:012x}",
        "group_id": f"arm{number % arms}",
        "seed": number // arms,
        "config": {"model": {"d_model": 128}, "train": {"lr": 1e-3, "steps": steps}},
        "account": account | {"flops_per_token": 6e6, "train_flops": 6e6 * steps * 4096, "kv_bytes_per_token": 4},
        "data": {"name": "none", "fingerprint": "f", "tokenizer": "char 74", "vocab": 74, "bytes_per_token": 1.0},
    }


def write_run(home: Home, number: int, steps: int, curve: bytes, done: bool, arms: int = ARMS) -> None:
    """One run folder by the record's own writers, its curve in one piece."""
    run = home.run(f"{number:012x}")
    run.create(spec(number, steps, arms))
    attempt = run.claim({})
    assert attempt is not None
    attempt.start(0, {"python": "3"})
    (attempt.path / "train.csv").write_bytes(header("train") + curve)
    loss = 2.0 + 0.001 * (number % 97)
    attempt.eval_row({"step": steps, "split": "val", "tokens": 1, "loss": loss, "perplexity": 7.4, "bits_per_byte": 2})
    if done:
        end = {"step": steps, "tokens": steps * 4096, "train_loss": loss, "val_loss": loss, "wall_s": 1.0}
        attempt.done(end | {"tokens_per_s": 3e5})
    attempt.close()


def write_home(home: Home, runs: int, steps: int, arms: int = ARMS) -> None:
    """`runs` finished runs and one that goes on, all in one plan."""
    home.ensure()
    curves = [rows(seed, 1, steps) for seed in range(TEMPLATES)]
    with patch("os.fsync"):  # of what is written here nothing must survive a power cut
        for number in range(runs + 1):
            write_run(home, number, steps, curves[number % TEMPLATES], number < runs, arms)
        write_plan(home, runs, steps, arms)


def write_plan(home: Home, runs: int, steps: int, arms: int) -> None:
    folder = home.sweeps / "many" / "plan"
    planned.write(folder, [spec(number, steps, arms) for number in range(runs)])
    listed = [
        {"run_id": f"{n:012x}", "arm": f"arm{n % arms}", "seed": n // arms, "steps": steps, "train_flops": 1.0}
        for n in range(runs)
    ]
    names = {"sweep": "many", "plan_id": "plan", "scale": None, "baseline": "arm0", "question": "?"}
    write_json(folder / "plan.json", {**names, "created_at": now(), "runs": listed})


def in_process(task: str, home: Home) -> dict[str, float]:
    """Run one task of `TASKS` in its own interpreter: seconds inside it, and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.record", "--task", task, str(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def ingest_all(home: Home) -> float:
    return ingest(home, rebuild=True).rows_new


def ingest_new(home: Home) -> float:
    return ingest(home).rows_new


def curve_query(home: Home) -> float:
    """One curve page: every arm's loss in 400 bins, with the extremes of each."""
    sql = """
        SELECT arm, step * 400 // (SELECT max(step) + 1 FROM train) AS bin, avg(loss), min(loss), max(loss)
        FROM train JOIN plan_runs USING (run_id) GROUP BY ALL
    """
    with query.open(home) as con:
        return len(con.execute(sql).fetchall())


TASKS: dict[str, Callable[[Home], float]] = {"rebuild": ingest_all, "ingest": ingest_new, "curves": curve_query}


def run_task(name: str, home: Home) -> None:
    began = time.perf_counter()
    value = TASKS[name](home)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": time.perf_counter() - began, "value": value, "peak_bytes": peak}))


def main(runs: int = 1000, steps: int = 10_000, folder: str | None = None) -> None:
    """Print one line per measurement."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Home(folder or temporary)
        if not home.runs.exists():
            write_home(home, runs, steps)
        first = in_process("rebuild", home)
        say(f"first ingest of {first['value']:.3g} rows", first, ROWS_PER_S)
        curve = home.run(f"{runs:012x}").path / "attempts" / "0001" / "train.csv"
        at = steps
        for new in (0, 1000, 100_000, 1_000_000):
            with curve.open("ab") as file:
                file.write(rows(new, at + 1, at + new) if new else b"")
            at += new
            say(f"ingest of {new} new rows", in_process("ingest", home))
        say("curves of every arm, 400 bins", in_process("curves", home))


def say(what: str, seen: dict[str, float], target_rows_per_s: float = 0) -> None:
    rate = f", {seen['value'] / seen['seconds'] / 1e6:.2f} M rows/s (target 1)" if target_rows_per_s else ""
    peak = f"{seen['peak_bytes'] / 2**30:.2f} GiB peak (limit {PEAK_BYTES / 2**30:.0f})"
    print(f"{what}: {seen['seconds']:.2f} s{rate}, {peak}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--task"]:
        run_task(sys.argv[2], Home(Path(sys.argv[3])))
    else:
        runs, steps, *place = [*sys.argv[1:], *("1000", "10000")[len(sys.argv) - 1 :]]
        main(int(runs), int(steps), *place)
