"""A tuned sweep on SLURM: the stages follow each other with nobody on the login node, whatever is killed."""

from pathlib import Path
from typing import Any

import pytest

from results.files import write_json
from results.home import Home
from sweeps import advances, slurm, stored
from sweeps.commands import SweepRequest, plan_sweep
from sweeps.launch import held
from sweeps.launch_stages import MOST_TRIES, _progress, advance
from sweeps.tune import StagePlan
from tests.fake_slurm import Cluster
from tests.sweeps.test_tune import check_is_sound
from tests.sweeps.tuned import BELOW, write
from tests.user import User, wait_until

pytestmark = pytest.mark.slow

ON_SLURM = ["--cluster", "slurm", "--yes", "-j", "2", "--no-wait"]


def notes(user: User) -> str:
    return "; ".join(user.json("status", "gate")["notes"])


def over(user: User) -> bool:
    told = user.json("status", "gate")
    return told["stage"] == "verdict" and set(told["counts"]) == {"DONE"}


def test_the_stages_advance_by_themselves(user: User, cluster: Cluster, tmp_path: Path, text_file: Path) -> None:
    cluster.set(nodes={"n1": 1, "n2": 1})
    user.lab("sweep", str(write(tmp_path, text_file, BELOW)), *ON_SLURM)
    assert "goes on when this stage has ended" in notes(user)
    wait_until(lambda: over(user), "all stages", 200, every=1)
    assert check_is_sound(user) == ["tune", "verdict", "widen"]
    wait_until(lambda: not user.worker_pids(), "the last job to leave", 30)
    assert "goes on" not in notes(user)
    # A job per stage for its workers and one after each; the last finds that all is over.
    assert len(cluster.calls("sbatch")) == 6
    dependent = [task for task in cluster.tasks() if task["state"] != "COMPLETED"]
    assert dependent == []


def test_lost_runs_are_started_again_and_a_lost_advancing_job_is_replaced_by_calling_again(
    user: User, cluster: Cluster, tmp_path: Path, text_file: Path
) -> None:
    cluster.set(nodes={"n1": 1, "n2": 1})
    command = ["sweep", str(write(tmp_path, text_file, steps=1500, every=100)), *ON_SLURM]
    user.lab(*command)
    wait_until(user.checkpoints, "a checkpoint")
    user.kill_workers()  # with nobody to see it: the advancing job starts what was lost
    wait_until(lambda: max(user.attempts().values()) == 2, "second attempts", 120, every=0.5)
    advancing = list(user.home.glob("sweeps/*/*/advances/*.json"))
    assert len(advancing) == 2
    for path in advancing:
        cluster.command("scancel", "--name", path.stem)
    wait_until(lambda: not user.worker_pids(), "the tuning runs to end", 200, every=0.5)
    told = user.json("status", "gate")
    assert (told["stage"], set(told["counts"])) == ("tune", {"DONE"})
    assert told["notes"][-1] == "`lab sweep` goes on from here"
    user.lab(*command)
    wait_until(lambda: over(user), "all stages", 200, every=1)
    check_is_sound(user)


def test_what_fails_stops_the_stages_and_status_says_so(
    user: User, cluster: Cluster, tmp_path: Path, text_file: Path
) -> None:
    path = write(tmp_path, text_file)
    user.lab("sweep", str(path), "--set", f"train.batch={10**12}", *ON_SLURM)
    wait_until(lambda: set(user.states("gate")) == {"FAILED"}, "all runs to fail", 120, every=0.5)
    wait_until(lambda: "stopped at" in notes(user), "the word", 60, every=0.5)
    assert len(cluster.calls("sbatch")) == 2
    assert set(user.attempts().values()) == {1}


def test_a_cancelled_sweep_does_not_go_on(user: User, cluster: Cluster, tmp_path: Path, text_file: Path) -> None:
    command = ["sweep", str(write(tmp_path, text_file, steps=400_000, every=2000)), *ON_SLURM]
    user.lab(*command)
    wait_until(user.checkpoints, "a checkpoint")
    user.lab("cancel", "gate")
    wait_until(lambda: "stopped: the sweep was cancelled" in notes(user), "the word", 90, every=0.5)
    assert set(user.states("gate")) == {"CANCELLED"}
    assert not user.worker_pids()


def test_rounds_without_a_step_have_an_end(
    user: User, cluster: Cluster, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    home = Home(user.home)
    plan, _ = plan_sweep(SweepRequest(str(write(tmp_path, text_file)), cluster="slurm"), home)
    assert isinstance(plan, StagePlan)
    plan.write(home)
    (plan.folder(home) / "advances").mkdir()
    states = stored.run_states(home, [run.run_id for run in plan.runs], slurm.Queue())
    how: dict[str, Any] = {
        "jobs": 1,
        "runs_per_gpu": None,
        "slurm": {},
        "command": ["lab", "sweep", "gate"],
        "submitted_at": "now",
    }
    for tries, submitted in ((MOST_TRIES, 0), (1, 2)):
        record = how | {"tasks": "1", "uuid": f"lab-{tries}", "tries": tries, "progress": _progress(plan, states)}
        write_json(plan.folder(home) / "advances" / f"lab-{tries}.json", record)
        advance(home, plan.folder(home), f"lab-{tries}")
        said = advances.record(plan.folder(home), f"lab-{tries}")["said"]
        assert said.startswith("stopped: 3 times" if not submitted else "stage tune: started SLURM job"), said
        assert len(cluster.calls("sbatch")) == submitted
    newest = max(slurm.read_submissions(plan.folder(home), "advances"), key=lambda r: r.get("job_id", ""))
    assert newest["tries"] == 2
    monkeypatch.setattr("sweeps.launch.LAUNCHER_WAIT_S", 0.1)
    with held(plan.folder(home) / ".advancing", "call of a person"):
        advance(home, plan.folder(home), "lab-1")
    said = advances.record(plan.folder(home), "lab-1")["said"]
    assert said.startswith("stopped: "), said  # never without a word
