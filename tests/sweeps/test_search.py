"""`lab search` as a user runs it: processes, kill -9, divergence."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage

from tests.sweeps.searches import write
from tests.user import User, wait_until

RUNNING = "SELECT count(*) AS n FROM trials WHERE state = 'RUNNING'"


def search(user: User, path: Path, trials: int, *more: str, code: int | None = 0) -> dict[str, Any]:
    done = user.lab("search", str(path), "--trials", str(trials), "--json", *more, code=code)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def study(user: User) -> optuna.Study:
    """As anybody may read it with Optuna, without our code."""
    journal = next(user.home.glob("sweeps/*/*/study.journal"))
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(journal))))


def check_is_sound(user: User, trials: int) -> None:
    """Exactly so many trials, each told once, each one run, and every run somebody's."""
    found = study(user).get_trials()
    assert [trial.number for trial in found] == list(range(trials))
    assert {trial.state.name for trial in found} <= {"COMPLETE", "PRUNED"}
    runs = [trial.user_attrs["run_id"] for trial in found]
    assert len(set(runs)) == trials
    assert {path.name for path in (user.home / "runs").iterdir()} == set(runs)
    for trial in found:
        spec = json.loads((user.home / "runs" / trial.user_attrs["run_id"] / "spec.json").read_text())
        assert spec["config"]["train"]["lr"] == trial.params["train.lr"]
        done = user.home / "runs" / trial.user_attrs["run_id"] / "DONE.json"
        if trial.user_attrs["outcome"] == "done":
            assert trial.user_attrs["val_loss"] == json.loads(done.read_text())["val_loss"]
    assert user.json("sql", RUNNING) == [{"n": 0}]


def test_a_search_is_reproducible_total_and_readable_by_optuna(tmp_path: Path, text_file: Path, user: User) -> None:
    path = write(tmp_path, text_file)
    first = search(user, path, 4, "-j", "1")
    more = search(user, path, 10, "-j", "1")
    assert more["results"][:4] == first["results"]
    check_is_sound(user, 10)
    assert search(user, path, 10, "-j", "1") == more, "n_trials is the total"
    other = User(tmp_path / "other")
    assert search(other, path, 10, "-j", "1") == more
    assert search(other, path, 3, "-j", "1", "--seed", "1")["results"] != first["results"][:3]
    frame = study(user).trials_dataframe()
    assert list(frame["value"]) == [row["value"] for row in more["results"]]
    assert more["best"] == min(more["results"], key=lambda row: row["val_loss"])
    rows = user.json("sql", "SELECT trial, run_id, t.value, r.val_loss FROM trials t JOIN runs r USING (run_id)")
    assert {(r["trial"], r["run_id"], r["val_loss"]) for r in rows} == {
        (r["trial"], r["run_id"], r["val_loss"]) for r in more["results"]
    }
    assert user.states("tiny") == ["DONE"] * 10


def test_dry_run_starts_nothing_and_shows_what_would_come(tmp_path: Path, text_file: Path, user: User) -> None:
    path = write(tmp_path, text_file)
    told = search(user, path, 5, "--dry-run")
    assert told["totals"]["tokens"] == 5 * 20 * 2 * 8
    assert told["totals"]["train_flops"] > 0
    assert told["totals"]["estimated_s"] > 0
    assert not list(user.home.glob("sweeps/*"))
    done = search(user, path, 5, "-j", "5")
    assert [row["params"] for row in done["results"]] == [ask["params"] for ask in told["first_asks"]]
    assert len({row["params"]["train.lr"] for row in done["results"]}) == 5


def test_bad_spaces_are_refused_in_one_line(tmp_path: Path, text_file: Path, user: User) -> None:
    done = user.lab("search", str(write(tmp_path, text_file, "{'train.lr': Range(1, 0.1)}")), "--trials", "3", code=1)
    assert done.stderr.strip() == "error: search space: 'train.lr' from 1 to 0.1: the bounds are reversed"
    assert not list(user.home.glob("sweeps/*"))


def test_a_run_that_fails_is_no_observation_and_the_others_go_on(tmp_path: Path, text_file: Path, user: User) -> None:
    """A batch that no memory holds."""
    path = write(tmp_path, text_file, "{'train.batch': Choices([2, 10**12, 4])}")
    answer = search(user, path, 3, "--sampler", "grid", "-j", "1", code=1)
    assert sorted(row["state"] for row in answer["results"]) == ["DONE", "DONE", "FAILED"]
    assert user.json("sql", RUNNING) == [{"n": 1}]
    again = search(user, path, 3, "--sampler", "grid", "-j", "1", "--retry-failed", code=1)
    assert again["results"] == answer["results"]
    assert sorted(user.attempts().values()) == [1, 1, 2]


