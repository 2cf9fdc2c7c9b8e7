"""What goes wrong on a laptop: kills, Ctrl-C, closed terminals, failures, full disks. Nothing is lost or doubled."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.user import CLASHES, User, wait_until, within


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the medium sweep ran without any trouble, made once."""
    return tmp_path_factory.mktemp("undisturbed") / "home"


def reference(undisturbed: Path, sweep_file: Path) -> User:
    user = User(undisturbed)
    user.lab("sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "2")
    return user


def assert_same_as_undisturbed(user: User, undisturbed: Path, sweep_file: Path) -> None:
    wanted = reference(undisturbed, sweep_file)
    assert user.states("width") == ["DONE"] * 4
    assert user.json("sql", CLASHES) == []
    assert user.weights() == wanted.weights()
    assert user.curves() == wanted.curves()


def newest_checkpoint(user: User) -> float:
    return max((path.stat().st_mtime for path in user.home.glob("runs/*/checkpoints/step_*/manifest.json")), default=0)


def test_kill_9_of_everything_again_and_again(user: User, undisturbed: Path, sweep_file: Path) -> None:
    """Each time after progress: the sweep ends as if nothing had happened, bit for bit."""
    command = ["sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "2"]
    for _ in range(3):
        before = newest_checkpoint(user)
        launcher = user.start(*command)
        wait_until(lambda: newest_checkpoint(user) > before, "progress in this round", 120)  # noqa: B023
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        assert user.kill_workers() >= 2
    states = set(user.states("width"))
    assert "RUNNING" not in states
    assert "LOST" in states
    user.lab(*command)
    assert max(user.attempts().values()) > 1
    assert_same_as_undisturbed(user, undisturbed, sweep_file)


def test_ctrl_c_before_any_checkpoint_is_no_failure_to_make_progress(user: User, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), "--scale", "long", "--seeds", "1", "--yes", "--no-report", "-j", "2"]
    for _ in range(4):
        launcher = user.start(*command)
        wait_until(lambda: user.states("width").count("RUNNING") == 2, "both runs")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=60) == 130
        assert user.worker_pids() == []
        assert user.states("width") == ["PREEMPTED"] * 2


def test_ctrl_c_saves_and_the_same_command_continues(user: User, undisturbed: Path, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "2"]
    launcher = user.start(*command)
    wait_until(user.checkpoints, "a checkpoint")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=60) == 130
    assert user.worker_pids() == []
    assert set(user.states("width")) <= {"PREEMPTED", "PLANNED", "DONE"}
    user.lab(*command)
    assert_same_as_undisturbed(user, undisturbed, sweep_file)


def test_closing_the_terminal_ends_nothing(user: User, sweep_file: Path) -> None:
    launcher = user.start("sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "2")
    wait_until(user.worker_pids, "workers")
    os.killpg(launcher.pid, signal.SIGHUP)
    assert launcher.wait(timeout=30) != 0
    wait_until(lambda: user.states("width") == ["DONE"] * 4, "all runs to finish by themselves", 180)


def test_a_second_call_beside_a_running_one_starts_nothing(user: User, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "2"]
    user.lab(*command, "--no-wait")
    wait_until(lambda: len(user.worker_pids()) >= 2, "workers")
    again = user.lab(*command)
    assert "already at work" in again.stderr
    assert user.states("width") == ["DONE"] * 4
    assert set(user.attempts().values()) == {1}


def test_eight_launchers_at_once_start_each_run_once(user: User, sweep_file: Path) -> None:
    launchers = [user.start("sweep", str(sweep_file), "--yes", "-j", "2") for _ in range(8)]
    assert [launcher.wait(timeout=480) for launcher in launchers] == [0] * 8
    assert user.states("width") == ["DONE"] * 4
    assert set(user.attempts().values()) == {1}


def test_cancel_stops_within_seconds_and_a_new_call_continues(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), "--scale", "long", "--yes", "-j", "2", "--no-wait")
    wait_until(lambda: user.states("width").count("RUNNING") == 2, "runs to start")
    user.lab("cancel", "width")
    within(lambda: not user.worker_pids(), "no process to be left", 10)
    assert user.states("width") == ["CANCELLED"] * 2
    assert user.json("cancel", "width") == {"cancelled": []}
    steps = [run["step"] for run in user.json("status", "width")["runs"]]
    user.lab("sweep", str(sweep_file), "--scale", "long", "--yes", "-j", "2", "--no-wait")
    wait_until(lambda: user.states("width").count("RUNNING") == 2, "runs to start again")
    user.lab("cancel", "width")
    within(lambda: not user.worker_pids(), "no process to be left", 10)
    assert all(run["step"] >= before for run, before in zip(user.json("status", "width")["runs"], steps, strict=True))


