"""Plans that earlier calls stored, where files of them are damaged: ignored or named, and no other is harmed."""

from pathlib import Path
from typing import Any

import pytest

from results.files import write_json
from results.home import Home
from sweeps import launch_local, slurm
from sweeps.load import load
from sweeps.plan import Plan, plan
from sweeps.spec import SweepError
from sweeps.stored import StoredPlan, calls, find_plan, grants, run_states
from sweeps.triage import newest_command


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.ensure()
    return home


@pytest.fixture
def stored(home: Home, sweep_file: Path) -> tuple[Plan, Path]:
    found = plan(load(str(sweep_file)), home, None, {}, None)
    found.write(home)
    return found, found.folder(home)


@pytest.mark.parametrize(
    "call",
    [
        {"called_at": 5},
        {"called_at": "z", "command": 5},
        {"called_at": "z", "command": [1, 2]},
        {"called_at": "z", "granted": [1]},
        {"called_at": "z", "granted": {"x": "1"}},
        {"called_at": "z", "avoided": [{"x": 1}]},
    ],
)
def test_a_damaged_call_is_as_if_it_had_not_been(home: Home, stored: tuple[Plan, Path], call: dict[str, Any]) -> None:
    found, folder = stored
    (folder / "calls").mkdir()
    good = {"called_at": "2026", "command": ["lab", "sweep", "this"], "granted": {"r": 1}}
    write_json(folder / "calls" / "good.json", good)
    write_json(folder / "calls" / "bad.json", call)
    (folder / "calls" / "folder.json").mkdir()
    assert calls(folder) == [good]
    newest = find_plan(home, found.sweep)
    assert newest.called_at == "2026"
    assert newest_command(newest).startswith("lab sweep this")
    assert grants(folder) == grants(folder, "2026") == {"r": 1}


def test_damaged_workers_and_submissions_are_passed_over(stored: tuple[Plan, Path]) -> None:
    _, folder = stored
    damaged: dict[str, list[dict[str, Any]]] = {
        "workers": [{"pid": "x"}, {"pid": 10**30}, {"gpu": [1]}],
        "submissions": [{"uuid": 5}, {"uuid": "lab-1", "job_id": "7"}, {"uuid": "lab-1", "tasks": "many"}],
    }
    for place, contents in damaged.items():
        (folder / place).mkdir()
        (folder / place / "folder.json").mkdir()
        for number, content in enumerate(contents):
            write_json(folder / place / f"{number}.json", content)
    assert launch_local.living(folder) == []
    assert slurm.read_submissions(folder) == []
    assert slurm.queue(folder) == slurm.Queue()


@pytest.mark.parametrize("text", ["{", '{"runs": 5}', '{"sweep": "a", "plan_id": "p", "scale": null, "runs": [1]}'])
def test_who_looks_for_a_damaged_plan_is_told_of_it(home: Home, stored: tuple[Plan, Path], text: str) -> None:
    found = stored[0]
    (home.sweeps / "a" / "p").mkdir(parents=True)
    (home.sweeps / "a" / "p" / "plan.json").write_text(text)
    assert isinstance(find_plan(home, found.sweep), StoredPlan)
    with pytest.raises(SweepError, match=r"cannot be read: .*a/p/plan\.json"):
        find_plan(home, "a")


def test_a_file_in_place_of_a_run_keeps_no_other_from_being_planned(home: Home, stored: tuple[Plan, Path]) -> None:
    found = stored[0]
    first, second, *_ = [run.run_id for run in found.runs]
    (home.runs / first).write_text("x")
    (home.runs / second / "spec.json").mkdir(parents=True)
    found.write(home)
    states = run_states(home, [run.run_id for run in found.runs], slurm.Queue())
    assert [str(state.state) for state in states] == ["UNKNOWN", *["PLANNED"] * (len(states) - 1)]
    assert first in states[0].detail
