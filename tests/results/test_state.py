"""One test for each line of the section States in docs/design.md."""

import os
import signal
import time
from typing import Any

import pytest

from results.files import read_json, write_json
from results.home import Home
from results.process import claim_identity, process_alive
from results.record import RunFolder
from results.state import Hint, State, claimable, run_state
from tests.results.helpers import claim_if_allowed, end, finished, hear, must_claim, new_run, python, started

ELSEWHERE = {"host": "another-host", "pid": 1, "pid_start": 1}
GONE = {"pid": 2**22 + 1, "pid_start": 1}


def state_of(run: RunFolder, hint: Hint | None = None) -> tuple[State, str | None]:
    found = run_state(run, hint)
    return found.state, found.kind


def test_there_are_thirteen() -> None:
    assert len(State) == 13


def test_done_json_alone_means_done(home: Home) -> None:
    run = finished(home, 1, steps=7)
    assert (run_state(run).state, run_state(run).step) == (State.DONE, 7)
    must_claim(run)
    assert run_state(run).state is State.DONE, "DONE.json comes before any attempt"
    (run.path / "spec.json").unlink()
    assert run_state(run).state is State.DONE, "without a spec nobody knows better"
    other = new_run(home, 2)
    started(other, **GONE).finish("done", step=7)
    assert state_of(other) == (State.LOST, None), "killed between exit.json and DONE.json"
    about_to_be = new_run(home, 3)
    started(about_to_be).finish("done", step=7)
    assert state_of(about_to_be) == (State.RUNNING, None)


@pytest.mark.parametrize(
    ("reason", "kind", "expected"),
    [
        ("failed", "oom", (State.FAILED, "oom")),
        ("diverged", None, (State.DIVERGED, None)),
        ("pruned", None, (State.PRUNED, None)),
        ("cancelled", None, (State.CANCELLED, None)),
        ("preempted", None, (State.PREEMPTED, None)),
        ("time_limit", None, (State.PREEMPTED, None)),
        ("interrupted", None, (State.PREEMPTED, None)),
        ("superseded", None, (State.PREEMPTED, None)),
        ("no such reason", None, (State.UNKNOWN, None)),
    ],
)
def test_the_exit_reason_of_the_newest_attempt_decides(
    home: Home, reason: str, kind: str | None, expected: tuple[State, str | None]
) -> None:
    run = new_run(home)
    started(run).finish("failed", kind="earlier")
    started(run).finish(reason, kind=kind, step=12)
    assert state_of(run) == expected
    assert (run_state(run).step, run_state(run).attempts) == (12, 2)


def test_a_live_claimant_is_running_and_a_killed_one_is_lost(home: Home) -> None:
    run = new_run(home)
    script = "import sys; from tests.results.helpers import *; a = started(Home(sys.argv[1]).run(sys.argv[2]))\n"
    script += "a.beat(4); print('up', flush=True); input()"
    worker = python(script, home.path, run.run_id)
    assert hear(worker) == "up"
    assert (state_of(run), run_state(run).step) == ((State.RUNNING, None), 4)
    os.kill(worker.pid, signal.SIGSTOP)
    assert state_of(run) == (State.RUNNING, None)
    worker.kill()
    deadline = time.monotonic() + 10
    while state_of(run)[0] is State.RUNNING and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state_of(run) == (State.LOST, None), "a zombie counts as gone"
    end(worker)
    assert (state_of(run), run_state(run).step) == ((State.LOST, None), 4)


def test_a_reused_pid_is_another_process(home: Home) -> None:
    run = new_run(home)
    me = claim_identity()
    must_claim(run, **{**me, "pid_start": me["pid_start"] - 1})
    assert state_of(run) == (State.LOST, None)
    assert process_alive(me) is True


def test_start_times_are_read_past_odd_process_names() -> None:
    script = "from pathlib import Path; Path('/proc/self/comm').write_text('a) Z (b c')\n"
    script += "from results.process import *; print(process_alive(claim_identity()))"
    process = python(script)
    assert process.communicate()[0] == "True\n"


def test_without_a_start_time_a_signal_decides() -> None:
    assert process_alive({**claim_identity(), "pid_start": None}) is True
    assert process_alive({**claim_identity(), **GONE, "pid_start": None}) is False
    assert process_alive({}) is None


@pytest.mark.parametrize(
    ("job", "jobs", "expected"),
    [
        ("7_1", {"7_1": "RUNNING"}, State.RUNNING),
        ("7_1", {"7_1": "GONE"}, State.LOST),
        ("7_1", {"7_1": "PENDING"}, State.LOST),
        ("7_1", {"7_1": "UNKNOWN"}, State.UNKNOWN),
        ("7_1", {}, State.UNKNOWN),
        (7, {"7": "GONE"}, State.LOST),
        (None, {"None": "GONE"}, State.UNKNOWN),
    ],
)
def test_on_another_host_the_scheduler_decides(home: Home, job: Any, jobs: dict[str, str], expected: State) -> None:
    run = new_run(home)
    started(run, **ELSEWHERE, job=job)  # type: ignore[arg-type]
    assert state_of(run, Hint(jobs=jobs, still=frozenset({run.run_id}))) == (expected, None)
    unseen = State.RUNNING if expected is State.RUNNING else State.UNKNOWN
    assert state_of(run, Hint(jobs=jobs)) == (unseen, None), "nobody has looked at the heartbeat yet"
    assert state_of(run, Hint(jobs=jobs, beating=frozenset({run.run_id}))) == (State.RUNNING, None)
    assert state_of(run) == (State.UNKNOWN, None)


