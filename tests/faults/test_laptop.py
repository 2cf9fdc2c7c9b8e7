"""Faults on one machine: failures told as such, broken environments, full memory, many launchers, packed devices."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from results import checkpoints
from results.record import RunFolder
from tests.faults.conftest import MakeSweep
from tests.user import CLASHES, User, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    someone = User(tmp_path / "home")
    yield someone
    someone.kill_workers()


def with_code(tmp_path: Path, user: User, before_training: str) -> None:
    """This user's installation runs these lines whenever a run loads its data; `config` is not known there."""
    copy = tmp_path / "source"
    for room in ("lmcore", "results", "sweeps", "analysis", "experiments"):
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "cli.py", copy / "cli.py")
    path = copy / "sweeps" / "attempt.py"
    text = path.read_text()
    mark = "    config = read_config(spec)\n"
    assert text.count(mark) == 1
    lines = "".join(f"    {line}\n" for line in before_training.splitlines())
    path.write_text(text.replace(mark, mark + lines))
    user.environment |= {"PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1"}  # safe: not the current folder first


ENDINGS = {
    "raises": ("raise RuntimeError('no luck at step 17')", "code"),
    "exits with 3": ("os._exit(3)", "code"),
    "exits with 0": ("import sys; sys.exit(0)", "code"),
    "crashes": ("os.abort()", "code"),
    "needs too much": ("bytearray(1 << 60)", "oom"),
    "lacks a package": ("import a_package_that_nobody_has", "env"),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_failure_is_never_told_as_success(user: User, make_sweep: MakeSweep, tmp_path: Path, how: str) -> None:
    code, kind = ENDINGS[how]
    with_code(tmp_path, user, code)
    done = user.lab("sweep", str(make_sweep()), "--yes", "--no-report", "-j", "1", code=1)
    assert f"failed ({kind})" in done.stderr
    assert [(r["state"], r["kind"]) for r in user.json("status", "tiny")["runs"]] == [("FAILED", kind)]
    assert set(user.attempts().values()) == {1}
    group = user.json("failures", "tiny")["groups"][0]
    assert (group["kind"], len(group["runs"])) == (kind, 1)


def test_an_end_at_half_of_the_steps_is_never_told_as_success(
    user: User, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    at_half = (
        "def end():\n    if config.seed == 0:\n        raise RuntimeError('half is enough')\n"
        "    if config.seed == 1:\n        os._exit(3)\n"
        "    if config.seed == 2:\n        raise SystemExit(0)\n"
        "true = RecordSink.stop_reason\n"
        "RecordSink.stop_reason = lambda sink, step: (end() if step == 20 else None) or true(sink, step)"
    )
    with_code(tmp_path, user, at_half)
    user.lab("sweep", str(make_sweep(seeds=4, steps=40)), "--yes", "--no-report", "-j", "1", code=1)
    runs = user.json("status", "tiny")["runs"]
    assert [(run["state"], run["kind"]) for run in runs] == [("FAILED", "code")] * 3 + [("DONE", None)]
    rows = user.json("sql", "SELECT run_id, max(step) AS last FROM train GROUP BY ALL")
    last = {row["run_id"]: row["last"] for row in rows}
    assert [last[run["run_id"]] for run in runs] == [20, 20, 20, 40]
    assert [path.parent.name for path in user.home.glob("runs/*/DONE.json")] == [runs[3]["run_id"]]
    assert set(user.attempts().values()) == {1}


def test_nothing_in_a_task_calls_a_package_manager(user: User, make_sweep: MakeSweep, tmp_path: Path) -> None:
    fakes, called = tmp_path / "fakes", tmp_path / "called"
    fakes.mkdir()
    for name in ("pip", "pip3", "uv", "conda", "mamba", "poetry", "pixi"):
        (fakes / name).write_text(f'#!/bin/sh\necho "$0 $@" >> {called}\n')
        (fakes / name).chmod(0o755)
    user.environment["PATH"] = f"{fakes}:{user.environment['PATH']}"
    subprocess.run(["uv", "sync"], env=user.environment, check=True)
    assert called.read_text() == f"{fakes}/uv sync\n", "a call is on record"
    called.unlink()
    with_code(tmp_path, user, "import shutil\nopen(home.path / 'found', 'a').write(str(shutil.which('pip')))")
    user.lab("sweep", str(make_sweep()), "--yes", "--no-report", "-j", "1")
    assert (user.home / "found").read_text() == str(fakes / "pip"), "the task would find it"
    assert not called.exists()


def test_code_that_changed_between_two_calls_is_told(user: User, make_sweep: MakeSweep, tmp_path: Path) -> None:
    with_code(tmp_path, user, "pass")
    first = user.lab("sweep", str(make_sweep(seeds=2)), "--yes", "--no-report", "-j", "1")
    assert "other code" not in first.stderr
    (old,) = (path.name for path in (user.home / "snapshots").iterdir())
    assert user.json("status", "tiny")["code"] == {old: 2}
    assert f"code {old}" in user.lab("status", "tiny").stdout
    with (tmp_path / "source" / "lmcore" / "update.py").open("a") as file:
        file.write("\n# edited\n")
    again = user.lab("sweep", str(make_sweep(seeds=3)), "--yes", "--no-report", "-j", "1")
    (new,) = {path.name for path in (user.home / "snapshots").iterdir()} - {old}
    assert f"other code (2 by {old}; now it is {new})" in again.stderr
    assert user.json("status", "tiny")["code"] == {old: 2, new: 1}
    assert f"code {old} (2 runs), {new} (1 runs)" in user.lab("status", "tiny").stdout
    assert "versions of the code" in user.lab("lint", "tiny", code=None).stdout


def test_ten_runs_three_fail_and_exactly_those_are_tried_again(
    user: User, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    with_code(tmp_path, user, "if config.seed in (2, 5, 7):\n    raise ValueError(f'seed {config.seed} is unlucky')")
    command = ["sweep", str(make_sweep(seeds=10)), "--yes", "--no-report", "-j", "2"]
    user.lab(*command, code=1)
    found = user.json("failures", "tiny")
    assert [len(group["runs"]) for group in found["groups"]] == [3]
    assert any("unlucky" in line for line in found["groups"][0]["log"])
    assert found["commands"][0].endswith("--retry-failed")
    assert "nothing to start" in user.lab(*command, code=1).stderr
    assert sum(user.attempts().values()) == 10
    done = {path: path.stat().st_mtime_ns for path in user.home.glob("runs/*/DONE.json")}
    user.lab(*command, "--retry-failed", code=1)
    failed = set(found["groups"][0]["runs"])
    assert {run for run, n in user.attempts().items() if n == 2} == failed
    assert done == {path: path.stat().st_mtime_ns for path in done}


def test_a_cancel_also_stops_what_is_tried_again_and_has_not_begun(
    user: User, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    with_code(tmp_path, user, f"if not __import__('pathlib').Path({str(mended)!r}).exists():\n    raise ValueError")
    command = ["sweep", str(make_sweep(seeds=3, steps=200_000, save_every=100)), "--yes", "--no-report", "-j", "1"]
    user.lab(*command, code=1)
    assert user.states("tiny") == ["FAILED"] * 3
    mended.touch()
    user.lab(*command, "--retry-failed", "--no-wait")
    wait_until(user.checkpoints, "a checkpoint")
    assert "asked 3 runs" in user.lab("cancel", "tiny").stdout
    wait_until(lambda: not user.worker_pids(), "the worker to leave")
    assert sorted(user.states("tiny")) == ["CANCELLED", "FAILED", "FAILED"]
    assert sorted(user.attempts().values()) == [1, 1, 2]
    user.lab(*command, "--retry-failed", "--no-wait")
    wait_until(lambda: sorted(user.attempts().values()) == [1, 1, 3], "the same run to go on")
    run = next(run for run, n in user.attempts().items() if n == 1)
    assert "asked 1 run to" in user.lab("cancel", run).stdout
    user.lab("cancel", "tiny")
    wait_until(lambda: not user.worker_pids(), "the worker to leave")
    assert sorted(user.attempts().values()) == [1, 1, 3]


def test_a_broken_environment_is_one_clear_failure_and_no_storm(
    user: User, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    """The worker's python finds no torch: nothing is claimed, nothing is tried twice, and the words are there."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import sys, os, sweeps.launch_local as local, pathlib\n"
        "true = local._start\n"
        "def _start(home, plan, call, snapshot, gpu):\n"
        f"    return true(home, plan, call, f'{hidden}:{{snapshot}}', gpu)\n"
        "local._start = _start\nimport cli\ncli.main()\n"
    )
    command = [sys.executable, str(starter), "sweep", str(make_sweep(seeds=4)), "--yes", "--no-report", "-j", "2"]
    environment = user.environment | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "2 workers ended before they took a run" in done.stderr
    assert "(env)" in done.stderr
    assert "No module named 'torch'" in done.stderr
    assert set(user.states("tiny")) == {"PLANNED"}
    user.lab("sweep", str(make_sweep(seeds=4)), "--yes", "--no-report", "-j", "2")
    assert user.states("tiny") == ["DONE"] * 4


def test_four_runs_share_one_device_and_one_of_them_needs_too_much(
    user: User, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    """Under a limit of its own the second run takes memory until there is none; its neighbours end as ever."""
    greedy = (
        "if config.seed == 1:\n    import resource\n    limit = 4 << 30\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n    taken = []\n"
        "    while True:\n        taken.append(bytearray(64 << 20))"
    )
    with_code(tmp_path, user, greedy)
    user.environment["CUDA_VISIBLE_DEVICES"] = "0"
    command = ["sweep", str(make_sweep(seeds=4, steps=300)), "--yes", "--no-report", "-j", "8", "--runs-per-gpu", "4"]
    launcher = user.start(*command)
    most = 0
    while launcher.poll() is None:
        open_attempts = [a for a in user.home.glob("runs/*/attempts/[0-9]*") if not (a / "exit.json").exists()]
        most = max(most, len(open_attempts))
        time.sleep(0.05)
    assert launcher.returncode == 1
    rows = {run["seed"]: (run["state"], run["kind"]) for run in user.json("status", "tiny")["runs"]}
    assert rows == {0: ("DONE", None), 1: ("FAILED", "oom"), 2: ("DONE", None), 3: ("DONE", None)}
    assert most <= 4
    assert set(user.attempts().values()) == {1}
    assert len(list(user.home.glob("runs/*/attempts/0001/log.txt"))) == 4


def test_devices_are_shared_evenly_and_never_by_more_than_asked(user: User, make_sweep: MakeSweep) -> None:
    user.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    path = make_sweep(seeds=6, steps=2_000_000)
    user.lab("sweep", str(path), "--yes", "--runs-per-gpu", "2", "--no-wait")
    wait_until(lambda: len(list(user.home.glob("sweeps/*/*/workers/*.json"))) == 4, "four workers")
    seen: dict[str, int] = defaultdict(int)
    for registered in user.home.glob("sweeps/*/*/workers/*.json"):
        pid = json.loads(registered.read_text())["pid"]
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        seen[next(v.decode() for v in variables if v.startswith(b"CUDA_VISIBLE_DEVICES="))] += 1
    assert seen == {"CUDA_VISIBLE_DEVICES=0": 2, "CUDA_VISIBLE_DEVICES=1": 2}


def test_fifty_launches_in_one_second_start_each_run_once(user: User, make_sweep: MakeSweep) -> None:
    path = make_sweep(seeds=4)
    user.lab("sweep", str(path), "--yes", "--no-report", "-j", "1")  # the data are prepared once
    other = make_sweep("again", seeds=5, steps=5)
    script = (
        "import sys, threading, os\nfrom sweeps import commands\nfrom results.home import Home\n"
        "from sweeps.launch import launch\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "home = Home()\nplanned, options = commands.plan_sweep(commands.SweepRequest(sys.argv[1], jobs=2), home)\n"
        "with ThreadPoolExecutor(50) as pool:\n"
        "    found = list(pool.map(lambda _: launch(planned, home, options), range(50)))\n"
        "print(sum(len(one.processes) for one in found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(other)], env=user.environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    wait_until(lambda: user.states("again") == ["DONE"] * 5, "all of them", 120)
    assert set(user.attempts().values()) == {1}
    assert len(list(user.home.glob("sweeps/again/*/calls/*.json"))) == 50


def test_a_file_system_without_links_and_locks(user: User, make_sweep: MakeSweep, tmp_path: Path) -> None:
    """Every flock, fcntl lock and link fails as on some network file systems."""
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    source = tmp_path / "nolocks.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <errno.h>\n#include <fcntl.h>\n#include <stdarg.h>\n#include <dlfcn.h>\n"
        "int flock(int f, int o) { errno = ENOLCK; return -1; }\n"
        "int link(const char *a, const char *b) { errno = EOPNOTSUPP; return -1; }\n"
        "int linkat(int a, const char *b, int c, const char *d, int e) { errno = ENOSYS; return -1; }\n"
        "static int lock(int c) { return c == F_SETLK || c == F_SETLKW || c == F_OFD_SETLK; }\n"
        "int fcntl64(int f, int c, ...) { va_list v; va_start(v, c); void *a = va_arg(v, void *); va_end(v);\n"
        "  if (lock(c)) { errno = ENOLCK; return -1; }\n"
        '  return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64"))(f, c, a); }\n'
        "int fcntl(int f, int c, ...) { va_list v; va_start(v, c); void *a = va_arg(v, void *); va_end(v);\n"
        "  if (lock(c)) { errno = ENOLCK; return -1; }\n"
        '  return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl"))(f, c, a); }\n'
    )
    library = tmp_path / "nolocks.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    user.environment["LD_PRELOAD"] = str(library)
    check = "import fcntl, os; fcntl.flock(os.open('.', os.O_RDONLY), fcntl.LOCK_SH)"
    refused = subprocess.run([sys.executable, "-c", check], env=user.environment, capture_output=True, text=True)
    assert "No locks available" in refused.stderr
    user.lab("sweep", str(make_sweep(seeds=2)), "--yes", "--no-report", "-j", "2")
    assert len(list(user.home.glob("runs/*/DONE.json"))) == 2
    # DuckDB locks its own file; where that cannot be, commands that read say so, or do without.
    for command in (["ingest"], ["sql", "SELECT 1"], ["report", "tiny"]):
        done = user.lab(*command, code=None)
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or "lock" in done.stderr.lower(), (command, done.stderr)


def volley(pids: list[int], dice: random.Random) -> int:
    """Signals to them, about a hundred each if they live so long; how many met a process."""
    sent = 0
    for _ in range(100 * len(pids)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(pids), dice.choice([signal.SIGUSR2, signal.SIGTERM]))
            sent += 1
    return sent


def test_a_thousand_signals_leave_a_loadable_checkpoint(user: User, make_sweep: MakeSweep) -> None:
    """USR2 and TERM by the hundred to worker and child, every other time while a checkpoint is being written.

    Each time one save, an end within 10 s, and every checkpoint can be loaded.
    """
    dice, sent, during_saves = random.Random(28), list[int](), 0
    command = ["sweep", str(make_sweep(steps=2_000_000, save_every=50)), "--yes", "-j", "1", "--no-wait"]
    for attempt in range(1, 5):
        before = user.newest_step()
        user.lab(*command)
        wait_until(lambda: user.newest_step() > before, "a new checkpoint", 180)  # noqa: B023
        run = RunFolder(next((user.home / "runs").iterdir()))
        pids, saving = user.worker_pids(), run.path / "checkpoints"
        if attempt % 2:
            wait_until(lambda: list(saving.glob(f".{attempt:04d}.*")), "a save", 60, every=0)  # noqa: B023
        else:
            time.sleep(dice.uniform(0, 0.2))
        began, sent_now = time.monotonic(), 0
        during_saves += bool(list(saving.glob(f".{attempt:04d}.*")))
        while user.worker_pids() and time.monotonic() - began < 10:
            sent_now += volley(pids, dice)
        assert not user.worker_pids(), "it hangs"
        sent.append(sent_now)
        found = json.loads((run.path / f"attempts/{attempt:04d}/exit.json").read_text())
        assert found["reason"] in ("preempted", "time_limit") and found["step"] == run.checkpoints()[-1]
        assert all(checkpoints.verifies(run.path / "checkpoints", step) for step in run.checkpoints())
        loaded = run.latest_checkpoint()
        assert loaded is not None and loaded[0] == found["step"] > before
    assert during_saves, "at least one volley hit a save"
    assert min(sent) >= 100 and sum(sent) >= 1000, sent
    assert user.states("tiny") == ["PREEMPTED"]
    assert user.json("sql", CLASHES) == []


def test_an_installation_is_examined(user: User, tmp_path: Path) -> None:
    found = {finding["check"]: finding for finding in user.json("doctor")["checks"]}
    assert {"python", "torch", "devices", "home", "rename", "claim", "fsync", "space", "clock"} <= set(found)
    assert {finding["level"] for finding in found.values()} <= {"ok", "warn"}
    (tmp_path / "file").write_text("")
    told = user.lab("doctor", "--home", str(tmp_path / "file" / "home"), code=1)
    assert [line.split()[:2] for line in told.stdout.splitlines() if line.startswith("fail")] == [["fail", "write"]]
    assert "LAB_HOME" in told.stdout
    assert "Traceback" not in told.stderr + told.stdout


def test_status_can_stay_open(user: User, make_sweep: MakeSweep) -> None:
    user.lab("sweep", str(make_sweep(seeds=2, steps=4000)), "--yes", "-j", "1", "--no-wait")
    told = user.lab("status", "tiny", "--watch")
    assert told.stdout.splitlines()[-1].startswith("2 of 2 done")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_eight_runs_compile_at_once_and_share_what_they_compiled(
    user: User, make_sweep: MakeSweep, tmp_path: Path
) -> None:
    """All begin with an empty cache in one home folder and meet there; a ninth finds everything."""
    user.environment |= {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / ".cache" / "compiled")}
    compiled = ["--yes", "--no-report", "--set", "train.compile=true"]
    user.lab("sweep", str(make_sweep(seeds=8)), *compiled, "-j", "8", timeout=900)
    assert user.states("tiny") == ["DONE"] * 8
    libraries = sorted((tmp_path / ".cache" / "compiled").rglob("*.so"))
    assert libraries
    user.lab("sweep", str(make_sweep(seeds=9)), *compiled, "-j", "1", timeout=300)
    assert sorted((tmp_path / ".cache" / "compiled").rglob("*.so")) == libraries
