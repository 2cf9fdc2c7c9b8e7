import logging
import random
import time
from pathlib import Path

import pytest

from results import checkpoints
from results.home import Home
from results.record import Superseded
from tests.results.helpers import end, eval_row, hear, new_run, python, run_id, started, train_row

SAVER = """
import sys
from results.home import Home
run = Home(sys.argv[1]).run(sys.argv[2])
attempt = run.claim({})
latest = run.latest_checkpoint()
step = latest[0] if latest else 0
attempt.start(step, {})
while True:
    step += 1
    blobs = {"a": bytes([step % 256]) * 30_000, "b": bytes([step % 251]) * 70_000}
    attempt.save_checkpoint(step, blobs)
    print(step, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_loadable_checkpoint(home: Home) -> None:
    run = new_run(home)
    rng = random.Random(0)
    reached = 0
    for _ in range(40):
        saver = python(SAVER, home.path, run.run_id)
        said = int(hear(saver))
        assert said == reached + 1, "the next attempt did not resume from the newest checkpoint"
        time.sleep(rng.uniform(0, 0.03))
        saver.kill()
        assert saver.stdout is not None
        said = max([said, *(int(line) for line in saver.stdout.read().split())])
        end(saver)
        latest = run.latest_checkpoint()
        assert latest is not None
        reached, blobs = latest
        assert reached >= said
        assert blobs == {"a": bytes([reached % 256]) * 30_000, "b": bytes([reached % 251]) * 70_000}
        assert len(run.checkpoints()) <= 3
    started(run, resume_step=reached)
    assert not [path for path in (run.path / "checkpoints").iterdir() if path.name.startswith(".")]


def test_only_the_newest_are_kept(home: Home) -> None:
    run = new_run(home)
    attempt = started(run)
    for step in (5, 10, 15, 20):
        attempt.save_checkpoint(step, {"w": b"%d" % step}, newest=2)
    assert run.checkpoints() == [15, 20]
    attempt.save_checkpoint(25, {"w": b"25"}, newest=1)
    assert run.checkpoints() == [25]
    with pytest.raises(ValueError, match="at least one"):
        attempt.save_checkpoint(30, {"w": b"30"}, newest=0)


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "empty manifest", "no manifest", "foreign name"])
def test_a_damaged_newest_falls_back_and_is_replaced(home: Home, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    run = new_run(home)
    attempt = started(run)
    attempt.save_checkpoint(10, {"w": b"ten"})
    attempt.save_checkpoint(20, {"w": b"twenty"})
    newest = run.path / "checkpoints" / "step_00000020"
    match damage:
        case "flip":
            (newest / "w").write_bytes(b"twentz")
        case "cut":
            (newest / "w").write_bytes(b"twen")
        case "missing":
            (newest / "w").unlink()
        case "empty manifest":
            (newest / "manifest.json").write_bytes(b"")
        case "no manifest":
            (newest / "manifest.json").unlink()
        case "foreign name":
            text = (newest / "manifest.json").read_text()
            (newest / "manifest.json").write_text(text.replace('"w"', '"../../spec.json"'))
    with caplog.at_level(logging.WARNING):
        assert run.latest_checkpoint() == (10, {"w": b"ten"})
    assert damage == "no manifest" or "step 20" in caplog.text
    resumed = started(run, resume_step=10)
    resumed.save_checkpoint(15, {"w": b"fifteen"})
    resumed.save_checkpoint(20, {"w": b"twenty"})
    assert run.latest_checkpoint() == (20, {"w": b"twenty"})
    assert run.checkpoints() == [15, 20]


def test_all_damaged_means_none(home: Home) -> None:
    run = new_run(home)
    assert run.latest_checkpoint() is None
    started(run).save_checkpoint(10, {"w": b"ten"})
    (run.path / "checkpoints" / "step_00000010" / "w").write_bytes(b"")
    assert run.latest_checkpoint() is None


def test_a_complete_checkpoint_of_the_same_step_stays(home: Home) -> None:
    run = new_run(home)
    attempt = started(run)
    attempt.save_checkpoint(10, {"w": b"first"})
    attempt.save_checkpoint(10, {"w": b"second"})
    assert run.latest_checkpoint() == (10, {"w": b"first"})


def test_a_zombie_that_slipped_through_cannot_move_the_timeline(home: Home) -> None:
    run = new_run(home)
    zombie = started(run)
    zombie.save_checkpoint(10, {"w": b"ten"})
    alive = started(run, resume_step=10)
    # It was stopped between its last look and its rename, and wakes up now.
    checkpoints.save(run.path / "checkpoints", 30, zombie.number, {"w": b"zombie"}, True, lambda: None)
    assert run.checkpoints() == [10, 30]
    assert run.latest_checkpoint() == (10, {"w": b"ten"})
    alive.save_checkpoint(20, {"w": b"twenty"})
    assert run.checkpoints() == [10, 20]
    checkpoints.save(run.path / "checkpoints", 30, zombie.number, {"w": b"zombie"}, True, lambda: None)
    alive.save_checkpoint(30, {"w": b"thirty"})
    assert run.latest_checkpoint() == (30, {"w": b"thirty"})


def test_a_takeover_during_a_save_stops_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(home)
    old = started(run)
    old.save_checkpoint(10, {"w": b"ten"})
    from results.files import write_new

    def write_while_another_claims(path: Path, data: bytes) -> None:
        write_new(path, data)
        if path.name == "w":
            run.claim({})

    monkeypatch.setattr(checkpoints, "write_new", write_while_another_claims)
    with pytest.raises(Superseded):
        old.save_checkpoint(20, {"w": b"twenty"})
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step_00000010"]


def test_rows_are_durable_before_the_checkpoint(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = started(new_run(home))
    attempt.train_row(train_row(1))
    attempt.eval_row(eval_row(1))
    order: list[str] = []
    monkeypatch.setattr("results.rows.os.fsync", lambda fd: order.append("rows"))
    monkeypatch.setattr("results.checkpoints.write_new", lambda path, data: order.append("blob"))
    attempt.save_checkpoint(1, {"w": b"w"})
    attempt.close()
    assert order[:3] == ["rows", "rows", "blob"]


def test_ids_do_not_escape(home: Home) -> None:
    attempt = started(home.run(run_id(1)))
    with pytest.raises(ValueError, match="bad name"):
        attempt.save_checkpoint(1, {"../w": b"w"})
    with pytest.raises(ValueError, match="bad name"):
        home.run("../x")
    assert attempt.run.checkpoints() == []
