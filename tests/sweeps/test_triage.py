"""Which failures count as the same, and when a host is to blame."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.files import write_json
from results.home import Home
from results.record import RunFolder
from results.state import State, run_state
from sweeps.hosts import BadHost, Watch, bad_hosts, host_of
from sweeps.launch import own_command
from sweeps.slurm import Ending
from sweeps.stored import StoredPlan, code_of
from sweeps.triage import _groups, newest_command, shape
from tests.results.helpers import new_run, started


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: step 17 of 300", "ValueError: step 4 of 1,200"),
        ("OSError: /a/b/c.bin is short", "OSError: /home/me/x.bin is short"),
        ("RuntimeError: at 0x7f00aa", "RuntimeError: at 0x123"),
        ("run 2f6ab0c1d9e8 failed", "run 00aa11bb22cc failed"),
    ],
)
def test_messages_that_differ_in_numbers_names_and_places_are_one(one: str, other: str) -> None:
    assert shape(one) == shape(other)


def test_messages_that_differ_in_words_are_two() -> None:
    assert shape("ValueError: no data") != shape("ValueError: no model")
    assert shape("ValueError: no data") != shape("TypeError: no data")


@pytest.mark.parametrize("given", [["--home", "old place"], ["--home=old place"]])
def test_the_command_that_goes_on_names_the_home_where_it_is_now(home: Home, given: list[str]) -> None:
    plan = StoredPlan(home.sweeps / "s" / "p", {"sweep": "s"}, "")
    assert newest_command(plan) == f"lab sweep s --home {home.path}"
    (plan.folder / "calls").mkdir(parents=True)
    write_json(plan.folder / "calls" / "1.json", {"command": ["lab", "sweep", "s.py", *given, "--retry-failed"]})
    assert newest_command(plan) == " ".join(["lab", "sweep", "s.py", *given]).replace("old place", str(home.path))


def test_the_command_that_goes_on_works_from_any_folder(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wide.py", "text.txt", "mine/sweep.py", "here/laptop/notes"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "linked.py").symlink_to("wide.py")
    monkeypatch.chdir(tmp_path / "here")
    options = [
        "--scale",
        "laptop",
        "--set",
        "data.path=../text.txt",
        "--set",
        "train.steps=3",
        "--slurm",
        "setup=a/b.py",
    ]
    for given, wanted in {
        "../wide.py": "wide.py", "../linked.py": "linked.py", "../mine": "mine", "../mine/sweep.py": "mine/sweep.py",
    }.items():  # fmt: skip
        monkeypatch.setattr("sys.argv", ["lab", "sweep", given, *options])
        words = ["lab", "sweep", str(tmp_path / wanted), *options]
        assert own_command() == [w.replace("../text.txt", str(tmp_path / "text.txt")) for w in words]
    monkeypatch.setattr("sys.argv", ["lab", "sweep", "ffn_ablation", "gone.py"])
    assert own_command() == ["lab", "sweep", "ffn_ablation", "gone.py"]


def test_the_code_of_runs_is_that_of_their_newest_attempts(home: Home) -> None:
    for number, code in enumerate(["new", "old", "new"]):
        started(new_run(home, number), code_hash=code)
    started(home.run(home.run_ids()[0]), resume_step=0, code_hash="newer")
    (started(new_run(home, 3)).path / "claim.json").write_text('{"half": ')
    new_run(home, 4)
    states = [run_state(home.run(run_id)) for run_id in home.run_ids()]
    assert code_of(states) == {"newer": 1, "old": 1, "new": 1}
    assert code_of(states[1:] + states[2:3]) == {"new": 2, "old": 1}


def test_a_worker_that_had_no_room_for_words_is_told_by_its_log(home: Home) -> None:
    gone = {"pid": 2**22 + 1, "pid_start": 1}
    for number, line in ((1, "results.files.StorageFull: [Errno 28] no space left"), (2, "step 5"), (3, "step 6")):
        attempt = started(new_run(home, number), **gone)
        (attempt.path / "log.txt").write_text(line + "\n")
    states = [run_state(home.run(run_id)) for run_id in home.run_ids()]
    assert {state.state for state in states} == {State.LOST}
    groups = {group.kind: group for group in _groups(home, states, "")}
    assert groups["disk"].remedy.startswith("make room") and len(groups["disk"].runs) == 1
    assert (groups["lost"].error, len(groups["lost"].runs)) == ("2 workers are gone", 2)


def test_held_runs_keep_the_schedulers_words(home: Home) -> None:
    states = [replace(run_state(new_run(home, n)), state=State.HELD, detail="2 jobs are held") for n in (1, 2)]
    (group,) = _groups(home, states, "scontrol release 7")
    assert (group.error, group.remedy, len(group.runs)) == ("2 jobs are held", "scontrol release 7", 2)


def failed_at(run: RunFolder, host: str, kind: str = "code") -> None:
    started(run, host=host, pid=1).finish("failed", kind=kind, error="RuntimeError: no device")


def worked_at(run: RunFolder, host: str) -> None:
    started(run, host=host, pid=1).finish("preempted")


def found(home: Home, runs: list[RunFolder], endings: list[Ending] | None = None) -> dict[str, BadHost]:
    return bad_hosts(home, [run_state(run) for run in runs], endings or [])


def test_three_quick_failures_blame_a_host_only_where_another_works(home: Home) -> None:
    runs = [new_run(home, seed) for seed in range(6)]
    for run in runs[:3]:
        failed_at(run, "n7")
    worked_at(runs[3], "n1")
    assert list(found(home, runs)) == ["n7"]
    worked_at(runs[4], "n7")
    assert found(home, runs) == {}, "a success clears it"


def test_a_claim_that_cannot_be_read_names_no_host(home: Home) -> None:
    run = new_run(home)
    (started(run).path / "claim.json").write_text("{")
    assert host_of(run.attempts()[0]) == ""


def test_two_failures_or_full_memory_blame_nobody(home: Home) -> None:
    runs = [new_run(home, seed) for seed in range(6)]
    worked_at(runs[5], "n1")
    for run in runs[:2]:
        failed_at(run, "n7")
    assert found(home, runs) == {}
    failed_at(runs[2], "n7", kind="oom")
    assert found(home, runs) == {}


def test_where_all_hosts_fail_it_is_not_the_hosts(home: Home) -> None:
    runs = [new_run(home, seed) for seed in range(6)]
    for run, host in zip(runs, ["n1"] * 3 + ["n2"] * 3, strict=True):
        failed_at(run, host)
    assert found(home, runs) == {}


def test_jobs_that_die_before_they_claim_anything_count_too(home: Home) -> None:
    runs = [new_run(home, 0)]
    dead = [Ending(f"7_{i}", "FAILED", "n7", 1.0) for i in range(3)]
    assert found(home, runs, dead)["n7"].failures == 3
    slow = [Ending(f"7_{i}", "FAILED", "n7", 600.0) for i in range(3)]
    assert found(home, runs, slow) == {}


@pytest.mark.parametrize(("others", "verdict"), [(True, "bad"), (False, "fine"), (None, "wait")])
def test_a_worker_judges_its_host_by_what_others_do(others: Any, verdict: str) -> None:
    watch = Watch("n7", lambda: others)
    for _ in range(2):
        watch.saw(failed=True)
    assert watch.verdict() == "fine"
    watch.saw(failed=True)
    assert watch.verdict() == verdict
    watch.saw(failed=False)
    assert watch.verdict() == "fine"
