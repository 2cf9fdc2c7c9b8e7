"""How fast a page of curves is, beside MLflow and TensorBoard: `python -m benchmarks.curves [RUNS STEPS ROUNDS]`.

The page: mean and band of every arm's training loss, and every run of one arm by min-max. The same runs go into a home,
an MLflow store (SQLite) and TensorBoard event files; each side reads them by its own means, and then makes the same
cells and the same pictures, so that only the reading differs. Rounds are interleaved; the median counts.

`--scale RUNS STEPS HOME` measures our side at any size, with three planted spikes that must be drawn.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis import curves
from analysis.draw import LOG, looks_for
from analysis.figures import loss_figure, runs_figure
from analysis.pictures import Picture
from analysis.select import Plan, resolve_plan
from benchmarks.record import write_home
from results import bins, query
from results.home import Home
from results.ingest import ingest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ARMS = 4
SPIKES = (50.0, 0.001, float("nan"))
LIMIT_S, LIMIT_BYTES = 2.0, 1 << 30
Frames = tuple[pl.DataFrame, pl.DataFrame]


def frames(con: "DuckDBPyConnection", plan: Plan, log: bool = False) -> Frames:
    """What the page draws: the curve of every arm, and the runs of the first."""
    return curves.smooth(curves.train_curve(con, plan, log)), curves.run_extremes(con, plan, "arm0", log)


def draw(data: Frames, axis: str) -> list[str]:
    """The two pictures of the page, as the SVG that stands in it."""
    looks = looks_for(sorted(data[0]["arm"].unique()), "arm0")
    figures = [loss_figure(data[0], axis, "loss", looks), runs_figure(data[1], "arm0", axis == LOG, looks["arm0"])]
    pictures = [Picture("p", "p", "", figure) for figure in figures]
    return [picture.inline for picture in pictures]


@contextmanager
def opened(home: Home) -> "Iterator[tuple[DuckDBPyConnection, Plan]]":
    with query.open(home) as con:
        con.execute("SET threads = 2; SET memory_limit = '600MB'")
        yield con, resolve_plan(con, "many")


def ours(home: Home) -> Frames:
    with opened(home) as (con, plan):
        return frames(con, plan)


def of_points(home: Home, points: dict[str, tuple[list[int], list[float]]]) -> Frames:
    """The same cells from {run: (steps, losses)} that another tool has read."""
    rows = pl.concat(
        pl.DataFrame({"run_id": run, "attempt": 1, "step": steps, "loss": losses})
        for run, (steps, losses) in points.items()
    )
    step = pl.col("step")
    rows = rows.with_columns(tokens=step * 4096, flops=step * 1.2345e12, wall_s=step * 0.0123)
    with opened(home) as (con, plan):
        con.register("other_bins", bins.of_rows(rows).to_arrow())
        con.execute("CREATE TEMP VIEW train_bins AS FROM other_bins; CREATE TEMP VIEW plan_runs AS FROM lab.plan_runs")
        return frames(con, plan)


def losses_of(home: Home) -> dict[str, tuple[list[int], list[float]]]:
    with opened(home) as (con, _):
        rows = con.sql("SELECT run_id, step, loss FROM train SEMI JOIN plan_runs USING (run_id) ORDER BY ALL").pl()
    parts = rows.partition_by("run_id", as_dict=True)
    return {str(key[0]): (part["step"].to_list(), part["loss"].to_list()) for key, part in parts.items()}


def mlflow_side(home: Home, folder: Path) -> Callable[[], Frames]:
    """Fill an MLflow store; what reads the page from it by MLflow's own client. ImportError where it is missing."""
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.create_experiment("many", artifact_location=str(folder / "artifacts"))
    names: dict[str, str] = {}
    for run, (steps, losses) in losses_of(home).items():
        names[run] = client.create_run(experiment).info.run_id
        metrics = [Metric("loss", loss, step, step) for step, loss in zip(steps, losses, strict=True)]
        for first in range(0, len(metrics), 1000):
            client.log_batch(names[run], metrics=metrics[first : first + 1000])

    def read() -> Frames:
        histories = {run: client.get_metric_history(name, "loss") for run, name in names.items()}
        return of_points(home, {run: ([m.step for m in h], [m.value for m in h]) for run, h in histories.items()})

    return read