def test_a_cancelled_sweep_is_waited_for_when_it_is_called_again(
    user: User, undisturbed: Path, sweep_file: Path
) -> None:
    command = ["sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "2"]
    user.lab(*command, "--no-wait")
    wait_until(lambda: "RUNNING" in user.states("width"), "a run")
    user.lab("cancel", "width")
    within(lambda: not user.worker_pids(), "no process to be left", 10)
    assert set(user.states("width")) <= {"CANCELLED", "DONE"}
    user.lab(*command)
    assert user.worker_pids() == []
    assert_same_as_undisturbed(user, undisturbed, sweep_file)


def test_a_sweep_called_while_its_cancelled_run_still_saves_goes_on(user: User, sweep_file: Path) -> None:
    """SIGSTOP stands for a save or an evaluation that takes long."""
    command = ["sweep", str(sweep_file), "--scale", "long", "--seeds", "1", "--yes", "-j", "1", "--no-wait"]
    user.lab(*command)
    wait_until(user.checkpoints, "a checkpoint")
    (child,) = user.trainers()
    os.kill(child, signal.SIGSTOP)
    user.lab("cancel", "width")
    user.lab(*command)
    os.kill(child, signal.SIGCONT)
    assert not list(user.home.glob("runs/*/cancel.json"))
    before = user.newest_step()
    wait_until(lambda: user.newest_step() > before, "it to go on")
    assert "RUNNING" in user.states("width")


def test_an_interrupted_start_is_not_told_as_broken_workers(user: User, sweep_file: Path) -> None:
    launcher = user.start("sweep", str(sweep_file), "--yes", "-j", "2")
    wait_until(user.worker_pids, "workers", every=0.005)
    time.sleep(0.3)  # while they import torch
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=60) == 130
    assert "ended before they took a run" not in user.lab("failures", "width", code=None).stdout


def test_a_run_of_a_host_that_cannot_be_asked_is_left_alone_until_it_is_taken_over(
    user: User, sweep_file: Path
) -> None:
    command = ["sweep", str(sweep_file), "--yes", "--no-report", "-j", "2", "--seeds", "1"]
    user.lab(*command)
    run = next((user.home / "runs").iterdir())
    (run / "DONE.json").unlink()
    (run / "attempts" / "0001" / "exit.json").unlink()
    claim = run / "attempts" / "0001" / "claim.json"
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"host": "a-node-far-away"}))
    told = user.lab(*command, code=1)
    assert "--take-over" in told.stderr
    assert "a-node-far-away" in told.stderr
    assert sorted(user.states("width")) == ["DONE", "UNKNOWN"]
    user.lab(*command, "--take-over")
    assert user.states("width") == ["DONE"] * 2
    assert user.attempts()[run.name] == 2


def test_logging_may_be_changed_between_calls(user: User, sweep_file: Path) -> None:
    command = ["sweep", str(sweep_file), "--yes", "--no-report", "-j", "2", "--seeds", "1"]
    user.lab(*command)
    assert "nothing to start" in user.lab(*command, "--set", "train.log_every=5").stderr


def test_term_to_the_workers_saves_at_a_step_boundary(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), "--scale", "long", "--yes", "-j", "1", "--no-wait")
    wait_until(lambda: "RUNNING" in user.states("width"), "a run to start")
    before = user.checkpoints()
    began = time.monotonic()
    for pid in user.worker_pids():
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM):
            os.kill(pid, number)
    within(lambda: not user.worker_pids(), "the workers to end", 10)
    assert time.monotonic() - began < 10
    run = next(run for run in user.json("status", "width")["runs"] if run["state"] == "PREEMPTED")
    assert user.checkpoints() >= before
    assert user.json("show", run["run_id"])["checkpoints"][-1] == run["step"]