def end_without_progress(run: RunFolder, how: str, resume_step: int) -> None:
    if how == "lost":
        started(run, resume_step, **GONE)
    elif how == "never started":
        must_claim(run, **GONE)
    else:
        started(run, resume_step).finish(how)


@pytest.mark.parametrize("hows", [["lost"] * 3, ["never started"] * 3, ["preempted", "lost", "time_limit"]])
def test_three_attempts_without_a_new_checkpoint_fail(home: Home, hows: list[str]) -> None:
    run = new_run(home)
    first = started(run)
    first.save_checkpoint(10, {"w": b""})
    first.finish("preempted")
    for how in hows[:2]:
        end_without_progress(run, how, 10)
    if "never started" not in hows:
        assert state_of(run)[0] in (State.PREEMPTED, State.LOST), "the first of the three saved one"
    end_without_progress(run, hows[2], 10)
    assert state_of(run) == (State.FAILED, "no_progress")


def test_a_new_checkpoint_or_another_end_buys_new_attempts(home: Home) -> None:
    run = new_run(home)
    for step in (0, 10, 20, 30):
        attempt = started(run, step, **GONE)
        attempt.save_checkpoint(step + 10, {"w": b""})
    assert state_of(run) == (State.LOST, None)
    for _ in range(2):
        end_without_progress(run, "lost", 40)
    assert state_of(run) == (State.LOST, None)
    end_without_progress(run, "failed", 40)
    end_without_progress(run, "lost", 40)
    assert state_of(run) == (State.LOST, None), "not three in a row"


def test_a_damaged_checkpoint_is_no_progress(home: Home) -> None:
    run = new_run(home)
    started(run, **GONE).save_checkpoint(20, {"w": b"x"})
    (run.path / "checkpoints" / "step_00000020" / "w").write_bytes(b"")
    for _ in range(3):
        end_without_progress(run, "lost", 0)
    assert state_of(run) == (State.FAILED, "no_progress")


def test_without_an_attempt(home: Home) -> None:
    run = new_run(home)
    assert state_of(run) == (State.PLANNED, None)
    for pending in (State.QUEUED, State.SUBMITTED, State.HELD):
        assert state_of(run, Hint(pending=pending)) == (pending, None)
    run.request_cancel("me")
    assert state_of(run, Hint(pending=State.QUEUED)) == (State.CANCELLED, None)
    run.clear_cancel()
    assert state_of(run) == (State.PLANNED, None)


def test_what_may_be_claimed() -> None:
    able = {State.PLANNED, State.QUEUED, State.SUBMITTED, State.PREEMPTED, State.LOST}
    assert {state for state in State if claimable(state)} == able


def test_a_cancelled_run_is_not_resumed(home: Home) -> None:
    run = new_run(home)
    started(run).finish("preempted")
    run.request_cancel("me")
    assert claim_if_allowed(run) is None
    run.clear_cancel()
    assert claim_if_allowed(run) is not None


@pytest.mark.parametrize("name", ["DONE.json", "attempts/0001/exit.json", "attempts/0001/claim.json"])
def test_a_damaged_file_is_named_and_claims_nothing(home: Home, name: str) -> None:
    run = new_run(home)
    started(run)
    (run.path / name).write_bytes(b"")
    found = run_state(run)
    assert found.state is State.UNKNOWN
    assert name in found.detail
    assert claim_if_allowed(run) is None


@pytest.mark.parametrize("said", [{}, {"step": 6}, {"step": -1}, {"step": "7"}, {"step": 7.0}, {"step": True}])
def test_done_before_the_last_step_is_not_done(home: Home, said: dict[str, Any]) -> None:
    run = finished(home, 1, steps=7)
    write_json(run.path / "DONE.json", said)
    found = run_state(run)
    assert found.state is State.UNKNOWN
    assert "DONE.json" in found.detail
    assert claim_if_allowed(run) is None


def test_looking_changes_nothing(home: Home) -> None:
    run = new_run(home)
    started(run, **GONE)
    before = sorted((path, path.stat().st_mtime_ns) for path in home.path.rglob("*"))
    run_state(run, Hint(pending=State.QUEUED))
    assert sorted((path, path.stat().st_mtime_ns) for path in home.path.rglob("*")) == before
    assert read_json(run.path / "attempts" / "0001" / "exit.json") is None
