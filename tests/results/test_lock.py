"""A lock whose holder died on another host, where its process id says nothing."""

import contextlib
import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from results.lock import Busy, exclusive


def held_elsewhere(folder: Path, job: str) -> None:
    holder = folder / "0007"
    holder.mkdir(parents=True)
    (holder / "owner.json").write_text(json.dumps({"host": "another", "pid": 1, "job_name": job}))


def gone(owner: Mapping[str, Any]) -> bool:
    return owner.get("job_name") == "lab-dead"


def test_a_holder_whose_job_is_over_is_succeeded_and_one_that_may_live_is_not(tmp_path: Path) -> None:
    held_elsewhere(tmp_path / "one", "lab-dead")
    with exclusive(tmp_path / "one", 5, "test", {"job_name": "mine"}, gone) as mine:
        assert mine.name == "0008"
        assert json.loads((mine / "owner.json").read_text())["job_name"] == "mine"
        with pytest.raises(Busy), exclusive(tmp_path / "one", 0.2, "test", gone=gone):
            pass
    held_elsewhere(tmp_path / "two", "lab-alive")
    with pytest.raises(Busy), exclusive(tmp_path / "two", 0.2, "test", gone=gone):
        pass
    held_elsewhere(tmp_path / "three", "lab-dead")
    with pytest.raises(Busy), exclusive(tmp_path / "three", 0.2, "test"):
        pass


def test_a_lock_that_a_full_disk_kept_shut_is_open_to_who_held_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    lock = contextlib.ExitStack()
    held = lock.enter_context(exclusive(tmp_path, 1, "test"))
    with monkeypatch.context() as disk:
        disk.setattr(Path, "touch", full)
        disk.setattr(Path, "rename", full)
        lock.close()
    assert [path.name for path in held.iterdir()] == ["owner.json"]
    with exclusive(tmp_path, 0.2, "test") as again:
        assert again.name == "0002"