def test_a_superseded_worker_stops_and_changes_nothing(user: User, sweep_file: Path) -> None:
    """SIGSTOP a worker, let another attempt take over, wake the first: it leaves at its next step."""
    user.lab("sweep", str(sweep_file), "--scale", "long", "--yes", "-j", "1", "--seeds", "1", "--no-wait")
    wait_until(user.checkpoints, "a checkpoint")
    sleepers = user.worker_pids()
    for pid in sleepers:
        os.kill(pid, signal.SIGSTOP)
    run = next((user.home / "runs").glob("*/attempts/0001")).parent
    private = run / ".0002.other"
    private.mkdir()
    (private / "claim.json").write_text('{"owner": "somebody else", "host": "elsewhere", "pid": 1}')
    private.rename(run / "0002")
    files = {path: path.stat().st_mtime_ns for path in run.parent.rglob("step_*")}
    for pid in sleepers:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: (run / "0001" / "exit.json").exists(), "the first attempt to leave", 20)
    assert '"superseded"' in (run / "0001" / "exit.json").read_text()
    assert files == {path: path.stat().st_mtime_ns for path in run.parent.rglob("step_*")}


def failing_sweep(tmp_path: Path, text: Path) -> Path:
    path = tmp_path / "failing.py"
    path.write_text(
        "from lmcore.config import RunConfig, replace\nfrom sweeps.spec import Sweep\n"
        f"BASE = replace(RunConfig(), {{'data.path': {str(text)!r}, 'model.d_model': 16, 'model.n_layer': 1,\n"
        "    'model.n_head': 2, 'model.context': 16, 'train.batch': 4, 'train.steps': 10, 'train.eval_sequences': 8})\n"
        "def sweep():\n    return Sweep('Does it fit?', {'small': {}, 'huge': {'model.d_ff': 10**12},\n"
        "        'wild': {'train.lr': 1e30, 'train.clip': None}}, base=BASE, seeds=2)\n"
    )
    return path


def test_failures_are_named_and_only_retry_failed_starts_them_again(
    user: User, tmp_path: Path, text_file: Path
) -> None:
    command = ["sweep", str(failing_sweep(tmp_path, text_file)), "--yes", "--no-report", "-j", "2"]
    first = user.lab(*command, code=1)
    assert "failed (oom)" in first.stderr
    assert user.worker_pids() == []
    status = user.json("status", "failing")
    assert status["counts"] == {"DIVERGED": 2, "DONE": 2, "FAILED": 2}
    assert {run["kind"] for run in status["runs"] if run["arm"] == "huge"} == {"oom"}
    assert "memory" in user.lab("logs", next(r["run_id"] for r in status["runs"] if r["arm"] == "huge")).stdout

    done = {path: path.stat().st_mtime_ns for path in (user.home / "runs").glob("*/DONE.json")}
    assert "nothing to start" in user.lab(*command, code=1).stderr
    assert set(user.attempts().values()) == {1}
    user.lab(*command, "--retry-failed", code=1)
    assert user.worker_pids() == []
    arms = {run["run_id"]: run["arm"] for run in status["runs"]}
    assert {arms[run]: n for run, n in user.attempts().items()} == {"small": 1, "huge": 2, "wild": 1}
    assert done == {path: path.stat().st_mtime_ns for path in done}
    diverged = user.json(
        "sql", "SELECT count(*) AS n FROM train t JOIN runs r USING (run_id) WHERE r.state = 'DIVERGED'"
    )
    assert diverged[0]["n"] >= 2


