"""A run that was killed and requeued three times is one monotone run in TensorBoard and in W&B."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

import results
from analysis import export
from results.home import Home
from results.ingest import ingest
from tests.results.helpers import eval_row, new_run, started, train_row


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """One run: three attempts were lost after steps they had not saved."""
    home = Home(tmp_path / "home")
    home.ensure()
    run = new_run(home)
    for resume, last in ((0, 12), (10, 23), (20, 28), (20, 40)):
        attempt = started(run, resume_step=resume)
        for step in range(resume + 1, last + 1):
            attempt.train_row(train_row(step, loss=1 / step))
        if last == 40:
            attempt.eval_row(eval_row(40, loss=float("nan")))
        attempt.close()
    ingest(home)
    return home


def test_tensorboard_has_each_step_once_and_rising(home: Home, tmp_path: Path) -> None:
    with results.open(home) as con:
        runs = export.runs_named(con, "000000000000")
        for _ in range(2):
            (folder,) = export.to_tensorboard(con, runs, tmp_path / "tb")
    assert len(list((tmp_path / "tb").iterdir())) == 1
    seen = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    seen.Reload()
    steps = [event.step for event in seen.Tensors("train/loss")]
    assert steps == list(range(1, 41))
    assert [event.step for event in seen.Tensors("val/loss")] == [40]


def records(data: bytes) -> Iterator[bytes]:
    """Records of a W&B file: LevelDB's log format (blocks of 32 KiB, pieces of crc, length, type) after 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768  # too short for a piece: filled up
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def history_steps(path: Path) -> list[int]:
    """Steps of a W&B file, in its own order."""
    found = []
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            found.append(record.history.step.num)
    return found


def test_wandb_offline_has_each_step_once_and_rising(home: Home, tmp_path: Path) -> None:
    with results.open(home) as con:
        runs = export.runs_named(con, "000000000000")
        for _ in range(2):
            (folder,) = export.to_wandb(con, runs, tmp_path / "wb", "lab")
    (file,) = folder.glob("*.wandb")
    assert history_steps(file) == list(range(1, 41))
