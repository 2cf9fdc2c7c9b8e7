"""A disk that is full, or a quota that is used up, at any operation of any command.

What was there stays readable, the message says where and what to do, and with room the same command goes on to the same
end. `LAB_FAULTS=all` walks over every operation; otherwise some, evenly.
"""

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from results import checkpoints, query
from results.home import Home
from tests.faults.conftest import EVERYTHING, TINY
from tests.faults.disk import Disk, Ended

pytestmark = pytest.mark.slow

RUNS = 2
CURVES = "SELECT run_id, step, tokens, flops, loss, lr, grad_norm FROM train ORDER BY ALL"
EVALS = "SELECT run_id, step, split, loss FROM evals ORDER BY ALL"
WEIGHTS = "SELECT run_id, state, weights_sha256 FROM runs ORDER BY ALL"
SAVES = {"train.eval_every": 3, "train.telemetry_every": 3}


@dataclass(frozen=True)
class Stages:
    """One home after planning, after its runs, after ingest, and a finished one to compare with."""

    disk: Disk
    sweep: Path
    planned: Path
    trained: Path
    ingested: Path

    @property
    def command(self) -> tuple[str, ...]:
        return ("sweep", str(self.sweep), "--yes", "--no-report", "-j", "1")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    folder = tmp_path_factory.mktemp("disk")
    text = folder / "text.txt"
    text.write_text(" ".join(f"{i} times {i % 9} is {i * (i % 9)};" for i in range(300)))
    source = TINY % {"text": str(text), "steps": 6, "log_every": 1, "save_every": 2, "arms": "{'a': {}}", "seeds": RUNS}
    source += f"\nBASE = replace(BASE, {SAVES})\n"
    (folder / "tiny.py").write_text(source)
    found = Stages(
        Disk(folder), folder / "tiny.py", *(folder / name / "home" for name in ("planned", "trained", "ingested"))
    )
    well(found.disk.lab(found.planned, *found.command, "--no-wait", idle=True))
    copied(found.planned, found.trained)
    well(found.disk.lab(found.trained, *found.command))
    copied(found.trained, found.ingested)
    well(found.disk.lab(found.ingested, "ingest"))
    yield found
    found.disk.close()


