"""Any file of a run, cut at any byte: what was complete stays, and no other run is harmed.

One home holds a copy of a run for every cut. Files that are not cut are links, so that thousands of copies cost little.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from results import query, views
from results.home import Home
from results.ingest import ingest
from results.record import RunFolder
from results.state import State, run_state
from tests.results.helpers import (
    eval_row,
    new_run,
    run_id,
    started,
    telemetry_rows,
    train_row,
    without_fsync,
)

pytestmark = pytest.mark.slow

STEPS, RESUMED_AT = 6, 2
GONE = {"pid": 2**22 + 1, "pid_start": 1}
EVERY_BYTE_UP_TO = 400
RECORD = (
    "spec.json",
    "claim.json",
    "start.json",
    "exit.json",
    "DONE.json",
    "cancel.json",
    "decode.json",
    "lengths.json",
)


def write_run(run: RunFolder, finished: bool) -> None:
    """Two attempts, the second from step 2 on, with checkpoints at 2, 4 and at the end; or stopped at step 5."""
    last = STEPS if finished else STEPS - 1
    for resume_step, steps in ((0, range(1, 4)), (RESUMED_AT, range(3, last + 1))):
        attempt = started(run, resume_step, **GONE)
        if resume_step == 0:
            attempt.eval_row(eval_row(0))
        for step in steps:
            attempt.train_row(train_row(step))
            attempt.telemetry_rows(telemetry_rows(step, layers=1))
            attempt.beat(step)
            if step % 2 == 0:
                attempt.eval_row(eval_row(step))
                attempt.save_checkpoint(step, {"a": bytes([step]) * 20, "b": b"%d" % step})
        (attempt.path / "log.txt").write_text("first line\nsecond line\n")
    run.record_decode("cpu", [])
    run.record_lengths(64, [{"scaling": "none", "start": 0, "stop": 64, "loss": 1.5}])
    if finished:
        attempt.done({"step": STEPS, "train_loss": 1.5})
    else:
        attempt.finish("preempted", step=last)


@dataclass(frozen=True)
class Cut:
    """A copy of a run whose file `name` ends at byte `at`."""

    run: RunFolder
    name: str
    at: int
    whole: bytes

    @property
    def damaged(self) -> bool:
        """Whether a file of the record cannot be read any more: without its last newline it can."""
        return self.at < len(self.whole.rstrip())

    @property
    def base(self) -> str:
        return Path(self.name).name


def cuts(source: RunFolder, home: Home, first: int, below: str) -> Iterator[Cut]:
    number = first
    for path in sorted(path for path in source.path.glob(f"{below}/**/*") if path.is_file()):
        whole = path.read_bytes()
        places = range(len(whole)) if len(whole) <= EVERY_BYTE_UP_TO else {*range(0, len(whole), 5), len(whole) - 1}
        for at in places:
            target = home.run(run_id(number))
            shutil.copytree(source.path, target.path, copy_function=os.link)
            name = path.relative_to(source.path)
            (target.path / name).unlink()
            (target.path / name).write_bytes(whole[:at])
            yield Cut(target, str(name), at, whole)
            number += 1


def write_home(home: Home, template: Home, finished: bool) -> list[Cut]:
    source = new_run(template, int(finished), STEPS)
    write_run(source, finished)
    write_run(new_run(home, 1, STEPS), finished=True)
    return list(cuts(source, home, 2, "." if finished else "attempts/0002"))  # what else there is was cut before


def expected(cut: Cut, kind: str) -> list[int]:
    """Steps of the whole lines that are left, of the attempt that owns each: the second from step 3 on."""
    found = []
    for attempt in ("0001", "0002"):
        name = f"attempts/{attempt}/{kind}.csv"
        content = cut.whole[: cut.at] if name == cut.name else (cut.run.path / name).read_bytes()
        steps = [int(line.partition(b",")[0]) for line in content.split(b"\n")[1:-1]]
        found += [step for step in steps if (step > RESUMED_AT) == (attempt == "0002")]
    return found


def check_state(cut: Cut, finished: bool) -> None:
    """It is told what is damaged, or it does not matter; nobody claims what cannot be judged."""
    found = run_state(cut.run)
    decides = {"DONE.json"} if finished else {"attempts/0002/exit.json"}
    if cut.damaged and cut.name in decides:
        assert found.state is State.UNKNOWN
        assert cut.base in found.detail
    else:
        assert found.state is (State.DONE if finished else State.PREEMPTED), (cut.name, cut.at, found)
    views.progress(cut.run)


def check_resume(cut: Cut, caplog: pytest.LogCaptureFixture) -> None:
    """The newest checkpoint that is whole; what is passed over is named."""
    caplog.clear()
    latest = cut.run.latest_checkpoint()
    newest = cut.run.checkpoints()[-1]
    harmed = f"step_{newest:08d}" in cut.name and cut.damaged
    assert latest is not None
    assert latest[0] == (newest - 2 if harmed else newest), (cut.name, cut.at)
    assert latest[1] == {"a": bytes([latest[0]]) * 20, "b": b"%d" % latest[0]}
    if harmed:
        assert f"step_{newest:08d}" in caplog.text


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_cut_at_any_byte(tmp_path: Path, finished: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    home = Home(tmp_path / "home")
    with without_fsync():
        tried = write_home(home, Home(tmp_path / "template"), finished)
        bad = {path for path, _ in ingest(home).bad_files}
        for cut in tried:
            check_state(cut, finished)
            check_resume(cut, caplog)
            named = f"runs/{cut.run.run_id}/{cut.name}" in bad
            assert named == (cut.base in RECORD and cut.damaged), (cut.name, cut.at)
        check_rows(home, tried)
        resume(tried)
        ingest(home)
    assert query.rows(home, CLASHES) == []
    assert steps_of(home, "train")[run_id(1)] == [*range(1, STEPS + 1)]
    assert len(tried) > (2000 if finished else 800)
    print(f"{len(tried)} cuts of {len({cut.name for cut in tried})} files")


CLASHES = "SELECT run_id, step, count(*) AS n FROM train GROUP BY ALL HAVING n <> 1 OR step IS NULL"


def steps_of(home: Home, view: str) -> dict[str, list[int]]:
    rows = query.rows(home, f"SELECT run_id, list(step ORDER BY step) AS steps FROM {view} GROUP BY run_id")
    return {row["run_id"]: row["steps"] for row in rows}


def check_rows(home: Home, tried: list[Cut]) -> None:
    """Every line that is whole, once, also where the file that says whose it is cannot be read."""
    for kind, view in (("train", "train"), ("eval", "evals"), ("telemetry", "telemetry")):
        found = steps_of(home, view)
        for cut in tried:
            assert found.get(cut.run.run_id, []) == expected(cut, kind), (cut.name, cut.at, kind)
        assert len(found[run_id(1)]) == {"train": STEPS, "eval": 4, "telemetry": STEPS}[kind]


def resume(tried: list[Cut]) -> None:
    """Every run that is not done goes on from its newest whole checkpoint."""
    for cut in tried:
        seen = run_state(cut.run)
        if seen.state is State.DONE:
            continue
        attempt = cut.run.claim(GONE, after=seen.attempts)
        assert attempt is not None
        step, _ = cut.run.latest_checkpoint() or (0, {})
        attempt.start(step, {})
        for number in range(step + 1, STEPS + 1):
            attempt.train_row(train_row(number))
        attempt.close()
