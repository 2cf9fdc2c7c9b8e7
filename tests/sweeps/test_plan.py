"""Plans: every run resolved and costed before anything starts, and stored without surprises."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lmcore import count
from lmcore.config import read_config
from lmcore.model import LM
from results import planned as planned_runs
from results.home import Home
from sweeps.load import known, load
from sweeps.plan import Plan, plan
from sweeps.spec import Match, Sweep, SweepError
from sweeps.stored import all_plans, find_plan


def planned(sweep_file: Path, tmp_path: Path, scale: str | None = None, seeds: int | None = None, **sets: Any) -> Plan:
    home = Home(tmp_path / "home")
    home.ensure()
    return plan(load(str(sweep_file)), home, scale, {k.replace("__", "."): v for k, v in sets.items()}, seeds)


def test_arms_times_seeds_in_an_order_that_finishes_whole_seeds_first(sweep_file: Path, tmp_path: Path) -> None:
    found = planned(sweep_file, tmp_path)
    assert [(r.arm, r.config.seed) for r in found.runs] == [("relu", 0), ("swiglu", 0), ("relu", 1), ("swiglu", 1)]
    assert len({r.run_id for r in found.runs}) == 4
    assert len({r.config.group_id for r in found.runs}) == 2
    assert len(planned(sweep_file, tmp_path, seeds=5).runs) == 10
    assert {r.config.train.steps for r in planned(sweep_file, tmp_path, "long").runs} == {400_000}
    assert len(planned(sweep_file, tmp_path, "long").runs) == 2


def test_vocabulary_and_fingerprint_come_from_the_data(sweep_file: Path, tmp_path: Path) -> None:
    run = planned(sweep_file, tmp_path).runs[0]
    assert run.config.model.vocab == 256
    assert run.config.data.fingerprint == run.data.fingerprint != ""
    char = planned(sweep_file, tmp_path, data__tokenizer="char").runs[0]
    assert char.config.model.vocab == char.data.vocab < 40
    with pytest.raises(SweepError, match="below the tokenizer's 256"):
        planned(sweep_file, tmp_path, model__vocab=10)
    assert planned(sweep_file, tmp_path, model__vocab=300).runs[0].config.model.vocab == 300


def test_extending_seeds_keeps_the_runs_there_are(sweep_file: Path, tmp_path: Path) -> None:
    two, three = (planned(sweep_file, tmp_path, seeds=n) for n in (2, 3))
    assert {r.run_id for r in two.runs} < {r.run_id for r in three.runs}
    assert two.plan_id != three.plan_id


def test_the_plan_is_what_the_models_are(sweep_file: Path, tmp_path: Path) -> None:
    for run in planned(sweep_file, tmp_path).runs:
        with torch.device("meta"):
            model = LM(run.config.model)
        assert run.account.params == sum(p.numel() for p in model.parameters())
        assert run.account.train_flops == run.account.flops_per_token * run.config.tokens
        assert run.match_residual is not None
        assert abs(run.match_residual) <= 0.005


def test_a_stored_plan_is_found_by_every_name_it_has(sweep_file: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for found in (planned(sweep_file, tmp_path), planned(sweep_file, tmp_path, "long")):
        found.write(home)
        for name in (f"{found.sweep}/{found.plan_id}", f"{found.sweep}/{found.plan_id[:6]}"):
            assert find_plan(home, name).folder == found.folder(home)
    assert find_plan(home, f"{found.sweep}@long").folder == found.folder(home)
    for unknown in (f"{found.sweep}/", f"{found.sweep}@never", "other"):
        with pytest.raises(SweepError, match=f"{found.sweep}@long"):
            find_plan(home, unknown)


def test_the_plan_file_says_all_of_it_and_is_written_once(sweep_file: Path, tmp_path: Path) -> None:
    found, home = planned(sweep_file, tmp_path), Home(tmp_path / "home")
    found.write(home)
    path = found.folder(home) / "plan.json"
    before = path.read_bytes()
    found.write(home)
    assert path.read_bytes() == before
    stored = json.loads(before)
    assert [r["run_id"] for r in stored["runs"]] == [r.run_id for r in found.runs]
    assert stored["totals"]["runs"] == 4
    assert stored["totals"]["tokens"] == 4 * 30 * 4 * 16
    assert list(home.runs.iterdir()) == [], "a run has no folder before it begins"
    spec = planned_runs.specs(found.folder(home))[found.runs[1].run_id]
    assert read_config(spec).run_id == found.runs[1].run_id
    assert spec["account"]["params"] == count.params(found.runs[1].config.model)
    assert str(tmp_path) not in json.dumps(spec)


def test_where_the_text_lies_does_not_matter(sweep_file: Path, text_file: Path, tmp_path: Path) -> None:
    before = planned(sweep_file, tmp_path)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    text_file.rename(moved / text_file.name)
    after = planned(sweep_file, tmp_path, data__path=str(moved / text_file.name))
    assert [r.run_id for r in before.runs] == [r.run_id for r in after.runs]


def test_a_field_that_is_new_changes_nothing_and_a_changed_default_is_refused(sweep_file: Path, tmp_path: Path) -> None:
    found, home = planned(sweep_file, tmp_path), Home(tmp_path / "home")
    found.write(home)
    specs = planned_runs.specs(found.folder(home))
    spec = specs[found.runs[0].run_id]
    del spec["config"]["train"]["eps"]
    planned_runs.write(found.folder(home), specs.values())
    found.write(home)
    spec["config"]["train"]["eps"] = 1e-6
    home.run(found.runs[0].run_id).create(spec)
    with pytest.raises(SweepError, match=r"a default has changed.*train\.eps was 1e-06, is 1e-08"):
        found.write(home)
    home.run(found.runs[0].run_id).path.rename(tmp_path / "away")
    found.write(home)
    planned_runs.write(found.folder(home), specs.values())
    with pytest.raises(SweepError, match="a default has changed"):
        found.write(home)


def test_a_torn_spec_or_list_of_specs_is_mended_by_planning_again(sweep_file: Path, tmp_path: Path) -> None:
    found, home = planned(sweep_file, tmp_path), Home(tmp_path / "home")
    found.write(home)
    whole = (found.folder(home) / "specs.jsonl").read_bytes()
    run = home.run(found.runs[0].run_id)
    run.create(found.runs[0].spec())
    between_lines = whole.index(b"\n") + 1
    for size in (0, between_lines, len(whole) - 20):
        (found.folder(home) / "specs.jsonl").write_bytes(whole[:size])
        (run.path / "spec.json").write_bytes(b"")
        found.write(home)
        assert (found.folder(home) / "specs.jsonl").read_bytes() == whole
        assert read_config(run.spec()).run_id == run.run_id


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"model__context": 100_000}, "too few for one sequence"),
        ({"model__ffn": "gelu"}, "this is what the arms vary"),
        ({"model__n_head": 3}, "not divisible by n_head"),
        ({"data__path": "/nonexistent/file"}, "cannot read"),
    ],
)
def test_what_cannot_be_planned_is_refused(sets: dict[str, Any], words: str, sweep_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=words):
        planned(sweep_file, tmp_path, **sets)


def test_an_arm_that_cannot_be_matched_is_refused_by_name(sweep_file: Path, tmp_path: Path) -> None:
    sweep_file.write_text(sweep_file.read_text().replace("Match()", "Match(tolerance=1e-9)"))
    with pytest.raises(SweepError, match="arm 'swiglu' cannot be matched to 'relu'"):
        planned(sweep_file, tmp_path, model__d_ff=40)


def test_unknown_scale_lists_the_scales(sweep_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="short, medium, long"):
        planned(sweep_file, tmp_path, "huge")


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"arms": {}}, "at least one arm"),
        ({"arms": {"a": {}}, "baseline": "b"}, "baseline 'b'"),
        ({"arms": {"a": {}}, "match": Match()}, "needs a baseline"),
        ({"arms": {"a": {"seed": 3}}}, "sets seed"),
        ({"arms": {"a": {}}, "scales": {"s": {"seeds": 0}}}, "at least 1"),
        ({"arms": {"a": {}}, "scales": {"s": {"seeds": "two"}}}, "whole number"),
        ({"arms": {"a": {}}, "default_scale": "x"}, "default_scale"),
    ],
)
def test_a_sweep_is_checked_when_it_is_made(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sweep(question="?", **keywords)


def test_arms_that_are_the_same_run_are_refused(tmp_path: Path, text_file: Path) -> None:
    path = tmp_path / "twins.py"
    path.write_text(
        "from sweeps.spec import Sweep\nfrom lmcore.config import RunConfig, replace\n"
        f"def sweep(): return Sweep('?', {{'a': {{}}, 'b': {{'train.lr': 1e-3}}}}, "
        f"base=replace(RunConfig(), {{'data.path': {str(text_file)!r}}}))\n"
    )
    with pytest.raises(SweepError, match="'a' and 'b' are the same"):
        planned(path, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'?', {'a': {}}, seeds=0", "seeds"),
        ("'?', ['a', 'b']", "arms"),
        ("'?', {'a': None}", "arms"),
        ("'?', {1: {}}", "arms"),
        ("'?', {'': {}}", "arms"),
        ("'?', {'two\\nlines': {}}", "arms"),
        ("'?', {'a': {}}, base=None", "base"),
        ("'?', {'a': {}}, baseline='a', match=Match(by='foo')", "by"),
        ("'?', {'a': {}}, baseline='a', match=Match(multiple=0)", "multiple"),
        ("'?', {'a': {}}, sedes=3", "sedes"),
    ],
)
def test_wrong_types_in_a_sweep_file_are_named(arguments: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "typed.py"
    path.write_text(f"from sweeps.spec import Match, Sweep\ndef sweep():\n    return Sweep({arguments})\n")
    with pytest.raises(SweepError, match=words) as caught:
        load(str(path))
    assert str(path) in str(caught.value)


def test_what_a_sweep_file_prints_stays_off_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "noisy.py"
    path.write_text("from sweeps.spec import Sweep\nprint('noise')\ndef sweep(): return Sweep('?', {'a': {}})\n")
    load(str(path))
    assert capsys.readouterr().out == ""


def test_a_damaged_plan_file_is_written_again(sweep_file: Path, tmp_path: Path) -> None:
    found, home = planned(sweep_file, tmp_path), Home(tmp_path / "home")
    found.write(home)
    path = found.folder(home) / "plan.json"
    for damage in ("", "{", "{}", "[]", '{"runs": []}'):
        path.write_text(damage)
        assert all_plans(home) == []
        found.write(home)
        assert json.loads(path.read_text())["plan_id"] == found.plan_id


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("import sys; sys.exit(3)", "SystemExit"),
        ("x = 1", "define a function"),
        ("def sweep(): return 3", "must return"),
        ("def sweep():\n    return 1 / 0", "line 2: ZeroDivisionError"),
        ("import nonsense_module", "ModuleNotFoundError"),
        ("def sweep(:", "SyntaxError"),
    ],
)
def test_a_broken_sweep_file_is_told_in_one_line(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(content)
    with pytest.raises(SweepError, match=words):
        load(str(path))


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(SweepError, match="did you mean 'ffn_ablation'"):
        load("ffn_ablatoin")
    with pytest.raises(SweepError, match="no sweep file"):
        load("./nowhere.py")


@pytest.mark.parametrize("name", known())
def test_every_experiment_can_be_planned_at_every_scale(name: str, tmp_path: Path) -> None:
    """Planned parameters equal the instantiated model's, arms match, and every folder has its README."""
    loaded, home = load(name), Home(tmp_path)
    home.ensure()
    assert (loaded.path.parent / "README.md").read_text().startswith(f"# {loaded.sweep.question}")
    for scale in loaded.sweep.scales:
        if scale == "cluster":
            continue  # the same code with larger numbers; its BPE takes seconds to learn
        for run in plan(loaded, home, scale, {}, seeds=1).runs:
            with torch.device("meta"):
                model = LM(run.config.model)
            assert run.account.params == sum(p.numel() for p in model.parameters())
            assert abs(run.match_residual or 0) <= 0.005