def test_a_killed_child_is_taken_up_again_by_its_worker(user: User, undisturbed: Path, sweep_file: Path) -> None:
    launcher = user.start("sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "1")
    wait_until(user.checkpoints, "a checkpoint")
    child = user.trainers()[0]
    os.kill(child, signal.SIGKILL)
    assert launcher.wait(timeout=240) == 0
    assert max(user.attempts().values()) == 2
    assert_same_as_undisturbed(user, undisturbed, sweep_file)


def test_a_run_that_dies_without_progress_is_given_up_until_somebody_calls_again(user: User, sweep_file: Path) -> None:
    never = ["--set", f"train.checkpoint_every={10**9}"]
    user.lab("sweep", str(sweep_file), "--scale", "long", *never, "--yes", "-j", "1", "--no-wait")
    for attempt in range(1, 4):
        found = f"runs/*/attempts/{attempt:04d}/start.json"
        wait_until(lambda: list(user.home.glob(found)), "an attempt", 60)  # noqa: B023
        os.kill(user.trainers()[0], signal.SIGKILL)
    wait_until(lambda: "FAILED" in user.states("width"), "it to be given up", 60)
    user.kill_workers()
    state = next(r for r in user.json("status", "width")["runs"] if r["state"] == "FAILED")
    assert state["kind"] == "no_progress"
    user.lab("sweep", str(sweep_file), "--scale", "long", *never, "--yes", "-j", "2", "--no-wait")
    wait_until(lambda: user.attempts()[state["run_id"]] == 4, "another attempt", 60)


def test_never_more_at_once_than_asked(user: User, sweep_file: Path) -> None:
    launcher = user.start("sweep", str(sweep_file), "--yes", "--no-report", "-j", "2", "--seeds", "4")
    most = 0
    while launcher.poll() is None:
        claims = [a for a in (user.home / "runs").glob("*/attempts/[0-9]*") if not (a / "exit.json").exists()]
        most = max(most, len(claims))
        time.sleep(0.02)
    assert launcher.wait() == 0
    assert most == 2


def test_concurrent_runs_see_different_gpus(user: User, sweep_file: Path) -> None:
    user.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    user.lab("sweep", str(sweep_file), "--scale", "long", "--yes", "-j", "2", "--no-wait")
    wait_until(lambda: len(user.worker_pids()) >= 2, "workers")
    seen = set()
    for pid in user.worker_pids():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        seen |= {v.decode() for v in variables if v.startswith(b"CUDA_VISIBLE_DEVICES=")}
    assert seen == {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_named_and_freeing_space_continues(tmp_path: Path, sweep_file: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1600k", "lab", str(place)], check=True)
    try:
        (place / "ballast").write_bytes(bytes(500_000))
        user = User(place / "home")
        command = ["sweep", str(sweep_file), "--yes", "--no-report", "-j", "1"]
        done = user.lab(*command, code=1)
        told = done.stderr + "".join(p.read_text() for p in place.glob("home/runs/*/attempts/*/log.txt"))
        assert "no space left" in told.lower()
        assert list(place.glob("home/runs/*/attempts/0001/claim.json"))
        assert str(place) in told
        assert "Traceback" not in done.stderr
        (place / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=60m", str(place)], check=True)
        user.lab(*command)
        assert user.states("width") == ["DONE"] * 4
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_queued_work_runs_the_code_it_was_started_with(user: User, sweep_file: Path, tmp_path: Path) -> None:
    """Workers import the snapshot, whatever happens to the source afterwards, and the record says which code it was."""
    copy = tmp_path / "source"
    for room in ("lmcore", "results", "sweeps", "analysis", "experiments"):
        shutil.copytree(Path(__file__).parents[1] / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).parents[1] / "cli.py", copy / "cli.py")
    user.environment |= {"PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1"}  # safe: not the current folder first
    launcher = user.start("sweep", str(sweep_file), "--scale", "medium", "--yes", "--no-report", "-j", "1")
    wait_until(user.worker_pids, "a worker")
    (copy / "lmcore" / "train.py").write_text("raise RuntimeError('edited while jobs waited')\n")
    assert launcher.wait(timeout=240) == 0
    hashes = {row["code_hash"] for row in user.json("sql", "SELECT code_hash FROM attempts")}
    assert hashes == {path.name for path in (user.home / "snapshots").iterdir()}
    assert len(hashes) == 1
