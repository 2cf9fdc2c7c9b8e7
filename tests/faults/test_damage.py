"""Files of finished runs that somebody deletes, cuts or fills with something else: said, and mended where possible."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from results.rows import last_step
from tests.conftest import user
from tests.faults.conftest import MakeSweep
from tests.results.helpers import fill, small_disk
from tests.user import User, wait_until

__all__ = ["user"]  # the one without a scheduler

pytestmark = pytest.mark.slow


@pytest.fixture
def command(user: User, make_sweep: MakeSweep) -> list[str]:
    """Of a sweep of two runs that are done."""
    called = ["sweep", str(make_sweep(seeds=2, steps=40, save_every=10)), "--yes", "--no-report", "-j", "1"]
    user.lab(*called)
    return called


def first_run(user: User) -> Path:
    return min((user.home / "runs").iterdir())


def test_a_finished_run_without_its_spec_is_named_and_mended_by_calling_again(user: User, command: list[str]) -> None:
    whole = user.curves()
    spec = first_run(user) / "spec.json"
    content = json.loads(spec.read_text())
    spec.unlink()
    assert str(spec.relative_to(user.home)) in user.lab("ingest").stderr
    assert len(user.json("sql", "SELECT * FROM runs")) == 1
    user.lab(*command)
    assert json.loads(spec.read_text())["config"] == content["config"]
    assert len(user.json("sql", "SELECT * FROM runs")) == 2 and user.curves() == whole
    assert user.lab("ingest", "--rebuild").stderr == "" and user.curves() == whole


def test_a_finished_run_whose_rows_were_cut_is_named(user: User, command: list[str]) -> None:
    rows = first_run(user) / "attempts/0001/train.csv"
    rows.write_bytes(rows.read_bytes()[:-20])
    told = user.lab("ingest", "--rebuild").stderr
    assert f"runs/{first_run(user).name}: DONE at step 40, but its rows end at step 38" in told
    rows.unlink()
    assert "its rows end at step 0" in user.lab("ingest", "--rebuild").stderr
    assert user.lab("ingest", "--strict", code=1).returncode == 1


def test_a_checkpoint_of_something_else_is_named_and_the_one_before_taken_when_it_is_gone(
    user: User, command: list[str]
) -> None:
    run = first_run(user)
    weights = user.weights()
    steps = sorted(run.glob("checkpoints/step_*"))
    for path in steps[-1].glob("*.safetensors"):
        path.write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    manifest = json.loads((steps[-1] / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        blob = (steps[-1] / name).read_bytes()
        entry.update({"bytes": len(blob), "sha256": sha256(blob).hexdigest()})
    (steps[-1] / "manifest.json").write_text(json.dumps(manifest))
    (run / "DONE.json").unlink()
    for path in run.glob("attempts/*/exit.json"):
        path.unlink()
    assert str(steps[-1]) in user.lab("generate", run.name, "--prompt", "a", code=1).stderr
    user.lab(*command, code=None)
    group = user.json("failures", "tiny")["groups"][0]
    assert str(steps[-1]) in group["error"] and "delete it to go on" in group["error"]
    shutil.rmtree(steps[-1])
    user.lab(*command, "--retry-failed")
    assert user.weights() == weights


def test_workers_killed_before_they_took_a_run_leave_words_and_a_command(user: User, make_sweep: MakeSweep) -> None:
    path = make_sweep(seeds=2, steps=2_000_000)
    user.lab("sweep", str(path), "--yes", "-j", "1", "--no-wait")
    wait_until(user.worker_pids, "a worker")
    user.kill_workers()
    told = user.json("failures", "tiny")
    assert told["left"] >= 1 and told["commands"]
    assert "no worker is at work on them" in user.lab("failures", "tiny").stdout


def test_a_lost_run_is_said_to_have_come_as_far_as_its_rows(user: User, make_sweep: MakeSweep) -> None:
    path = make_sweep(steps=20_000, save_every=300)  # a row every thousand steps
    user.lab("sweep", str(path), "--yes", "-j", "1", "--no-wait")
    wait_until(lambda: any((user.home / "runs").glob("*/attempts/0001/train.csv")), "a row")
    rows = first_run(user) / "attempts/0001/train.csv"
    wait_until(lambda: last_step(rows) > 0, "a whole row")
    user.kill_workers()
    (first_run(user) / "attempts/0001/heartbeat").write_text("1 1\n")  # as where the disk filled before the second beat
    (run,) = user.json("status", "tiny")["runs"]
    assert run["state"] == "LOST"
    assert run["step"] == max(last_step(rows), user.newest_step()) >= 1000


def test_a_full_disk_leaves_the_database_to_be_read(tmp_path: Path, make_sweep: MakeSweep) -> None:
    with small_disk(tmp_path / "small", "12m") as place:
        user = User(place / "home")
        user.lab("sweep", str(make_sweep(seeds=2, steps=40)), "--yes", "--no-report", "-j", "1")
        user.lab("ingest")
        (first_run(user) / "attempts/0001/later").write_text("something new, so that there is something to ingest")
        fill(place)
        done = user.lab("sql", "SELECT count(*) AS n FROM runs")
        assert "2" in done.stdout
        assert "not brought up to date" in done.stderr and "make room" in done.stderr
