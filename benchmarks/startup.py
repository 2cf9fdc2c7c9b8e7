"""Starting and recording beside others: `python -m benchmarks.startup [ROUNDS]`.

Whole commands, the interpreter's start included; then one row of eight numbers at a time into what a run writes to,
beside TensorBoard, MLflow (files and SQLite) and Optuna (SQLite; one number); then many runs that do next to nothing,
beside Hydra's multirun with joblib and submitit's local executor. Who is not installed is left out.
"""

import contextlib
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.many import SWEEP, best, say
from benchmarks.record import write_home
from results.home import Home
from results.rows import COLUMNS, RowLog

HELP_S, PLAN_S, STATUS_S, ROW_S = 0.4, 2.0, 1.0, 50e-6
ROW = dict.fromkeys(COLUMNS["train"], 1.2345678901234567)
ROWS = {"lab": 2000, "TensorBoard": 500, "MLflow, files": 100, "MLflow, SQLite": 30, "Optuna, SQLite": 60}
NO_OPS = 32
Log = Callable[[int], object]

NO_OP_SWEEP = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

def sweep():
    base = replace(RunConfig(), {"model.d_model": 8, "model.n_layer": 1, "model.n_head": 1, "model.context": 8,
        "train.steps": 1, "train.batch": 1, "train.eval_sequences": 1})
    return Sweep("What does a run cost that does nothing?", {f"r{i}": {"train.lr": 1e-3 + 1e-6 * i} for i in range(%d)},
        base, seeds=1)
"""
HYDRA_APP = """
import hydra

@hydra.main(version_base=None)
def main(config):
    import torch

main()
"""
SUBMITIT_APP = """
import sys, submitit

def nothing():
    import torch

executor = submitit.LocalExecutor(folder=sys.argv[1])
for _ in range(int(sys.argv[2]) // 2):  # it starts all at once, so two are given to it at a time
    for job in [executor.submit(nothing) for _ in range(2)]:
        job.result()
"""


@contextlib.contextmanager
def lab_log(folder: Path) -> Iterator[Log]:
    log = RowLog(folder / "train.csv", "train")
    yield lambda step: log.append(ROW | {"step": step})
    log.close()


@contextlib.contextmanager
def tensorboard_log(folder: Path) -> Iterator[Log]:
    from tensorboard.summary import Writer

    writer = Writer(str(folder))

    def log(step: int) -> None:
        for name, value in ROW.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a row of ours is with the kernel when the call returns

    yield log
    writer.close()


@contextlib.contextmanager
def mlflow_log(uri: str) -> Iterator[Log]:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("rows")).info.run_id
    yield lambda step: client.log_batch(run, metrics=[Metric(k, v, step, step) for k, v in ROW.items()])


@contextlib.contextmanager
def optuna_log(folder: Path) -> Iterator[Log]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(storage=f"sqlite:///{folder}/study.db").ask()
    yield lambda step: trial.report(1.2345678901234567, step)


def logs(folder: Path) -> dict[str, Callable[[], contextlib.AbstractContextManager[Log]]]:
    return {
        "lab": lambda: lab_log(folder),
        "TensorBoard": lambda: tensorboard_log(folder / "tb"),
        "MLflow, files": lambda: mlflow_log((folder / "mlruns").as_uri()),
        "MLflow, SQLite": lambda: mlflow_log(f"sqlite:///{folder}/mlflow.db"),
        "Optuna, SQLite": lambda: optuna_log(folder),
    }


def rows(rounds: int) -> None:
    """Seconds of a row at each, interleaved, as ratios to ours."""
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        open_logs = {}
        for name, make in logs(Path(temporary)).items():
            try:
                open_logs[name] = stack.enter_context(make())
            except Exception as error:  # not installed, or a store that this version has given up
                print(f"{name} is left out: {error}".splitlines()[0])
        for number in range(rounds):
            for name, log in open_logs.items():
                began = time.perf_counter()
                for step in range(number * ROWS[name], (number + 1) * ROWS[name]):
                    log(step)
                seen.setdefault(name, []).append((time.perf_counter() - began) / ROWS[name])
    medians = {name: statistics.median(values) for name, values in seen.items()}
    for name, row in medians.items():
        print(
            f"a row at {name}: {row * 1e6:.1f} us, {row / medians['lab']:.0f} times ours (target {ROW_S * 1e6:.0f} us)"
        )


def no_ops(runs: int) -> None:
    """Seconds to start and end that many runs that do nothing, two at a time."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "nothing.py").write_text(NO_OP_SWEEP % runs)
        (place / "hydra_app.py").write_text(HYDRA_APP)
        (place / "submitit_app.py").write_text(SUBMITIT_APP)
        hydra = ["-m", f"+x=range(0,{runs})", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
        home = str(place / "home")
        for name, command in {
            "lab": ["-m", "cli", "sweep", str(place / "nothing.py"), "--yes", "--no-report", "-j", "2", "--home", home],
            "Hydra with joblib": [str(place / "hydra_app.py"), *hydra],
            "submitit, local": [str(place / "submitit_app.py"), str(place / "jobs"), str(runs)],
        }.items():
            began = time.perf_counter()
            done = subprocess.run([sys.executable, *command], cwd=place if name != "lab" else None, capture_output=True)
            wall = time.perf_counter() - began
            told = f"{wall:.1f} s, {wall / runs:.2f} s each" if done.returncode == 0 else done.stderr.decode()[-200:]
            print(f"{runs} runs that do nothing, {name}: {told}", flush=True)


def commands() -> None:
    """`lab --help`, a plan of 1,000 runs, the status of 1,000 finished ones."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "large.py").write_text(SWEEP % 10)
        help_s = min(_help() for _ in range(5))
        say("lab --help", help_s, HELP_S)
        plan = ["sweep", str(place / "large.py"), "--dry-run", "--json"]
        say("plan of 1000 runs", best(plan, place / "planned", {}), PLAN_S)
        write_home(Home(place / "done"), 1000, 10)
        say("status of 1000 finished runs", best(["status", "many", "--json"], place / "done", {}), STATUS_S)


def _help() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cli", "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(rounds: int = 5) -> None:
    """Print one line per measurement."""
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    commands()
    rows(rounds)
    no_ops(NO_OPS)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
