"""A sweep with `tune` as a user runs it: all stages by one command, kills in each, an optimum at the edge."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from results.home import Home
from sweeps.commands import SweepRequest, plan_sweep
from sweeps.spec import TUNING_SEED, SweepError
from sweeps.tune import StagePlan, best, read
from tests.sweeps.tuned import BELOW, write
from tests.user import User, wait_until

TUNED = """
SELECT q.stage, p.tunes AS arm, p.params, p.seed, r.state, r.val_loss, p.run_id, r.config->'train'->>'lr' AS lr
FROM plan_runs p JOIN plans q USING (sweep, plan_id) JOIN runs r USING (run_id) ORDER BY q.stage, p.ord
"""


def check_is_sound(user: User) -> list[str]:
    """Every arm tried at the same points, its lowest run again on other seeds, only those judged; the stages."""
    rows = user.json("sql", TUNED)
    tuning = [row for row in rows if row["stage"] != "verdict"]
    fresh = [row for row in rows if row["stage"] == "verdict"]
    tried = {arm: sorted(r["params"] for r in tuning if r["arm"] == arm) for arm in ("relu", "geglu")}
    assert tried["relu"] == tried["geglu"]
    assert {row["seed"] for row in tuning} == {TUNING_SEED}
    assert sorted(row["seed"] for row in fresh) == [0, 0, 1, 1]
    assert len({row["run_id"] for row in rows}) == len(rows) == len(list((user.home / "runs").iterdir()))
    lowest = {}
    for arm in tried:
        finite = [row for row in tuning if row["arm"] == arm and row["state"] == "DONE"]
        lowest[arm] = json.loads(min(finite, key=lambda row: row["val_loss"])["params"])["train.lr"]
    judged = user.json("verdict", "gate")
    arms = {arm["arm"]: arm for arm in judged["arms"]}
    assert arms["geglu"]["n"] == 2
    config = {row["run_id"]: float(row["lr"]) for row in fresh}
    assert sorted(config.values()) == sorted([lowest["relu"], lowest["geglu"]] * 2)
    assert user.json("sql", "SELECT count(*) AS n FROM attempts WHERE reason = 'done'")[0]["n"] == len(
        [row for row in rows if row["state"] == "DONE"]
    )
    return sorted({row["stage"] for row in rows})


def test_one_command_does_all_stages_and_only_fresh_seeds_are_judged(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    path = write(tmp_path, text_file)
    budget = user.json("sweep", str(path), "--dry-run")
    assert {stage["stage"]: stage["runs"] for stage in budget["stages"]} == {"tune": 6, "widen": 4, "verdict": 4}
    assert budget["totals"]["tokens"] == 14 * 20 * 4 * 8
    assert budget["totals"]["train_flops"] == pytest.approx(sum(stage["train_flops"] for stage in budget["stages"]))
    assert not list(user.home.glob("sweeps/*"))
    user.lab("sweep", str(path), "--yes")
    stages = check_is_sound(user)
    assert stages[:2] == ["tune", "verdict"]
    assert user.json("status", "gate")["stage"] == "verdict"
    assert "Tuned at equal effort" in user.lab("verdict", "gate").stdout
    assert list(user.home.glob("reports/gate/figures/tuning_train_lr.png"))
    before = user.attempts()
    assert "nothing to start" in user.lab("sweep", str(path), "--yes").stderr
    assert user.attempts() == before
    more = user.lab("sweep", str(path), "--yes", "--seeds", "3")
    assert "2 runs to do" in more.stderr, "the tuning runs serve the larger sweep as well"
    assert len(user.attempts()) == len(before) + 2


@pytest.mark.slow
def test_an_optimum_at_the_edge_widens_the_grid_once_and_is_then_invalid(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    user.lab("sweep", str(write(tmp_path, text_file, BELOW)), "--yes")
    assert check_is_sound(user) == ["tune", "verdict", "widen"]
    tried = user.json("sql", "SELECT DISTINCT params FROM plan_runs WHERE tunes IS NOT NULL")
    rates = sorted(json.loads(row["params"])["train.lr"] for row in tried)
    assert rates[-1] > 1e-7 and len(rates) == 4
    found = user.json("verdict", "gate")["arms"][-1]
    assert found["verdict"] == "invalid"
    assert "LR at the edge of its grid" in found["reason"] and "of 4 tried" in found["reason"]


@pytest.mark.slow
def test_killed_in_and_between_all_stages_it_ends_as_if_undisturbed(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    path = write(tmp_path, text_file, BELOW, steps=600, every=50)
    command = ["sweep", str(path), "--yes", "-j", "2"]
    for stage, mark in MOMENTS:
        launcher = user.start(*command)
        wait_until(lambda s=stage, m=mark: _there(user, s, m), f"{mark} in stage {stage}", 120)  # type: ignore[misc]
        os.kill(launcher.pid, signal.SIGKILL)
        user.kill_workers()
        launcher.wait()
    user.lab(*command)
    assert check_is_sound(user) == ["tune", "verdict", "widen"]
    assert max(user.attempts().values()) >= 2
    whole = User(tmp_path / "undisturbed")
    whole.lab(*command)
    assert user.weights() == whole.weights()
    assert user.curves() == whole.curves()


# When everything is killed: something of a stage is there.
MOMENTS = [
    ("tune", "checkpoints/step_*/manifest.json"),
    ("tune", "DONE.json"),
    ("widen", ""),
    ("widen", "checkpoints/step_*/manifest.json"),
    ("verdict", ""),
    ("verdict", "checkpoints/step_*/manifest.json"),
]


def _there(user: User, stage: str, mark: str) -> bool:
    """Whether the plan of a stage is, or a file of one of its runs; with DONE.json, of all of them."""
    plans = [json.loads(path.read_text()) for path in user.home.glob("sweeps/*/*/plan.json")]
    runs = [run["run_id"] for plan in plans if plan["stage"] == stage for run in plan["runs"]]
    found = [bool(mark) and bool(list(user.home.glob(f"runs/{run_id}/{mark}"))) for run_id in runs]
    if not mark:
        return bool(runs)
    return bool(found) and (all(found) if mark == "DONE.json" else any(found))


def test_a_stage_with_a_failed_run_ends_there(tmp_path: Path, text_file: Path, user: User) -> None:
    done = user.lab("sweep", str(write(tmp_path, text_file)), "--yes", "--set", f"train.batch={10**12}", code=1)
    assert "failed (oom)" in done.stderr
    assert user.json("status", "gate")["stage"] == "tune"


def test_status_watches_all_stages_and_misses_a_run_that_was_deleted(
    tmp_path: Path, text_file: Path, user: User
) -> None:
    command = ["sweep", str(write(tmp_path, text_file, steps=200, every=50)), "--yes", "-j", "1"]
    launcher = user.start(*command)
    wait_until(lambda: bool(list(user.home.glob("sweeps/*/*/plan.json"))), "a plan")
    told = user.lab("status", "gate", "--watch", timeout=300).stdout
    assert launcher.wait() == 0
    assert "6 of 6 done" in told and told.splitlines()[-1].startswith("4 of 4 done")
    assert user.json("status", "gate")["notes"] == ["stage: verdict, the best of each arm on fresh seeds"]
    plans = [json.loads(path.read_text()) for path in user.home.glob("sweeps/*/*/plan.json")]
    (tuned,) = (plan for plan in plans if plan["stage"] == "tune")
    shutil.rmtree(user.home / "runs" / tuned["runs"][0]["run_id"])
    assert "1 of 6 runs of stage tune are gone: `lab sweep` mends it" in user.json("status", "gate")["notes"]
    user.lab(*command)
    assert len(user.json("status", "gate")["notes"]) == 1


def test_left_alone_it_says_how_the_next_stage_begins(tmp_path: Path, text_file: Path, user: User) -> None:
    told = user.lab("sweep", str(write(tmp_path, text_file)), "--yes", "--no-wait").stderr
    assert "the next stage begins with the next `lab sweep`" in told
    wait_until(lambda: set(user.json("status", "gate")["counts"]) == {"DONE"}, "the tuning runs", 60)


def planned(tmp_path: Path, text_file: Path, space: str, **more: Any) -> StagePlan:
    path = write(tmp_path, text_file, space)
    for old, new in more.pop("edits", {}).items():
        path.write_text(path.read_text().replace(old, new))
    plan, _ = plan_sweep(SweepRequest(str(path), **more), Home(tmp_path / "home"))
    assert isinstance(plan, StagePlan)
    return plan


BAD = {
    "{}": "empty",
    "{'train.lrr': Range(1e-4, 1e-1)}": "did you mean 'train.lr'",
    "{'train.lr': Range(1e-4, 1e-1, points=2)}": "needs 3 points",
    "{'train.warmup': Range(2, 3)}": "needs 3 points",
    "{'train.lr': Choices([1e-4, 1e-3])}": "is a Range",
    "{'seed': Range(0, 9)}": "share their seed",
    "{'model.ffn': Choices(['relu', 'gelu'])}": "also set by an arm",
    "{'train.steps': Choices([10, 20])}": "longer training",
    "{'train.batch': Choices([4, 8])}": "costs something else",
    "{'model.n_layer': Choices([1, 2])}": "costs something else",
    "{'train.log_every': Choices([5, 10])}": "the same run",
    "{'train.warmup': Choices([2, 10**6])}": "cannot be",
    "{'train.eval_sequences': Choices([1, 2])}": "other validation sequences",
    "{'train.precision': Choices(['auto', 'float32'])}": "name what it may become",
    "{'train.lr': Range(1e-3, 3e-2, points=3)}": "cannot be widened at its low end",
    "'train.lr'": "tune",
}


@pytest.mark.parametrize("space", BAD)
def test_what_cannot_be_tuned_is_refused_before_anything_starts(tmp_path: Path, text_file: Path, space: str) -> None:
    with pytest.raises(SweepError, match=BAD[space]):
        planned(tmp_path, text_file, space)
    assert not list((tmp_path / "home").glob("sweeps/*"))


def test_a_stored_first_plan_is_the_plan(tmp_path: Path, text_file: Path) -> None:
    space = "{'train.lr': Range(1e-4, 1e-2, log=True), 'train.clip': Choices([None, 1.0])}"
    plan, home = planned(tmp_path, text_file, space, scale=None), Home(tmp_path / "home")
    assert len(plan.runs) == 2 * 5 * 2
    plan.write(home)
    again = read(home, plan.folder(home))
    assert again.to_json() == plan.to_json()
    assert [run.spec() for run in again.runs] == [run.spec() for run in plan.runs]
    with pytest.raises(SweepError, match="cannot be tuned as well"):
        planned(tmp_path, text_file, space, sets=["train.lr=1e-3"])


def test_where_nothing_lies_beyond_there_is_no_edge(tmp_path: Path, text_file: Path) -> None:
    space = "{'model.dropout': Range(0.0, 0.4, points=3), 'train.lr': Range(1e-4, 1e-2, log=True, points=3)}"
    plan = planned(tmp_path, text_file, space)
    assert {axis.key: axis.bounds for axis in plan.tuning.axes} == {"model.dropout": ("low",), "train.lr": ()}
    whole = planned(tmp_path, text_file, "{'train.warmup': Range(0, 4, points=3)}")
    assert whole.tuning.axes[0].bounds == ("low",)


def test_a_scale_may_tune_or_not(tmp_path: Path, text_file: Path) -> None:
    edits = {"baseline=": "scales={'plain': {'tune': None}, 'odd': {'tune': 3}}, baseline="}
    with pytest.raises(SweepError, match="tune must be a Tune"):
        planned(tmp_path, text_file, BELOW, edits=edits)
    edits = {"baseline=": "scales={'plain': {'tune': None}}, baseline="}
    assert planned(tmp_path, text_file, BELOW, edits=edits).stage == "tune"
    with pytest.raises(AssertionError):
        planned(tmp_path, text_file, BELOW, edits=edits, scale="plain")


def test_the_best_is_the_lowest_mean_of_those_that_lost_fewest() -> None:
    nan = math.nan
    assert best({(1,): [2.0, 2.2], (2,): [1.0, nan], (3,): [2.1, 2.05]}) == (3,)
    assert best({(3,): [nan], (1,): [nan], (2,): [nan]}) == (1,), "as if too large: the grid is widened downwards"
    assert best({("b",): [1.0], ("a",): [1.0]}) == ("b",)
    assert best({(1,): [0.1, 0.2, 0.3], (2,): [0.3, 0.2, 0.1]}) == (1,), "equal means, whatever the order of the seeds"