def well(ended: Ended) -> None:
    assert ended.rc == 0, ended.err


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def some(count: int, most: int) -> list[int]:
    """Numbers of operations, the first and the last among them."""
    if EVERYTHING or count <= most:
        return list(range(1, count + 1))
    return sorted({1 + i * (count - 1) // (most - 1) for i in range(most)})


def whole(home: Path) -> None:
    """Every file under its real name can be read."""
    for path in home.rglob("*.json"):
        if not any(part.startswith(".") for part in path.relative_to(home).parts):
            assert isinstance(json.loads(path.read_text()), dict), path
    for path in home.glob("sweeps/*/*/specs.jsonl"):
        assert all("run_id" in json.loads(line) for line in path.read_text().splitlines()), path
    for run in home.glob("runs/*/checkpoints"):
        assert all(checkpoints.verifies(run, step) for step in checkpoints.steps(run)), run
    if Home(home).database.exists():
        assert len(query.rows(home, "SELECT count(*) AS n FROM runs")) == 1


def told(ended: Ended, home: Path) -> None:
    """The message of a command that could not do its work: where, and what to do. No traceback."""
    assert "Traceback" not in ended.err, (ended.what, ended.err)
    if ended.rc:
        said = " ".join(ended.err.split())
        assert str(home) in said, (ended.what, ended.err)
        assert "make room" in said, (ended.what, ended.err)


def walk(start: Path, most: int, run: Callable[..., Ended], again: Callable[[Path, Ended], None]) -> str:
    """Let operation after operation fail; `again` says whether all came right afterwards. Returns what was tried."""
    home = start.parent.parent / "tried" / "home"
    count = run(copied(start, home)).count
    failures = 0
    chosen = some(count, most)
    for turn, at in enumerate(chosen):
        code, sticky = ((errno.ENOSPC, True), (errno.EDQUOT, False), (errno.ENOSPC, False))[turn % 3]
        ended = run(copied(start, home), at=at, code=code, sticky=sticky)
        failures += ended.rc != 0
        told(ended, home)
        whole(home)
        again(home, ended)
    return f"{len(chosen)} of {count} operations failed, {failures} commands with them"


def rows(home: Path, sql: str) -> list[dict[str, Any]]:
    return query.rows(home, sql)


def same_end(stages: Stages, home: Path) -> None:
    well(stages.disk.lab(home, "ingest"))
    for sql in (CURVES, EVALS, WEIGHTS):
        assert rows(home, sql) == rows(stages.ingested, sql) != []
    assert not list(home.rglob("*.tmp"))


def test_planning(stages: Stages) -> None:
    empty = stages.planned.parent / "empty"
    empty.mkdir(exist_ok=True)

    def run(home: Path, **fault: Any) -> Ended:
        return stages.disk.lab(home, *stages.command, "--no-wait", idle=True, **fault)

    def again(home: Path, _: Ended) -> None:
        well(run(home))
        for path in stages.planned.rglob("*"):
            name = path.relative_to(stages.planned)
            if name.parts[0] in ("data", "snapshots") and path.is_file() and path.name != "SNAPSHOT.json":
                assert (home / name).read_bytes() == path.read_bytes(), name
        assert not list(home.glob("*/.*")), "half a snapshot or half of the data is left"

    print(walk(empty, 24, run, again))


def test_training(stages: Stages) -> None:
    """Also the last words of a run may fail; the next call goes on from its checkpoint."""

    def run(home: Path, **fault: Any) -> Ended:
        return stages.disk.lab(home, *stages.command, **fault)

    def again(home: Path, _: Ended) -> None:
        well(run(home))
        same_end(stages, home)

    print(walk(stages.planned, 24, run, again))


@pytest.mark.parametrize("start", ["trained", "ingested"])
def test_ingest(stages: Stages, start: str) -> None:
    """The old database stays until the new one is whole."""
    begin = getattr(stages, start)
    more = ["--rebuild"] if start == "ingested" else []

    def run(home: Path, **fault: Any) -> Ended:
        return stages.disk.lab(home, "ingest", *more, **fault)

    def again(home: Path, ended: Ended) -> None:
        if start == "ingested":
            assert rows(home, CURVES) == rows(stages.ingested, CURVES)
        same_end(stages, home)
        assert len(list((home / ".ingest").iterdir())) == 1

    print(walk(begin, 10, run, again))


def test_report(stages: Stages) -> None:
    def run(home: Path, **fault: Any) -> Ended:
        return stages.disk.lab(home, "report", "tiny", **fault)

    def again(home: Path, _: Ended) -> None:
        well(run(home))
        assert (home / "reports" / "tiny" / "index.html").stat().st_size > 10_000

    print(walk(stages.ingested, 3, run, again))


OF_A_RUN = (
    "spec.json",
    "DONE.json",
    "attempts/0001/claim.json",
    "attempts/0001/start.json",
    "attempts/0001/exit.json",
    "attempts/0001/heartbeat",
    "attempts/0001/log.txt",
    "checkpoints/step_00000006/manifest.json",
    "checkpoints/step_00000006/model.safetensors",
    "checkpoints/step_00000006/progress.json",
)
OF_A_HOME = (
    "sweeps/tiny/*/plan.json",
    "sweeps/tiny/*/specs.jsonl",
    "sweeps/tiny/*/calls/*.json",
    "sweeps/tiny/*/workers/*.json",
    "snapshots/*/SNAPSHOT.json",
    "locks/*.txt",
    "data/*/meta.json",
    "data/*/train.bin",
    "lab.duckdb",
)


@pytest.mark.parametrize("name", [*(f"runs/*/{name}" for name in OF_A_RUN), *OF_A_HOME])
def test_half_a_file_is_survived_and_the_next_call_has_it_all(stages: Stages, name: str) -> None:
    """The first run is half done where that makes a difference; `tests/results/test_truncation.py` cuts anywhere."""
    home = copied(stages.ingested, stages.ingested.parent.parent / "cut" / "home")
    path = sorted(home.glob(name))[0]
    if "checkpoints" in name:
        (path.parents[2] / "DONE.json").unlink()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    for command in (["status", "tiny"], ["ingest"], ["runs"], ["failures", "tiny"]):
        ended = stages.disk.lab(home, *command)
        assert "Traceback" not in ended.err, ended.err
        if command == ["ingest"] and path.suffix == ".json" and "workers" not in name and "checkpoints" not in name:
            assert path.name in ended.err or "data/" in name
    if name == "runs/*/DONE.json":
        assert "UNKNOWN" in stages.disk.lab(home, "status", "tiny", "--json").out
    well(stages.disk.lab(home, *stages.command, "--take-over"))
    same_end(stages, home)
