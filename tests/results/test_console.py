"""Commands that read answer from the database there is, when it cannot be brought up to date."""

import shutil
from pathlib import Path

import pytest

from results import console, query
from results.files import write_json
from results.home import Home
from results.ingest import ingest
from results.lock import Busy
from results.process import claim_identity
from tests.results.helpers import finished


def held_elsewhere(lock: Path) -> None:
    (lock / "0099").mkdir(parents=True)
    write_json(lock / "0099" / "owner.json", {**claim_identity(), "host": "another-host"})


def torn(lock: Path) -> None:
    held_elsewhere(lock)
    (lock / "0099" / "owner.json").write_bytes(b"")


def is_file(lock: Path) -> None:
    shutil.rmtree(lock, ignore_errors=True)
    lock.write_text("x")


def leads_nowhere(lock: Path) -> None:
    shutil.rmtree(lock, ignore_errors=True)
    lock.symlink_to("/proc/nowhere")  # where nobody, not even root, may make a folder


@pytest.mark.parametrize("obstacle", [held_elsewhere, torn, is_file, leads_nowhere])
def test_readers_answer_without_the_lock(
    home: Home, obstacle: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(obstacle)
    monkeypatch.setattr(console, "READER_WAITS_S", 0.1)
    finished(home, 0)
    ingest(home)
    finished(home, 1)
    obstacle(home.path / ".ingest")
    there = console.ingested(home.path)
    assert query.rows(there, "SELECT count(*) AS n FROM runs") == [{"n": 1}]
    assert "the database was not brought up to date: " in capsys.readouterr().err
    home.database.unlink()
    with pytest.raises((Busy, OSError)):
        console.ingested(home.path)