@pytest.mark.slow
def test_a_search_that_was_cancelled_ends_and_the_same_command_continues_it(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    path = write(tmp_path, text_file, steps=4000, every=500)
    controller = user.start("search", str(path), "--trials", "6", "--yes", "-j", "2")
    wait_until(lambda: "RUNNING" in user.states("tiny"), "a trial that runs")
    user.lab("cancel", "tiny")
    assert controller.wait(timeout=40) == 1
    wait_until(lambda: not user.worker_pids(), "workers that leave", 20)
    asked = _asked(user)
    assert len(asked) < 6
    search(user, path, 6, "-j", "2")
    check_is_sound(user, 6)
    assert {number: _asked(user)[number] for number in asked} == asked


@pytest.mark.slow
def test_a_diverged_trial_is_told_a_finite_loss_and_shown_as_diverged(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    """Far above 1 these models diverge; of the later half of trials fewer than half do."""
    space = "{'train.lr': Range(1e-3, 1e12, log=True)}"
    path = write(tmp_path, text_file, space, steps=60, every=20, base="{'train.clip': None}")
    answer = search(user, path, 24, "-j", "2")
    diverged = [row for row in answer["results"] if row["state"] == "DIVERGED"]
    assert diverged, [row["state"] for row in answer["results"]]
    assert all(4 < row["value"] < 8 and row["val_loss"] is None for row in diverged), diverged
    assert sum(row["state"] == "DIVERGED" for row in answer["results"][12:]) < 6
    told = study(user).get_trials()
    assert {trial.state.name for trial in told} == {"COMPLETE"}
    assert user.json("sql", "SELECT DISTINCT outcome FROM trials ORDER BY 1") == [
        {"outcome": "diverged"},
        {"outcome": "done"},
    ]
    assert "DIVERGED" in user.lab("status", "tiny").stdout


@pytest.mark.slow
def test_the_controller_is_killed_at_random_and_no_trial_is_lost_doubled_or_stuck(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    kills, trials = int(os.environ.get("LAB_KILLS", "20")), 30
    path = write(tmp_path, text_file, steps=400, every=50)
    command = ["search", str(path), "--trials", str(trials), "--yes", "-j", "2"]
    dice = random.Random(34)
    killed, asked_before = 0, dict[int, Any]()
    for _ in range(kills):
        controller = user.start(*command)
        time.sleep(dice.uniform(0.3, 4.0))
        if dice.random() < 0.3 and (pids := user.worker_pids()):
            _kill(dice.choice(pids))
        if controller.poll() is not None:
            break
        controller.kill()
        controller.wait()
        killed += 1
        if journal := list(user.home.glob("sweeps/*/*/study.journal")):
            with journal[0].open("ab") as file:
                file.write(b'{"op_code": 4, "tr' if dice.random() < 0.3 else b"")
            asked_before |= _asked(user)
    before, last = _told(user), user.start(*command)
    wait_until(lambda: last.poll() is not None or _told(user) > before, "another trial told after the restart", 60)
    _wait(last, command, user)
    print(f"\n{killed} kills, {sum(user.attempts().values())} attempts")
    check_is_sound(user, trials)
    assert {number: _asked(user)[number] for number in asked_before} == asked_before
    assert killed >= min(kills, 8)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _asked(user: User) -> dict[int, Any]:
    """Parameters by number, as the plan mirrors them."""
    files = list(user.home.glob("sweeps/*/*/trials.json"))
    rows = json.loads(files[0].read_text())["trials"] if files else []
    return {row["trial"]: row["params"] for row in rows}


def _told(user: User) -> int:
    files = list(user.home.glob("sweeps/*/*/trials.json"))
    rows = json.loads(files[0].read_text())["trials"] if files else []
    return sum(row["state"] != "RUNNING" for row in rows)


def _wait(process: subprocess.Popen[bytes], command: list[str], user: User) -> None:
    """A run that was killed three times without progress waits for a call."""
    for _ in range(3):
        if process.wait(timeout=240) == 0:
            return
        process = user.start(*command)
    assert process.wait(timeout=240) == 0
