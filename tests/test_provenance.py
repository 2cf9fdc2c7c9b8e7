"""From a record back to the run: the printed command trains the same weights."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.user import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    someone = User(tmp_path / "home of mine")
    yield someone
    someone.kill_workers()


def test_the_command_that_reproduces_a_run_does(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), "--seeds", "1", "--yes", "--no-report", "-j", "1")
    run_id = user.json("status", "width")["runs"][1]["run_id"]
    told = user.json("show", run_id, "--reproduce")
    assert told["differs"] == []
    assert "torch==" in Path(told["lock"]).read_text()
    assert told["commands"][0] in user.lab("show", run_id, "--reproduce").stdout
    done = subprocess.run(told["commands"][0], shell=True, capture_output=True, text=True, cwd=user.home.parent)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["done"]
    assert answer["same_weights"]
    assert answer["val_loss"] == answer["val_loss_before"]
    again = subprocess.run(told["commands"][0], shell=True, capture_output=True, text=True, cwd=user.home.parent)
    assert again.returncode == 1, "it never writes over what is there"
    assert again.stderr.startswith("error: ")
    assert len(again.stderr.splitlines()) == 1
    lock = Path(told["lock"])
    lock.write_text(lock.read_text().replace("torch==", "torch==0"))
    assert any(change.startswith("torch 0") for change in user.json("show", run_id, "--reproduce")["differs"])
    for damage in (b"", b"numpy", b"\xff\n"):
        lock.write_bytes(damage)
        differs = user.json("show", run_id, "--reproduce")["differs"]
        assert any(change.startswith("torch (absent)") for change in differs)


def test_a_run_without_an_end_is_said_to_leave_nothing_to_compare_with(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), "--seeds", "1", "--yes", "--no-report", "-j", "1")
    run_id = user.json("status", "width")["runs"][0]["run_id"]
    assert not any("not done" in note for note in user.json("show", run_id, "--reproduce")["notes"])
    (user.home / "runs" / run_id / "DONE.json").unlink()
    told = user.json("show", run_id, "--reproduce")
    assert any("not done" in note for note in told["notes"])
    done = subprocess.run(told["commands"][0], shell=True, capture_output=True, text=True, cwd=user.home.parent)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["done"], answer["same_weights"]) == (True, None)
    assert "nothing to compare" in answer["note"]


def test_secrets_of_the_environment_reach_no_file(tmp_path: Path, sweep_file: Path) -> None:
    secret = "sk-0123456789abcdef-very-secret"
    user = User(tmp_path / "home", {"MY_API_KEY": secret, "WANDB_API_KEY": secret})
    user.lab("sweep", str(sweep_file), "--seeds", "1", "--yes", "--no-report", "-j", "1")
    user.lab("show", user.json("status", "width")["runs"][0]["run_id"])
    files = [path for path in user.home.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert os.environ.get("MY_API_KEY") is None
