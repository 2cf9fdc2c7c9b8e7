"""A scheduler that lies, stalls, refuses, holds, requeues or dies. Nothing starts twice and nothing waits unseen."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fake_slurm import Cluster
from tests.faults.conftest import ON_SLURM, MakeSweep
from tests.user import CLASHES, User, wait_until, within

pytestmark = pytest.mark.slow

LONG = {"steps": 2_000_000, "save_every": 2000}


def running(user: User, cluster: Cluster, path: Path, jobs: int = 1) -> list[str]:
    """Start a sweep of long runs and wait until each has saved something; the command that started it."""
    command = ["sweep", str(path), *ON_SLURM, "-j", str(jobs), "--no-wait"]
    user.lab(*command)
    wait_until(lambda: len(list(user.home.glob("runs/*/checkpoints/step_*/manifest.json"))) >= jobs, "checkpoints", 180)
    return command


def runs_of(user: User) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = user.json("status", "tiny")["runs"]
    return rows


LIES: list[dict[str, Any]] = [
    {"mode": "empty"},
    {"mode": "fail", "say": "slurm_load_jobs error: Unable to contact slurm controller"},
    {"mode": "garbage"},
    {"words": {"*": "CONFIGURING"}},
    {"words": {"*": "STAGE_OUT"}},
    {"words": {"*": "COMPLETING"}},
    {"words": {"*": "PREEMPTED"}},
    {"words": {"*": "A_STATE_OF_TOMORROW"}},
]


def test_whatever_squeue_says_a_live_run_is_never_started_again(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    command = running(user, cluster, make_sweep(**LONG))
    cluster.remove_command("sacct")
    submitted = len(cluster.calls("sbatch"))
    for lie in LIES:
        cluster.lie("squeue", **lie)
        state = runs_of(user)[0]
        assert state["state"] in ("RUNNING", "UNKNOWN"), (lie, state)
        user.lab(*command, code=None)
        assert len(cluster.calls("sbatch")) == submitted, lie
        assert set(user.attempts().values()) == {1}, lie
    cluster.lie()
    assert [run["state"] for run in runs_of(user)] == ["RUNNING"]


def test_a_slow_squeue_delays_and_decides_nothing(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    running(user, cluster, make_sweep(**LONG))
    cluster.lie("squeue", mode="slow", seconds=2)
    assert [run["state"] for run in runs_of(user)] == ["RUNNING"]


def test_a_squeue_that_answers_too_late_decides_nothing(
    user: User, cluster: Cluster, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    source = copy_of_source(tmp_path, "lmcore/data.py", "pass")
    user.environment |= {"PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"}
    command = running(user, cluster, make_sweep(**LONG))
    asking = source / "sweeps" / "slurm.py"
    assert "\nTIMEOUT_S = 30\n" in asking.read_text()
    asking.write_text(asking.read_text().replace("\nTIMEOUT_S = 30\n", "\nTIMEOUT_S = 1\n"))
    submitted = len(cluster.calls("sbatch"))
    cluster.lie("squeue", mode="slow", seconds=30)
    told = user.json("status", "tiny")
    assert [run["state"] for run in told["runs"]] in (["RUNNING"], ["UNKNOWN"])
    assert any("squeue does not answer" in note for note in told["notes"])
    assert "nothing was started" in user.lab(*command, code=None).stderr
    assert len(cluster.calls("sbatch")) == submitted
    assert set(user.attempts().values()) == {1}


def test_lost_needs_the_scheduler_twice_and_a_heart_that_stands_still(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    """kill -9 of everything on the node. First squeue cannot be asked, then it can."""
    command = running(user, cluster, make_sweep(**LONG))
    cluster.lie("squeue", mode="fail")
    user.kill_workers()
    wait_until(lambda: cluster.tasks()[0]["state"] == "FAILED", "the job to end")
    step = runs_of(user)[0]
    assert step["state"] == "UNKNOWN", "nobody has said that the job is gone"
    user.lab(*command)
    assert set(user.attempts().values()) == {1}
    cluster.lie()
    began = time.monotonic()
    lost = runs_of(user)[0]
    assert time.monotonic() - began < 15
    assert (lost["state"], lost["step"]) == ("LOST", step["step"])
    assert lost["step"] > 0
    user.lab(*command)
    wait_until(lambda: runs_of(user)[0]["state"] == "RUNNING", "the run to go on", 180)
    start = json.loads(next(user.home.glob("runs/*/attempts/0002/start.json")).read_text())
    assert start["resume_step"] > 0


def test_held_jobs_are_named_with_the_command_that_releases_them(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    cluster.set(failing_launches=["n1"])
    user.lab("sweep", str(make_sweep(seeds=2)), *ON_SLURM, "-j", "1", "--no-wait")
    wait_until(lambda: cluster.tasks()[0]["reason"] == "launch failed requeued held", "the launch to fail")
    for reason in ("launch failed requeued held", "JobHoldMaxRequeue"):
        cluster.order(hold=["1"], reason=reason)
        told = user.json("status", "tiny")
        assert {run["state"] for run in told["runs"]} == {"HELD"}
        assert all("scontrol release 1" in run["detail"] and reason in run["detail"] for run in told["runs"])
        assert "scontrol release 1" in user.lab("sweep", str(make_sweep(seeds=2)), *ON_SLURM, "--no-wait").stderr
    assert len(cluster.calls("sbatch")) == 1
    cluster.set(failing_launches=[])
    cluster.command("scontrol", "release", "1")
    wait_until(lambda: user.states("tiny") == ["DONE"] * 2, "released jobs to finish", 180)


def test_a_bad_host_is_named_and_avoided_and_the_others_finish(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    """Jobs on n7 fail before anything of ours runs. The runs keep their attempts."""
    cluster.set(nodes={"n7": 3, "n1": 1}, black_holes=["n7"])
    command = ["sweep", str(make_sweep(seeds=6, steps=30)), *ON_SLURM, "-j", "4"]
    user.lab(*command)
    assert user.states("tiny") == ["DONE"] * 6
    assert set(user.attempts().values()) == {1}
    bad = user.json("failures", "tiny")["bad_hosts"]
    assert [host["name"] for host in bad] == ["n7"]
    assert "n7" in user.lab("failures", "tiny").stdout
    user.lab("sweep", str(make_sweep(seeds=12, steps=30)), *ON_SLURM, "-j", "4", "--no-wait")


def test_jobs_of_a_bad_host_are_excluded_from_further_submissions(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    cluster.set(nodes={"n7": 4, "n1": 1}, black_holes=["n7"])
    command = ["sweep", str(make_sweep(seeds=4)), *ON_SLURM, "-j", "4"]
    first = user.lab(*command, code=1)
    assert user.states("tiny") == ["PLANNED"] * 4
    assert "n7" in first.stderr
    again = user.lab(*command)
    assert "n7 fails everything at once" in again.stderr
    assert "exclude=n7" in Path(cluster.calls("sbatch")[-1][-1]).read_text()
    assert user.states("tiny") == ["DONE"] * 4


def test_a_host_on_which_runs_fail_hands_them_to_the_others(
    user: User, cluster: Cluster, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    """The worker starts on n7 and every run dies there; on n1 the same runs are fine."""
    broken = "import socket\nif socket.gethostname() == 'n7':\n    raise RuntimeError('no device on n7')\n"
    source = copy_of_source(tmp_path, "lmcore/data.py", broken)
    user.environment |= {"PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"}
    cluster.set(nodes={"n7": 1, "n1": 1})
    path = make_sweep(seeds=6, steps=2000)
    user.lab("sweep", str(path), *ON_SLURM, "-j", "2", code=None)
    user.lab("sweep", str(path), *ON_SLURM, "-j", "2")
    assert user.states("tiny") == ["DONE"] * 6
    failed = user.json("sql", "SELECT host, count(*) AS n FROM attempts WHERE reason = 'failed' GROUP BY host")
    assert [row["host"] for row in failed] == ["n7"]
    assert 1 <= failed[0]["n"] <= 3


def copy_of_source(tmp_path: Path, edited: str, more: str) -> Path:
    """The source with more code inside one file's function `load`."""
    import shutil

    copy, root = tmp_path / "source", Path(__file__).parents[2]
    for room in ("lmcore", "results", "sweeps", "analysis", "experiments"):
        shutil.copytree(root / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "cli.py", copy / "cli.py")
    text = (copy / edited).read_text()
    head, mark, tail = text.partition("\ndef load(")
    assert mark
    signature, colon, body = tail.partition(":\n")
    inside = "".join(f"    {line}\n" for line in more.splitlines())
    (copy / edited).write_text(head + mark + signature + colon + _after_docstring(body, inside))
    return copy


