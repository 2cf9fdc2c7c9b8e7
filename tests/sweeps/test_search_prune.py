"""Pruning decides from the runs' one timeline, on token budgets, and stops runs as PRUNED."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from results.home import Home
from results.process import claim_identity
from results.state import State, run_state
from sweeps.launch import Options
from sweeps.search import Controller
from sweeps.search_define import define, first_asks
from sweeps.search_prune import Curve, bracket, hopeless
from tests.sweeps.searches import write
from tests.user import User, wait_until

BUDGET = 2700


def curve(number: int, losses: Mapping[int, float], live: bool = True, diverged: bool = False) -> Curve:
    return Curve(number, losses, BUDGET, live, diverged)


def test_asha_keeps_the_best_third_of_those_at_the_same_rung() -> None:
    curves = [curve(n, {0: 5.0, 100: 3.0 + n / 10}) for n in range(6)]
    assert hopeless("asha", curves) == [2, 3, 4, 5]
    assert hopeless("asha", curves[:1]) == []
    assert hopeless("asha", [curve(n, {0: 5.0 + n}) for n in range(6)]) == [], "nobody came to a rung"
    better = [curve(n, {100: 3.0 + n / 10, 300: 3.0 - n / 10}) for n in range(6)]
    assert hopeless("asha", better) == [0, 1, 2, 3], "the last rung decides"
    assert hopeless("asha", [*curves, curve(9, {}, False, True)])[0] == 2, "a diverged trial is at every rung, and last"
    assert hopeless("none", curves) == []


def test_the_median_waits_for_four_others_and_a_quarter_of_the_budget() -> None:
    ended = [curve(n, {300: 4.0, 900: 3.0 + n / 10}, live=False) for n in range(4)]
    assert hopeless("median", [*ended, curve(7, {300: 4.0, 900: 3.16})]) == [7]
    assert hopeless("median", [*ended, curve(7, {300: 4.0, 900: 3.14})]) == []
    assert hopeless("median", [*ended[:3], curve(7, {300: 4.0, 900: 9.0})]) == []
    assert hopeless("median", [*ended, curve(7, {300: 9.0})]) == []
    assert hopeless("median", [*ended, curve(7, {300: 4.0, 900: math.nan})]) == [7]


def test_hyperbands_last_bracket_prunes_nothing() -> None:
    curves = [curve(n, {100: 3.0 + n / 10, 300: 3.0 + n / 10, 900: 3.0 + n / 10}) for n in range(24)]
    stopped = hopeless("hyperband", curves)
    assert {bracket(number) for number in stopped} == {0, 1, 2}
    early = [curve(n, {100: 3.0 + n / 10}) for n in range(24)]
    assert {bracket(number) for number in hopeless("hyperband", early)} == {0}


def attempt(home: Home, run_id: str, number: int, resume_step: int, evals: Mapping[int, float]) -> None:
    """Files of an attempt of this very process, as far as they matter here."""
    folder = home.run(run_id).path / "attempts" / f"{number:04d}"
    folder.mkdir(parents=True)
    (folder / "claim.json").write_text(json.dumps(claim_identity() | {"job": None}))
    (folder / "start.json").write_text(json.dumps({"resume_step": resume_step}))
    rows = "".join(f"{step},val,{step * 16},{loss},1.0,1.0\n" for step, loss in evals.items())
    (folder / "eval.csv").write_text("step,split,tokens,loss,perplexity,bits_per_byte\n" + rows)


def test_the_pruner_sees_what_the_resumed_run_measured_not_what_the_killed_one_did(
    tmp_path: Path, text_file: Path
) -> None:
    home = Home(tmp_path / "home")
    path = write(tmp_path, text_file, steps=90, every=10)
    controller = Controller(define(str(path), "random", "asha", 0, {}, home), 3, Options(), home)
    controller.open()
    while len(controller.cache) < 3:
        controller._ask_one()
    runs = [run.run_id for run in controller.cache.values()]
    for n, run_id in enumerate(runs):
        home.run(run_id).create(controller.cache[n].spec())
    attempt(home, runs[0], 1, 0, {10: 2.0})
    attempt(home, runs[1], 1, 0, {10: 2.1})
    attempt(home, runs[2], 1, 0, {10: 9.0, 20: 9.0, 30: 9.0})
    attempt(home, runs[2], 2, 0, {10: 1.0})
    curves = {c.number: c for c in controller._curves(controller._states())}
    assert dict(curves[2].losses) == {160: 1.0}, "neither the stale value of step 10 nor those beyond it"
    assert hopeless("asha", list(curves.values())) == [0, 1]
    controller._prune(controller._states())
    assert [home.run(run_id).stop_request() for run_id in runs] == ["pruned", "pruned", None]


def test_a_run_that_was_asked_to_stop_as_pruned_and_then_lost_is_pruned(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    run = home.run("abcdefabcdef")
    run.create({})
    held = run.claim({"job": None})
    assert held is not None
    held.start(0, {})
    held.finish("preempted", step=3)
    run.request_cancel("someone", "pruned")
    assert run_state(run).state is State.PRUNED
    run.request_cancel("someone")
    assert run_state(run).state is State.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_a_search_prunes_and_every_trial_is_told(tmp_path: Path, text_file: Path, user: User, pruner: str) -> None:
    path = write(tmp_path, text_file, "{'train.lr': Range(1e-5, 1e-1, log=True)}", steps=3000, every=50)
    command = ["search", str(path), "--trials", "14", "--sampler", "random", "--pruner", pruner, "-j", "2"]
    answer = user.json(*command)
    states = [row["state"] for row in answer["results"]]
    assert set(states) == {"DONE", "PRUNED"}
    assert user.json(*command) == answer, "what was pruned stays so"
    pruned = [row for row in answer["results"] if row["state"] == "PRUNED"]
    assert all(row["step"] < 3000 and row["value"] == row["val_loss"] for row in pruned)
    assert answer["best"]["state"] == "DONE"
    outcomes = user.json("sql", "SELECT state, outcome, count(*) AS n FROM trials GROUP BY ALL ORDER BY state")
    assert [(row["state"], row["outcome"]) for row in outcomes] == [("COMPLETE", "done"), ("PRUNED", "pruned")]
    print(pruner, states)


@pytest.mark.slow
def test_what_a_killed_run_measured_after_its_checkpoint_prunes_nothing(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    """Its last losses are made terrible while it lies dead; only what it measures again may be looked at."""
    space = "{'train.lr': Choices([3e-3, 1e-7, 2e-7, 3e-7, 4e-7])}"
    path = write(tmp_path, text_file, space, steps=1500, every=100)
    path.write_text(path.read_text().replace('"train.checkpoint_every": 100', '"train.checkpoint_every": 600'))
    # The best comes last, when there are four others to compare it with.
    asks = {n: first_asks(define(str(path), "grid", "median", n, {}, Home(user.home)), 5) for n in range(50)}
    seed = next(n for n, runs in asks.items() if runs[-1].config.train.lr == 3e-3)
    command = ["search", str(path), "--trials", "5", "--sampler", "grid", "--pruner", "median", "-j", "1"]
    command += ["--seed", str(seed)]
    controller = user.start(*command, "--yes")

    def best() -> Path | None:
        specs = [
            p for p in user.home.glob("runs/*/spec.json") if json.loads(p.read_text())["config"]["train"]["lr"] == 3e-3
        ]
        return specs[0].parent if specs else None

    def is_past_its_checkpoint() -> bool:
        run = best()
        return run is not None and max(Home(user.home).run(run.name).validation_losses(), default=0) >= 700

    wait_until(is_past_its_checkpoint, "the best run to measure after its checkpoint", 180)
    controller.kill()
    user.kill_workers()
    controller.wait()
    run = best()
    assert run is not None
    rows = run / "attempts" / "0001" / "eval.csv"
    lines = [line.split(",") for line in rows.read_text().splitlines()]
    saved = max(int(p.parent.name.removeprefix("step_")) for p in run.glob("checkpoints/step_*/manifest.json"))
    spoilt = [[*line[:3], "99.0", *line[4:]] if line[0] != "step" and int(line[0]) > saved else line for line in lines]
    assert spoilt != lines
    rows.write_text("".join(",".join(line) + "\n" for line in spoilt))
    answer = user.json(*command)
    told = {row["params"]["train.lr"]: row for row in answer["results"]}
    assert told[3e-3]["state"] == "DONE", answer["results"]
    assert user.attempts()[run.name] == 2
    assert max(Home(user.home).run(run.name).validation_losses().values()) < 10
    assert all(row["value"] < 10 for row in answer["results"])
