"""`lab sweep --cluster slurm` on a real scheduler: same runs, same numbers, and the scheduler's ways to interrupt."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm import cluster
from tests.user import CLASHES, User, wait_until

pytestmark = pytest.mark.slurm

ON_SLURM = ["--cluster", "slurm", "--yes", "--no-report", "-j", "2"]


def occupy_the_node(folder: Path) -> str:
    """A job of higher priority that takes every core until it is cancelled; it preempts what runs."""
    command = ["sbatch", "--parsable", "--partition=urgent", "--exclusive", "--wrap=sleep 300"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_same_run_ids_and_the_same_losses_bit_for_bit(user: User, place: Path) -> None:
    sweep = ["sweep", "ffn_ablation", "--scale", "smoke", "--seeds", "1"]
    local = User(place / "local")
    local.lab(*sweep, "--yes", "--no-report", "-j", "2")
    done = user.lab(*sweep, *ON_SLURM)
    assert "as SLURM job" in done.stderr
    assert user.states("ffn_ablation") == ["DONE"] * 5
    assert user.weights() == local.weights() != {}
    assert user.curves() == local.curves() != []
    jobs = {row["job"] for row in user.json("sql", "SELECT job FROM attempts")}
    assert all(job.partition("_")[0].isdigit() for job in jobs)
    assert "nothing to start" in user.lab(*sweep, *ON_SLURM).stderr
    intents = list(user.home.glob("sweeps/*/*/submissions/*.json"))
    assert len(intents) == 1
    assert f'"uuid": "{intents[0].stem}"' in intents[0].read_text()


def test_preemption_saves_requeues_and_ends_as_if_undisturbed(user: User, place: Path, sweep_file: Path) -> None:
    local = User(place / "local")
    sweep = ["sweep", str(sweep_file), "--scale", "medium", "--set", "train.steps=3000"]
    local.lab(*sweep, "--yes", "--no-report", "-j", "2")
    user.lab(*sweep, *ON_SLURM, "--no-wait")
    wait_until(user.checkpoints, "a checkpoint")
    urgent = occupy_the_node(place)
    wait_until(lambda: list(user.home.glob("runs/*/attempts/0001/exit.json")), "the worker to save and leave", 25)
    subprocess.run(["scancel", urgent], check=True)
    wait_until(lambda: user.states("width") == ["DONE"] * 4, "the requeued jobs to finish", 120)
    assert user.json("sql", CLASHES) == []
    assert user.weights() == local.weights()
    assert max(user.attempts().values()) >= 2
    exits = {row["reason"] for row in user.json("sql", "SELECT reason FROM attempts")}
    assert exits == {"preempted", "done"}


def test_before_its_time_is_up_a_job_saves_and_requeues_itself(user: User, sweep_file: Path) -> None:
    """A limit of one minute for runs that never end: the same job id comes back and goes on from the checkpoint."""
    user.lab("sweep", str(sweep_file), "--scale", "long", *ON_SLURM, "--no-wait", "--slurm", "time=1")
    wait_until(lambda: list(user.home.glob("runs/*/attempts/0002/start.json")), "a second attempt", 120)
    rows = user.json("sql", "SELECT attempt, job, reason, resume_step FROM attempts ORDER BY run_id, attempt")
    first = next(row for row in rows if row["reason"] == "time_limit")
    second = next(row for row in rows if row["attempt"] == 2)
    assert second["job"] in {row["job"] for row in rows if row["attempt"] == 1}
    assert first["attempt"] == 1
    assert second["resume_step"] > 0
    user.lab("cancel", "width")
    wait_until(lambda: user.states("width") == ["CANCELLED"] * 2, "both runs to save and stop", 30)


def test_killed_without_a_signal_the_requeued_job_resumes(user: User, place: Path, sweep_file: Path) -> None:
    """kill -9 of worker and run, then a requeue with the same id, as after a node failure."""
    local = User(place / "local")
    sweep = ["sweep", str(sweep_file), "--scale", "medium", "--seeds", "1", "--set", "train.steps=3000"]
    local.lab(*sweep, "--yes", "--no-report", "-j", "2")
    user.lab(*sweep, "--cluster", "slurm", "--yes", "-j", "1", "--no-wait")
    wait_until(user.checkpoints, "a checkpoint")
    job = next(iter(user.home.glob("sweeps/*/*/jobs/*_submission.sh"))).name.partition("_")[0]
    assert user.kill_workers() >= 2
    wait_until(lambda: _state(job) in ("", "FAILED"), "the job to end", 30)
    assert "LOST" in user.states("width")
    subprocess.run(["scontrol", "requeue", job], check=True)
    wait_until(lambda: user.states("width") == ["DONE"] * 2, "the requeued job to finish", 120)
    assert user.weights() == local.weights()
    assert user.json("sql", CLASHES) == []


def test_queued_jobs_run_the_code_they_were_submitted_with(user: User, place: Path, sweep_file: Path) -> None:
    copy = place / "source"
    root = Path(__file__).parents[2]
    for room in ("lmcore", "results", "sweeps", "analysis", "experiments"):
        shutil.copytree(root / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "cli.py", copy / "cli.py")
    user.environment |= {"PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1"}  # safe: not the current folder first
    urgent = occupy_the_node(place)
    try:
        wait_until(lambda: _state(urgent) == "RUNNING", "the node to be occupied", 30)
        user.lab("sweep", str(sweep_file), *ON_SLURM, "--no-wait")
        assert set(user.states("width")) == {"QUEUED"}
        (copy / "lmcore" / "train.py").write_text("raise RuntimeError('edited while jobs waited')\n")
    finally:
        subprocess.run(["scancel", urgent], check=True)
    wait_until(lambda: user.states("width") == ["DONE"] * 4, "the queued jobs to finish", 90)


def _state(job: str) -> str:
    command = ["squeue", "--noheader", "--job", job, "--format", "%T"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def test_failed_runs_make_the_job_fail(user: User, place: Path, sweep_file: Path) -> None:
    text = sweep_file.read_text().replace("match=Match(),", "")
    sweep_file.write_text(text.replace('"swiglu": {"model.ffn": "swiglu"}', '"huge": {"model.d_ff": 10**12}'))
    done = user.lab("sweep", str(sweep_file), "--cluster", "slurm", "--yes", "-j", "1", "--seeds", "1", code=1)
    assert "failed (oom)" in done.stderr
    log = next(user.home.glob("sweeps/*/*/jobs/*_log.out")).read_text()
    assert "1 run(s) failed" in log


def test_a_second_call_waits_for_the_jobs_of_the_first(user: User, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), "--scale", "medium", "--set", "train.steps=3000", *ON_SLURM]
    user.lab(*command, "--no-wait")
    assert "already at work" in user.lab(*command).stderr
    assert user.states("width") == ["DONE"] * 4
    assert set(user.attempts().values()) == {1}


def test_what_sbatch_refuses_is_one_clear_line_and_leaves_nothing_behind(user: User, sweep_file: Path) -> None:
    for option, words in (
        ("partition=nowhere", "invalid partition"),
        ("time=soon", "--slurm time"),
        ("nodes=2", "lab sets this itself"),
        ("partitoin=main", "partitoin"),
    ):
        done = user.lab("sweep", str(sweep_file), *ON_SLURM, "--slurm", option, code=1)
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(user.home.glob("sweeps/*/*/submissions/*"))
    assert set(user.states("width")) == {"PLANNED"}


def test_status_and_cancel_know_the_queue(user: User, place: Path, sweep_file: Path) -> None:
    urgent = occupy_the_node(place)
    try:
        wait_until(lambda: _state(urgent) == "RUNNING", "the node to be occupied", 30)
        user.lab("sweep", str(sweep_file), *ON_SLURM, "--no-wait")
        told = user.json("status", "width")
        assert {run["state"] for run in told["runs"]} == {"QUEUED"}
        assert any("jobs waiting in SLURM's queue: 2 (" in note for note in told["notes"])
        again = user.lab("sweep", str(sweep_file), *ON_SLURM, "--no-wait")
        assert "already at work" in again.stderr
        user.lab("cancel", "width")
        assert set(user.states("width")) == {"CANCELLED"}
        names = [path.stem for path in user.home.glob("sweeps/*/*/submissions/*.json")]
        assert len(names) == 1
        wait_until(lambda: not _queued(names[0]), "the jobs to leave the queue", 30)
    finally:
        subprocess.run(["scancel", urgent], check=True)


def _queued(name: str) -> str:
    return subprocess.run(["squeue", "--noheader", "--name", name], capture_output=True, text=True).stdout.strip()


def test_a_controller_that_restarts_mid_sweep_disturbs_nothing(user: User, sweep_file: Path) -> None:
    sweep = ["sweep", str(sweep_file), "--scale", "medium", "--set", "train.steps=3000", *ON_SLURM]
    launcher = user.start(*sweep)
    wait_until(user.checkpoints, "a checkpoint")
    pid = cluster.pid_of("slurmctld")
    assert pid is not None
    # In order: killed, it forgets what it had not written down, and drains the node (the storm of kills does that).
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: cluster.pid_of("slurmctld") is None, "the controller to be gone", 20)
    assert set(user.states("width")) <= {"RUNNING", "UNKNOWN", "DONE", "PLANNED"}
    cluster.spawn("slurmctld", "-f", str(cluster.conf_path()))
    assert launcher.wait(timeout=180) == 0
    assert user.states("width") == ["DONE"] * 4
    assert set(user.attempts().values()) == {1}


def test_scancel_saves_and_a_new_call_goes_on(user: User, sweep_file: Path) -> None:
    sweep = ["sweep", str(sweep_file), "--scale", "long", *ON_SLURM, "--no-wait"]
    user.lab(*sweep)
    wait_until(lambda: user.trained() == 2, "a checkpoint of both runs")
    subprocess.run(["scancel", "--name", next(user.home.glob("sweeps/*/*/submissions/*.json")).stem], check=True)
    wait_until(lambda: not user.worker_pids(), "the workers to save and leave", 40)
    assert set(user.states("width")) == {"PREEMPTED"}
    user.lab(*sweep)
    wait_until(lambda: list(user.home.glob("runs/*/attempts/0002/start.json")), "second attempts", 60)
    user.lab("cancel", "width")
    wait_until(lambda: not user.worker_pids(), "both runs to save and stop", 40)


@pytest.mark.slow
def test_a_node_that_is_set_down_requeues_and_the_sweep_goes_on_when_it_is_back(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), "--scale", "long", *ON_SLURM, "--no-wait")
    wait_until(user.checkpoints, "a checkpoint")
    node = ["scontrol", "update", "nodename=lab-node"]
    subprocess.run([*node, "state=down", "reason=test"], check=True)

    def gone_on() -> bool:
        # Refused where slurmd has reported back already; needed again where SLURM drained it for a "Duplicate jobid".
        subprocess.run([*node, "state=resume"], capture_output=True)
        return bool(list(user.home.glob("runs/*/attempts/0002/start.json")))

    try:
        wait_until(lambda: not user.worker_pids(), "the jobs to save and end", 60)
        assert not {"RUNNING", "DONE"} & set(user.states("width"))
        time.sleep(5)  # until slurmd, too, has forgotten them
    finally:
        wait_until(
            gone_on, "the requeued jobs", 240, every=1
        )  # SLURM itself may put off a second requeue by two minutes
    user.lab("cancel", "width")
    wait_until(lambda: not user.worker_pids(), "both runs to save and stop", 40)