def _after_docstring(body: str, inside: str) -> str:
    first, newline, rest = body.partition("\n")
    return (
        first + newline + inside + rest
        if first.strip().startswith('"""') and first.count('"""') == 2
        else inside + body
    )


def test_only_the_own_array_task_is_ever_requeued(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    """Jobs end themselves before their limit, 60 seconds here, and come back under the same id."""
    cluster.set(nodes={"n1": 2})
    user.lab("sweep", str(make_sweep(seeds=2, **LONG)), *ON_SLURM, "-j", "2", "--no-wait", "--slurm", "time=1")
    wait_until(lambda: len(list(user.home.glob("runs/*/attempts/0002/start.json"))) == 2, "second attempts", 180)
    requeued = [arguments for arguments in cluster.calls("scontrol") if arguments[0] == "requeue"]
    assert {arguments[1] for arguments in requeued} == {"1_0", "1_1"}
    assert all(len(arguments) == 2 for arguments in requeued)


def test_term_alone_and_kill_later_leaves_a_newer_checkpoint(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    running(user, cluster, make_sweep(**LONG))
    cluster.order(preempt=["1"], grace=30)
    within(lambda: list(user.home.glob("runs/*/attempts/0001/exit.json")), "the run to save and leave", 10)
    (path,) = user.home.glob("runs/*/attempts/0001/exit.json")
    ended = json.loads(path.read_text())
    assert ended["reason"] == "preempted"
    assert user.newest_step() == ended["step"], "it saved where it stopped"
    wait_until(lambda: list(user.home.glob("runs/*/attempts/0002/start.json")), "the requeued job to go on", 180)


def test_a_node_that_dies_twice_resumes_each_time_from_the_newest_checkpoint(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    cluster.set(nodes={"n1": 1, "n2": 1, "n3": 1})
    running(user, cluster, make_sweep(**LONG))
    steps = [0]
    for attempt, node in ((2, "n1"), (3, "n2")):
        before = user.checkpoints()
        cluster.order(fail_node=node)
        start = f"runs/*/attempts/{attempt:04d}/start.json"
        wait_until(lambda: list(user.home.glob(start)), "the requeued job", 60)  # noqa: B023
        steps.append(json.loads(next(user.home.glob(start)).read_text())["resume_step"])
        wait_until(lambda: user.newest_step() > steps[-1], "a new checkpoint", 180)
        assert before
    assert steps == sorted(set(steps))
    assert user.json("sql", CLASHES) == []


def test_six_preemptions_with_progress_are_fine(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    running(user, cluster, make_sweep(steps=15_000, save_every=300))
    for attempt in range(2, 8):
        before = user.newest_step()
        wait_until(lambda: user.newest_step() > before, "progress", 60)  # noqa: B023
        cluster.order(preempt=["1"], grace=5)
        found = f"runs/*/attempts/{attempt:04d}/start.json"
        wait_until(lambda: list(user.home.glob(found)), "the next attempt", 60)  # noqa: B023
    wait_until(lambda: user.states("tiny") == ["DONE"], "the run to complete", 300, every=0.5)
    assert set(user.attempts().values()) == {7}
    assert user.json("sql", CLASHES) == []


def test_three_deaths_without_progress_are_a_failure_with_a_name(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    user.lab("sweep", str(make_sweep(steps=2_000_000, save_every=10**9)), *ON_SLURM, "-j", "1", "--no-wait")
    for attempt in range(1, 4):
        found = f"runs/*/attempts/{attempt:04d}/start.json"
        wait_until(lambda: list(user.home.glob(found)), "an attempt", 60)  # noqa: B023
        for pid in user.worker_pids():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not cluster.tasks()[0]["running"], "its end", 180)
        cluster.command("scontrol", "requeue", "1")
    wait_until(lambda: runs_of(user)[0]["state"] == "FAILED", "it to be given up", 180)
    assert runs_of(user)[0]["kind"] == "no_progress"


def test_the_controller_restarts_and_the_sweep_does_not_notice(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    path = make_sweep(seeds=2, steps=6000, save_every=500)
    launcher = user.start("sweep", str(path), *ON_SLURM, "-j", "2")
    wait_until(user.checkpoints, "a checkpoint", 180)
    cluster.kill_controller()
    assert set(user.states("tiny")) <= {"RUNNING", "UNKNOWN", "DONE"}
    cluster.start()
    assert launcher.wait(timeout=120) == 0
    assert user.states("tiny") == ["DONE"] * 2
    assert set(user.attempts().values()) == {1}


def test_an_answer_that_got_lost_leaves_no_job_behind(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    cluster.set(lost_replies=1, nodes={"n1": 0})
    command = ["sweep", str(make_sweep(seeds=2)), *ON_SLURM, "-j", "2", "--no-wait"]
    assert "did not answer" in user.lab(*command, code=1).stderr
    assert {task["state"] for task in cluster.tasks()} <= {"CANCELLED"}
    cluster.set(nodes={"n1": 2})
    user.lab(*command)
    wait_until(lambda: user.states("tiny") == ["DONE"] * 2, "the second call to work", 180)
    assert set(user.attempts().values()) == {1}


def test_jobs_run_the_code_they_were_submitted_with(
    user: User, cluster: Cluster, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    cluster.set(nodes={})
    source = copy_of_source(tmp_path, "lmcore/data.py", "pass")
    user.environment |= {"PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"}
    user.lab("sweep", str(make_sweep(seeds=2)), *ON_SLURM, "--no-wait")
    assert set(user.states("tiny")) == {"QUEUED"}
    (source / "lmcore" / "train.py").write_text("raise RuntimeError('edited while jobs waited')\n")
    cluster.set(nodes={"n1": 2})
    wait_until(lambda: len(list(user.home.glob("runs/*/DONE.json"))) == 2, "the queued jobs to finish", 180)


def test_a_terminal_that_closes_ends_nothing(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    launcher = user.start("sweep", str(make_sweep(seeds=4, steps=2000)), *ON_SLURM, "-j", "2")
    wait_until(lambda: cluster.calls("sbatch"), "the submission")
    wait_until(lambda: list(user.home.glob("sweeps/*/*/submissions/*.json")), "the record of it")
    time.sleep(0.5)
    os.killpg(launcher.pid, signal.SIGHUP)
    assert launcher.wait(timeout=30) != 0, "it was still there when the terminal closed"
    wait_until(lambda: user.states("tiny") == ["DONE"] * 4, "all runs to finish by themselves", 180)
    assert set(user.attempts().values()) == {1}
    assert len(user.weights()) == 4, "what ended with nobody there is in the database all the same"


def test_a_python_that_is_gone_is_named_and_not_tried_again_by_itself(
    user: User, cluster: Cluster, make_sweep: MakeSweep
) -> None:
    """The interpreter that was there at submission is missing when jobs start."""
    cluster.set(nodes={})
    command = ["sweep", str(make_sweep(seeds=4)), *ON_SLURM, "-j", "2"]
    user.lab(*command, "--no-wait")
    script = next(user.home.glob("sweeps/*/*/jobs/*_submission.sh"))
    state = json.loads((cluster.folder / "state.json").read_text())
    assert "-m submitit" in script.read_text()
    cluster.kill_controller()
    state["jobs"][0]["script"] = re.sub(
        r"\S+ -u -m submitit", "/gone/bin/python -u -m submitit", state["jobs"][0]["script"]
    )
    (cluster.folder / "state.json").write_text(json.dumps(state))
    cluster.start()
    cluster.set(nodes={"n1": 2})
    wait_until(lambda: [t["state"] for t in cluster.tasks()] == ["FAILED"] * 2, "both jobs to fail")
    told = user.json("failures", "tiny")
    assert [(group["kind"], len(group["runs"])) for group in told["groups"]] == [("env", 2)]
    assert "/gone/bin/python" in told["groups"][0]["error"]
    assert user.states("tiny") == ["PLANNED"] * 4
    assert len(cluster.calls("sbatch")) == 1
    user.lab(*command)
    assert user.states("tiny") == ["DONE"] * 4
