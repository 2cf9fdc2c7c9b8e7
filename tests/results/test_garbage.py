"""What `lab gc` takes, and what it must never take."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from results import checkpoints
from results.cli import app
from results.garbage import delete, garbage
from results.home import Home
from results.record import Attempt, RunFolder
from tests.results.helpers import eval_row, new_run, run_id, started


def run_with_checkpoints(home: Home, number: int, losses: dict[int, float], ended: str | None = "done") -> RunFolder:
    """A run with an evaluation and a checkpoint at each step, all still there."""
    run = new_run(home, number, steps=max(losses))
    attempt = started(run)
    for step, loss in losses.items():
        attempt.eval_row(eval_row(step, loss=loss))
        attempt.save_checkpoint(step, {"w": b"%d" % step}, newest=100)
    if ended == "done":
        attempt.done({"step": max(losses)})
    elif ended:
        attempt.finish(ended, kind="code", step=max(losses))
    attempt.close()
    return run


def names(home: Home) -> list[str]:
    return sorted(item.path.name for item in garbage(home, home.run_ids()))


def test_the_best_checkpoint_outlives_the_newest_two(home: Home) -> None:
    run = new_run(home)
    attempt = started(run)
    for step, loss in {10: 3.0, 20: 1.0, 30: 1.5, 40: 2.0, 50: float("nan")}.items():
        attempt.eval_row(eval_row(step, loss=loss))
        attempt.save_checkpoint(step, {"w": b"x"})
    assert run.checkpoints() == [20, 40, 50]
    later = started(run, resume_step=40)
    later.eval_row(eval_row(50, loss=0.5))
    later.save_checkpoint(50, {"w": b"x"})
    later.save_checkpoint(60, {"w": b"x"})
    assert run.checkpoints() == [50, 60], "the newest may be the best; 20 is no longer"
    attempt.close()
    later.close()


def test_of_an_ended_run_the_newest_good_and_the_best_stay(home: Home) -> None:
    run = run_with_checkpoints(home, 0, {10: 3.0, 20: 1.0, 30: 1.5, 40: 2.0})
    found = garbage(home, home.run_ids())
    assert names(home) == ["step_00000010", "step_00000030"]
    assert delete(found) == sum(item.bytes for item in found) > 0
    assert run.checkpoints() == [20, 40]
    assert run.latest_checkpoint() == (40, {"w": b"40"})
    assert names(home) == []


def test_of_hidden_names_only_our_own_go(home: Home) -> None:
    run = run_with_checkpoints(home, 0, {10: 1.0})
    folder = run.path / "checkpoints"
    (folder / ".DS_Store").write_text("a file manager's")
    for name in (".cache", ".doomed", ".0001.mine"):
        (folder / name).mkdir()
    ours = [f".{kind}.{'0' * 31}{n}" for n, kind in enumerate(("0001", "doomed"))]
    for name in ours:
        (folder / name).mkdir()
    assert names(home) == sorted(ours)
    delete(garbage(home, home.run_ids()))
    assert names(home) == []
    assert {path.name for path in folder.glob(".*")} == {".DS_Store", ".cache", ".doomed", ".0001.mine"}


def test_a_damaged_newest_is_not_the_last_good_one(home: Home) -> None:
    run = run_with_checkpoints(home, 0, {10: 3.0, 20: 2.0, 30: 1.0})
    (run.path / "checkpoints" / "step_00000030" / "w").write_bytes(b"?")
    delete(garbage(home, home.run_ids()))
    assert run.checkpoints() == [20]
    assert run.latest_checkpoint() == (20, {"w": b"20"})


@pytest.mark.parametrize("ended", [None, "preempted", "interrupted"])
def test_a_run_that_may_go_on_keeps_everything(home: Home, ended: str | None) -> None:
    run_with_checkpoints(home, 0, {10: 3.0, 20: 2.0, 30: 1.0}, ended)
    assert names(home) == []


def test_nothing_goes_when_nothing_is_known_to_be_whole(home: Home) -> None:
    run = run_with_checkpoints(home, 0, {10: 3.0, 20: 2.0}, "failed")
    for step in (10, 20):
        (run.path / "checkpoints" / f"step_{step:08d}" / "w").write_bytes(b"?")
    assert names(home) == []


def test_a_dry_run_only_says_it(home: Home) -> None:
    run = run_with_checkpoints(home, 0, {10: 3.0, 20: 2.0, 30: 1.0})
    other = run_with_checkpoints(home, 1, {10: 3.0, 20: 2.0, 30: 1.0})
    place = ["--home", str(home.path)]
    said = CliRunner().invoke(app, ["gc", run_id(0), "--dry-run", "--json", *place])
    answer = json.loads(said.stdout)
    assert answer["deleted"] is False
    assert [Path(item["path"]).name for item in answer["items"]] == ["step_00000010", "step_00000020"]
    assert run.checkpoints() == [10, 20, 30]
    assert "freed" in CliRunner().invoke(app, ["gc", run_id(0), *place]).stdout
    assert (run.checkpoints(), other.checkpoints()) == ([30], [10, 20, 30])


def test_a_run_that_is_taken_up_meanwhile_keeps_what_it_saves(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with_checkpoints(home, 0, {10: 3.0, 20: 2.0, 30: 1.0}, "cancelled")
    verifies, later = checkpoints.verifies, list[Attempt]()

    def slowly(folder: Path, step: int) -> bool:
        if step == 30 and not later:
            later.append(started(run, resume_step=30))
            for new in (40, 50):
                later[0].save_checkpoint(new, {"w": b"%d" % new})
        return verifies(folder, step)

    monkeypatch.setattr(checkpoints, "verifies", slowly)
    delete(garbage(home, home.run_ids()))
    assert run.checkpoints() == [30, 40, 50], "30 is the best, and the newest two"
    later[0].close()


def test_deleting_looks_again_whether_the_run_goes_on(home: Home) -> None:
    run = run_with_checkpoints(home, 0, {10: 3.0, 20: 2.0, 30: 1.0}, "cancelled")
    found = garbage(home, home.run_ids())
    later = started(run, resume_step=30)
    assert len(found) == 2
    assert delete(found) == 0
    later.close()
    assert run.checkpoints() == [10, 20, 30]