def tensorboard_side(home: Home, folder: Path) -> Callable[[], Frames]:
    """Write event files; what reads the page from them by TensorBoard's EventAccumulator. ImportError where missing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary import Writer

    for run, (steps, losses) in losses_of(home).items():
        writer = Writer(str(folder / run))
        for step, loss in zip(steps, losses, strict=True):
            writer.add_scalar("loss", loss, step)
        writer.close()

    def read() -> Frames:
        points = {}
        for path in sorted(folder.iterdir()):
            events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
            events.Reload()
            found = events.Tensors("loss") if "loss" in events.Tags()["tensors"] else events.Scalars("loss")
            points[path.name] = ([e.step for e in found], [_value(e) for e in found])
        return of_points(home, points)

    return read


def _value(event: Any) -> float:
    return float(event.value if hasattr(event, "value") else event.tensor_proto.float_val[0])


def main(runs: int = 20, steps: int = 10_000, rounds: int = 5) -> None:
    """Print the seconds of each side and their ratios to ours, reading alone and the whole page."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Home(Path(temporary) / "home")
        write_home(home, runs, steps, ARMS)
        ingest(home)
        sides: dict[str, Callable[[], Frames]] = {"lab": lambda: ours(home)}
        for name, make in (("MLflow", mlflow_side), ("TensorBoard", tensorboard_side)):
            (folder := Path(temporary) / name).mkdir()
            try:
                sides[name] = make(home, folder)
            except ImportError as error:
                print(f"{name} is left out, it is not installed ({error}): pip install mlflow tensorboard")
        check({name: side() for name, side in sides.items()})
        seen = measure(sides, rounds)
    base_read, base_page = (median(values) for values in seen["lab"])
    print(f"a curve page of {runs} runs of {steps} rows, median of {rounds} interleaved rounds")
    for name, (reads, pages) in seen.items():
        read, page = median(reads), median(pages)
        print(
            f"{name}: read {read:.3f} s ({read / base_read:.1f} times ours), with drawing {page:.3f} s "
            f"({page / base_page:.1f} times ours)"
        )
        print(f"    extrapolated in proportion, not measured: {1e8 * read / runs / steps:.0f} s to read 10^8 rows")


def check(data: dict[str, Frames]) -> None:
    """All sides must draw the same page; TensorBoard keeps single precision."""
    from polars.testing import assert_frame_equal

    for found in data.values():
        columns = ["arm", "first_step", "last_step", "mean", "low", "high", "n"]
        assert_frame_equal(found[0].select(columns), data["lab"][0].select(columns), rel_tol=1e-5, abs_tol=1e-5)
        assert_frame_equal(found[1], data["lab"][1], rel_tol=1e-5, abs_tol=1e-5)


def measure(sides: dict[str, Callable[[], Frames]], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """{side: (seconds to read, seconds of the page) of each round}."""
    seen: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            data = side()
            seen[name][0].append(time.perf_counter() - began)
            draw(data, "step")
            seen[name][1].append(time.perf_counter() - began)
    return seen


def planted(runs: int, steps: int) -> list[tuple[int, int, float]]:
    """(run, step, loss) of the three spikes of `--scale`."""
    chance = random.Random(5)
    return [(chance.randrange(runs), chance.randrange(1, steps), loss) for loss in SPIKES]


def plant(home: Home, runs: int, steps: int) -> None:
    for number, step, loss in planted(runs, steps):
        path = home.run(f"{number:012x}").path / "attempts" / "0001" / "train.csv"
        lines = path.read_bytes().split(b"\n")
        fields = lines[step].split(b",")
        lines[step] = b",".join([*fields[:4], repr(loss).encode(), *fields[5:]])
        path.write_bytes(b"\n".join(lines))


def at_scale(runs: int, steps: int, folder: str) -> None:
    """Pages over all axes in a process of its own, on two threads; a spike that is not drawn is an error."""
    home = Home(folder)
    if not home.database.exists():
        write_home(home, runs, steps)
        plant(home, runs, steps)
        ingest(home)
    for axis in (*curves.AXES, LOG):
        command = [sys.executable, "-m", "benchmarks.curves", "--page", str(runs), str(steps), folder, axis]
        seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{runs} runs of {steps} rows over {axis}: reading {seen['read_s']:.2f} s, the page {seen['page_s']:.2f} s "
            f"(limit {LIMIT_S:g}; {seen['cpu_s']:.2f} s of CPU), peak {seen['peak_bytes'] / LIMIT_BYTES:.2f} GiB "
            f"(limit 1), spikes drawn: {seen['spikes']}",
            flush=True,
        )


def one_page(runs: int, steps: int, folder: str, axis: str) -> None:
    began, before = time.perf_counter(), time.process_time()
    with opened(Home(folder)) as (con, plan):
        data = frames(con, plan, axis == LOG)
        read = time.perf_counter() - began
        draw(data, axis)
        page, cpu = time.perf_counter() - began, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    drawn = sum(survives(data[0], *spike) for spike in planted(runs, steps))
    print(json.dumps({"read_s": read, "page_s": page, "cpu_s": cpu, "peak_bytes": peak, "spikes": drawn}))


def survives(curve: pl.DataFrame, run: int, step: int, loss: float) -> bool:
    """Whether the cell of this step is drawn to this loss, or marked as not finite."""
    cell = curve.filter(pl.col("arm") == f"arm{run % 100}", pl.col("first_step") <= step, pl.col("last_step") >= step)
    return loss in (cell["low"][0], cell["high"][0]) or (loss != loss and cell["bad_step"][0] == step)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--scale", runs, steps, folder]:
            at_scale(int(runs), int(steps), folder)
        case ["--page", runs, steps, folder, axis]:
            one_page(int(runs), int(steps), folder, axis)
        case sizes:
            main(*map(int, sizes))
