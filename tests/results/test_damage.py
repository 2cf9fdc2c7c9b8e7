"""Whatever stands in a file's place harms no other run: it is named, and the state of its run is UNKNOWN at worst."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

import cli
from results import garbage, load, planned, query, views
from results.files import LARGEST_JSON, BadFile, encode_json, read_json, write_json
from results.home import Home
from results.ingest import ingest
from results.process import claim_identity, process_alive
from results.shapes import misfit
from results.state import State, run_state
from tests.results.helpers import eval_row, finished, new_run, run_id, started, train_row

HUGE = "1" + "0" * 400
RUN = "runs/000000000001"
ATTEMPT = f"{RUN}/attempts/0001"

Damage = Callable[[Path], None]


def says(**raw: str) -> Damage:
    """Put raw JSON text in the place of values."""

    def damage(path: Path) -> None:
        content = (read_json(path) or {}) | dict.fromkeys(raw, "@")
        text = json.dumps(content)
        for name, value in raw.items():
            text = text.replace(f'"{name}": "@"', f'"{name}": {value}')
        path.write_text(text)

    return damage


def holds(text: str) -> Damage:
    def damage(path: Path) -> None:
        path.write_text(text)

    return damage


def is_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def is_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def is_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


def is_vast(path: Path) -> None:
    os.truncate(path, LARGEST_JSON + 1)


def dangles(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def ends_in(line: bytes) -> Damage:
    def damage(path: Path) -> None:
        with path.open("ab") as file:
            file.write(line + b"\n")

    return damage


DAMAGE: list[tuple[str, Damage]] = [
    *((f"{RUN}/DONE.json", damage) for damage in (is_folder, is_pipe, is_vast, says(step="true"), says(step=HUGE))),
    (f"{RUN}/DONE.json", says(val_loss=HUGE)),
    (f"{RUN}/DONE.json", says(peak_memory_bytes="Infinity")),
    *((f"{RUN}/spec.json", damage) for damage in (is_folder, is_pipe, says(seed="1e999"), says(data="null"))),
    (f"{RUN}/spec.json", says(data='{"vocab": 1e30}')),
    *((f"{ATTEMPT}/start.json", says(resume_step=step)) for step in (HUGE, "1" + "0" * 30, "-5", "true", "0.5")),
    *((f"{ATTEMPT}/start.json", damage) for damage in (is_folder, is_pipe, says(env='"text"'))),
    *((f"{ATTEMPT}/claim.json", damage) for damage in (is_folder, says(pid="1" + "0" * 30), says(pid="Infinity"))),
    *((f"{ATTEMPT}/exit.json", damage) for damage in (is_folder, is_pipe)),
    *((f"{ATTEMPT}/train.csv", damage) for damage in (is_folder, is_pipe, dangles)),
    (f"{ATTEMPT}/train.csv", ends_in(b"\xc2\xb2,1,1,1,1,1,1,1")),
    (f"{ATTEMPT}/train.csv", ends_in(b"9" * 300 + b",1,1,1,1,1,1,1")),
    (f"{RUN}/attempts", is_file),
    (f"{RUN}/decode.json", holds('{"rows": [{"batch": 1e999}]}')),
    (f"{RUN}/lengths.json", holds('{"context": 64, "rows": [{"scaling": "none", "start": 1e30}]}')),
    ("sweeps/s/p/plan.json", holds('{"runs": 5}')),
    ("sweeps/s/p/plan.json", holds('{"runs": [1]}')),
    ("sweeps/s/p/plan.json", is_folder),
    ("sweeps/s/p/calls/c.json", holds('{"called_at": 5}')),
    ("sweeps/s/p/calls/c.json", holds('{"command": [1, 2]}')),
    ("sweeps/s/p/calls/c.json", is_folder),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_a_damaged_file_is_named_and_the_other_runs_are_as_ever(home: Home, name: str, damage: Damage) -> None:
    for number in range(3):
        finished(home, number)
    (home.sweeps / "s" / "p" / "calls").mkdir(parents=True)
    write_json(home.sweeps / "s" / "p" / "plan.json", {"runs": []})
    damage(home.path / name)
    assert [path for path, _ in ingest(home).bad_files if path != RUN] == [name]
    others = query.rows(home, "SELECT run_id, max(loss) AS loss FROM train GROUP BY run_id ORDER BY run_id")
    assert [row for row in others if row["run_id"] != run_id(1)] == [{"run_id": run_id(n), "loss": 1.0} for n in (0, 2)]
    assert run_state(home.run(run_id(1))).state in (State.DONE, State.UNKNOWN)
    assert garbage.garbage(home, home.run_ids()) == []
    views.progress(home.run(run_id(1)))
    shown = CliRunner().invoke(cli.app, ["show", run_id(1), "--home", str(home.path)])
    assert shown.exception is None or cli._is_expected(cast(Exception, shown.exception)), shown.exception


@pytest.mark.parametrize("name", ["DONE.json", "attempts/0001/claim.json", "attempts/0001/exit.json", "attempts"])
@pytest.mark.parametrize("damage", [is_folder, is_pipe, is_file])
def test_what_decides_and_is_damaged_makes_the_run_unknown(home: Home, name: str, damage: Damage) -> None:
    run = new_run(home)
    started(run)
    path = run.path / name
    if path.is_dir():
        is_file(path)
    elif damage is not is_file:
        damage(path)
    else:
        path.write_text("x")
    found = run_state(run)
    assert found.state is State.UNKNOWN
    assert str(path) in found.detail


def test_a_file_in_place_of_a_run_is_unknown_and_named(home: Home) -> None:
    finished(home, 0)
    (home.path / RUN).write_text("x")
    assert run_state(home.run(run_id(1))).state is State.UNKNOWN
    assert RUN in {path.rpartition("/")[0] for path, _ in ingest(home).bad_files}
    assert query.rows(home, "SELECT run_id FROM runs") == [{"run_id": run_id(0)}]


def test_rows_stay_owned_where_the_claim_is_damaged(home: Home) -> None:
    finished(home, 1)
    says(pid=HUGE)(home.path / ATTEMPT / "claim.json")
    ingest(home)
    assert query.rows(home, "SELECT count(*) AS n FROM train") == [{"n": 5}]


def test_folders_that_are_no_attempts_are_none(home: Home) -> None:
    run = finished(home, 1)
    for name in ("9999999999", "2", "00001", "x"):
        (run.path / "attempts" / name).mkdir()
    (run.path / "DONE.json").unlink()
    assert [info.number for info in run.attempts()] == [1]


def test_odd_claims_rows_and_beats_are_passed_over(home: Home) -> None:
    assert process_alive({**claim_identity(), "pid": 10**30, "pid_start": None}) is None
    run = new_run(home)
    attempt = started(run)
    attempt.train_row(train_row(1))
    attempt.eval_row(eval_row(1))
    ends_in(b"\xc2\xb2,1,1,1,1,1,1,1")(attempt.path / "train.csv")
    ends_in(b"2,val,1," + b"x" * 200_000 + b",1,1")(attempt.path / "eval.csv")
    (attempt.path / "heartbeat").write_text("1 " + "9" * 400 + "\n")
    assert (run_state(run).state, run_state(run).step) == (State.RUNNING, 1)
    assert run.validation_losses() == {1: 1.5}
    run.request_cancel("me")
    is_folder(run.path / "cancel.json")
    assert run.stop_request() == "cancelled"
    run.clear_cancel()
    assert not run.cancel_requested()


def test_a_checkpoint_without_files_is_passed_over(home: Home) -> None:
    attempt = started(new_run(home))
    for step in (10, 20):
        attempt.save_checkpoint(step, {"w": b"x"})
    says(files="{}")(attempt.run.checkpoint_folder(20) / "manifest.json")
    assert attempt.run.latest_checkpoint() == (10, {"w": b"x"})


def test_a_file_is_read_in_pieces_that_are_bounded(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(home, 1, steps=50)
    monkeypatch.setattr(load, "PIECE_BYTES", 300)
    ends_in(b"\0" * 1000)(run.path / "attempts" / "0001" / "train.csv")
    (bad,) = ingest(home).bad_files
    assert bad == (f"{ATTEMPT}/train.csv", "no end of a line in 300 bytes")
    assert query.rows(home, "SELECT count(*) AS n, sum(step) AS sum FROM train") == [{"n": 50, "sum": 1275}]


def test_a_log_is_shown_in_pieces_that_are_bounded(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PIECE_BYTES", 20)
    run = finished(home, 1)
    whole = "müde\n" * 50 + "x" * 50 + "\nend"
    (run.path / "attempts" / "0001" / "log.txt").write_text(whole)
    pieces = list(views.log(home, run.run_id, follow=False))
    assert "".join(pieces) == whole
    assert max(map(len, pieces)) <= 20


def test_a_plan_says_what_is_relied_on(home: Home) -> None:
    run = {"run_id": run_id(0), "arm": "a", "seed": 0, "steps": 1, "train_flops": 1e30}
    plan: dict[str, Any] = {"sweep": "s", "plan_id": "p", "scale": None, "runs": [run]}
    write_json(home.path / "plan.json", plan)
    assert planned.plan(home.path) == plan
    for name, value in (("run_id", "../../etc"), ("seed", "1"), ("steps", 1.5), ("arm", None)):
        write_json(home.path / "plan.json", plan | {"runs": [run, run | {name: value}]})
        with pytest.raises(BadFile, match=re.escape(f"runs[1].{name} is absent or not")):
            planned.plan(home.path)
    (home.path / planned.SPECS).mkdir()
    assert planned.readable_specs(home.path) == {}


def test_half_a_surrogate_pair_is_no_text_and_breaks_no_table(home: Home) -> None:
    run = finished(home, 1)
    spec = run.spec()
    spec["config"]["note"] = spec["group_id"] = "\ud800"
    (run.path / "spec.json").write_text(encode_json(spec))
    os.mkdir(os.fsencode(home.sweeps) + b"/\xff")  # noqa: PTH102
    os.mkdir(os.fsencode(home.sweeps) + b"/\xff/p")  # noqa: PTH102
    with open(os.fsencode(home.sweeps) + b"/\xff/p/plan.json", "w") as file:  # noqa: PTH123
        file.write('{"runs": []}')
    assert ingest(home).bad_files == []
    assert query.rows(home, "SELECT group_id FROM runs") == [{"group_id": "?"}]


def test_the_first_part_that_does_not_fit_is_named() -> None:
    shape = {"a": int, "b?": [{"c": str | None}], "d?": {...: float}}
    assert misfit({"a": 1, "more": 1}, shape) is None
    assert misfit({"a": 1, "b": [{"c": None}], "d": {"x": 1, "y": 2.5}}, shape) is None
    assert misfit({"a": True}, shape) == ".a"
    assert misfit({"a": 1, "b": [{"c": ""}, {}]}, shape) == ".b[1].c"
    assert misfit({"a": 1, "d": {"x": float("inf")}}, shape) == ".d.x"
