import os
from pathlib import Path

import pytest

from results.files import read_json
from results.home import Home
from results.record import Superseded
from results.state import State, run_state
from tests.results.helpers import claim_if_allowed, end, must_claim, new_run, python, run_id, say, started

RACER = """
import sys
from results.home import Home
home, who = Home(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
run = home.run("%012x" % 0)
won = [attempt.number for attempt in (run.claim({"who": who}) for _ in range(30)) if attempt]
first = [n for n in range(1, 31) if home.run("%012x" % n).claim({"who": who}, after=0)]
print(*won, ";", *first, flush=True)
"""


def test_of_eight_racing_processes_exactly_one_wins_each_number(home: Home) -> None:
    for number in range(31):
        new_run(home, number)
    racers = [python(RACER, home.path, who) for who in range(8)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        say(racer, "go")
    answers = [racer.communicate()[0].split(";") for racer in racers]
    won = [(int(number), who) for who, (numbers, _) in enumerate(answers) for number in numbers.split()]
    assert sorted(number for number, _ in won) == list(range(1, len(won) + 1))
    assert len({who for _, who in won}) > 1, "no race took place"
    claims = {info.number: info.claim for info in home.run(run_id(0)).attempts()}
    assert {number: (claim or {})["who"] for number, claim in claims.items()} == dict(won)
    assert len({(claim or {})["owner"] for claim in claims.values()}) == len(won)
    first = sorted(int(number) for _, numbers in answers for number in numbers.split())
    assert first == list(range(1, 31)), "a run was claimed twice or not at all"
    assert not list(home.runs.glob("*/attempts/.*"))


def test_a_decision_made_on_an_old_look_cannot_supersede_a_healthy_attempt(home: Home) -> None:
    run = new_run(home)
    seen = run_state(run)
    assert seen.state is State.PLANNED
    assert run.claim({}, after=seen.attempts) is not None
    assert run.claim({}, after=seen.attempts) is None
    assert claim_if_allowed(run) is None, "a running run was claimed"
    assert [info.number for info in run.attempts()] == [1]


def test_a_claim_says_who_and_is_refused_under_a_cancel_request(home: Home) -> None:
    run = new_run(home)
    run.request_cancel("me")
    assert run.claim({}) is None
    run.clear_cancel()
    attempt = must_claim(run, job="17_3", code_hash="abc")
    claim = read_json(attempt.path / "claim.json") or {}
    assert (claim["pid"], claim["job"], claim["code_hash"], claim["attempt"]) == (os.getpid(), "17_3", "abc", 1)
    assert {"owner", "host", "pid_start", "user", "claimed_at"} <= claim.keys()


def test_what_a_killed_claimant_left_is_swept_by_the_winner(home: Home) -> None:
    run = new_run(home)
    (run.path / "attempts" / ".0001.dead").mkdir(parents=True)
    must_claim(run)
    assert [path.name for path in (run.path / "attempts").iterdir()] == ["0001"]


def test_a_superseded_attempt_stops_and_changes_nothing(home: Home) -> None:
    run = new_run(home, steps=20)
    old = started(run)
    old.save_checkpoint(10, {"w": b"old"})
    assert not old.superseded()
    new = started(run, resume_step=10)
    assert old.superseded()
    with pytest.raises(Superseded):
        old.save_checkpoint(20, {"w": b"zombie"})
    with pytest.raises(Superseded):
        old.done({"step": 20})
    assert run.done() is None
    assert run.latest_checkpoint() == (10, {"w": b"old"})
    new.done({"step": 20})
    assert (run.done() or {})["attempt"] == 2


def test_the_first_exit_reason_wins(home: Home) -> None:
    attempt = started(new_run(home))
    attempt.finish("failed", kind="oom", step=3)
    attempt.finish("interrupted")
    exit_ = read_json(attempt.path / "exit.json") or {}
    assert (exit_["reason"], exit_["kind"], exit_["step"], exit_["error"]) == ("failed", "oom", 3, None)


def test_heartbeat_counts(home: Home) -> None:
    run = new_run(home)
    attempt = started(run)
    assert run.attempts()[0].heartbeat is None
    attempt.beat(5)
    attempt.beat(9)
    assert run.attempts()[0].heartbeat == (2, 9)
    (attempt.path / "heartbeat").write_text("")
    assert run.attempts()[0].heartbeat is None


def test_fifty_runs_in_one_second_collide_nowhere(tmp_path: Path) -> None:
    script = "import sys; from tests.results.helpers import *\n"
    script += "[new_run(Home(sys.argv[1]), int(sys.argv[2]) * 25 + i).claim({}) for i in range(25)]"
    processes = [python(script, tmp_path, who) for who in range(2)]
    assert [end(process) for process in processes] == [0, 0]
    runs = [Home(tmp_path).run(name) for name in Home(tmp_path).run_ids()]
    assert len(runs) == 50
    assert all(len(run.attempts()) == 1 for run in runs)
