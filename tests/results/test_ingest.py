import contextlib
import math
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

import results
from results import cli, query
from results import ingest as ingest_module
from results.files import write_json
from results.home import Home
from results.ingest import content_hash, ingest
from results.lock import Busy
from results.process import claim_identity
from tests.results.helpers import (
    end,
    eval_row,
    fill,
    finished,
    hear,
    new_run,
    python,
    run_id,
    say,
    small_disk,
    spec,
    started,
    telemetry_rows,
    train_row,
    without_fsync,
)


def steps_of(home: Home, number: int) -> list[int | None]:
    found = query.rows(home, "SELECT step FROM train WHERE run_id = ? ORDER BY step", [run_id(number)])
    return [row["step"] for row in found]


def quarantined(home: Home) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in query.rows(home, "SELECT * EXCLUDE folder FROM quarantine ORDER BY ALL")]


def test_what_the_files_say_is_what_the_database_says(home: Home) -> None:
    finished(home, 1, steps=4)
    run = new_run(home, 2)
    attempt = started(run, job="9_1", code_hash="c0de")
    attempt.train_row(train_row(1, loss=3.0))
    attempt.train_row(train_row(2, loss=math.nan))
    attempt.eval_row(eval_row(2, loss=2.5))
    attempt.eval_row(eval_row(2, loss=9.0, split="train"))
    attempt.finish("failed", kind="oom", step=2, error="out of memory")
    attempt.close()
    report = ingest(home)
    assert (report.rows_new, report.runs, report.bad_files) == (4 + 2 + 4, 2, [])
    one, two = query.rows(home, "SELECT * FROM runs ORDER BY run_id")
    assert (one["state"], one["step"], one["train_loss"], one["val_loss"]) == ("DONE", 4, 0.25, 1.5)
    assert (one["train_flops"], one["vocab"], one["steps"], one["tokens"]) == (1e20, 256, 4, 1000)
    assert (two["state"], two["kind"], two["val_loss"], two["train_loss"]) == ("FAILED", "oom", 2.5, None)
    with query.open(home) as con:
        row = con.execute("SELECT train_loss, wall_s FROM runs WHERE run_id = ?", [run.run_id]).fetchone()
    assert row is not None
    assert (math.isnan(row[0]), row[1]) == (True, 0.2), "NaN is kept, not lost"
    (claim,) = query.rows(home, "SELECT * FROM attempts WHERE run_id = ?", [run.run_id])
    assert (claim["job"], claim["code_hash"], claim["error"], claim["resume_step"]) == (
        "9_1",
        "c0de",
        "out of memory",
        0,
    )
    evals = query.rows(home, "SELECT step FROM evals WHERE run_id = ? ORDER BY step", [run_id(1)])
    assert evals == [{"step": 0}, {"step": 4}]
    assert query.rows(home, "SELECT config->>'$.model.d_model' AS d FROM runs LIMIT 1") == [{"d": "64"}]


def test_plans_calls_and_snapshots(home: Home) -> None:
    folder = home.sweeps / "lr" / "p1"
    (folder / "calls").mkdir(parents=True)
    runs: list[dict[str, Any]]
    runs = [{"run_id": run_id(n), "arm": f"arm{n}", "seed": n, "match_residual": 0.01 * n} for n in range(3)]
    runs[1] |= {"params": 10}
    runs[2] |= {"tunes": "arm1", "params": {"lr": 0.1}}
    write_json(folder / "plan.json", {"scale": "tiny", "question": "?", "smallest_effect": 0.1, "runs": runs})
    write_json(folder / "calls" / "b.json", {"called_at": "2026-01-01T00:00:00+00:00", "code_hash": "old"})
    write_json(folder / "calls" / "a.json", {"called_at": "2026-01-02T00:00:00+00:00", "code_hash": "new"})
    write_json(home.snapshots / "x.json", {})
    (home.snapshots / "new").mkdir()
    write_json(home.snapshots / "new" / "SNAPSHOT.json", {"code_hash": "new", "dirty": True, "git_diff": "+1"})
    assert ingest(home).bad_files == []
    (plan,) = query.rows(home, "SELECT * FROM plans")
    assert (plan["sweep"], plan["plan_id"], plan["code_hash"], plan["smallest_effect"]) == ("lr", "p1", "new", 0.1)
    arms = query.rows(home, "SELECT arm FROM plan_runs WHERE sweep = 'lr' ORDER BY ord")
    assert [row["arm"] for row in arms] == ["arm0", "arm1", "arm2"]
    told = query.rows(home, "SELECT params->>'lr' AS lr, params FROM plan_runs ORDER BY ord")
    assert [(row["lr"], row["params"] is None) for row in told] == [(None, True), (None, False), ("0.1", False)]
    (snapshot,) = query.rows(home, "SELECT code_hash, git_sha, dirty, git_diff FROM snapshots")
    assert tuple(snapshot.values()) == ("new", None, True, "+1")


def test_a_record_cut_at_any_byte_loses_that_record_alone(home: Home) -> None:
    finished(home, 0)
    probe = started(new_run(home, 1))
    for step in range(1, 4):
        probe.train_row(train_row(step))
    probe.close()
    text = (probe.path / "train.csv").read_bytes()
    begin = text.rstrip(b"\n").rfind(b"\n") + 1
    cuts = range(begin, len(text))
    for number, cut in enumerate(cuts, start=2):
        with without_fsync():
            attempt = started(new_run(home, number))
        (attempt.path / "train.csv").write_bytes(text[:cut])
        (attempt.path / "eval.csv").write_bytes(b"step,spl")
    ingest(home)
    for number, cut in enumerate(cuts, start=2):
        assert steps_of(home, number) == [1, 2], f"cut at {cut}"
        resumed = started(home.run(run_id(number)), resume_step=2)
        for step in (3, 4):
            resumed.train_row(train_row(step))
        resumed.close()
    report = ingest(home)
    assert report.bad_files == []
    assert report.rows_new == 2 * len(cuts)
    counts = query.rows(
        home, "SELECT run_id, step, count(*) AS n FROM train GROUP BY ALL HAVING n <> 1 OR step IS NULL"
    )
    assert counts == []
    assert all(steps_of(home, number) == [1, 2, 3, 4] for number in range(2, len(cuts) + 2))
    assert steps_of(home, 0) == [1, 2, 3, 4, 5]
    torn = query.rows(home, "SELECT path, byte_offset FROM quarantine WHERE reason = 'torn tail' ORDER BY ALL")
    assert len([row for row in torn if "train" in row["path"]]) == len(cuts) - 1, "cut at the newline leaves no tail"
    assert {row["byte_offset"] for row in torn} == {begin, 0}
    incremental = content_hash(home), quarantined(home)
    ingest(home, rebuild=True)
    assert (content_hash(home), quarantined(home)) == incremental


def test_telemetry_cut_within_a_step_is_owned_by_who_makes_the_step_again(home: Home) -> None:
    run = new_run(home)
    torn = started(run)
    for step in (1, 2, 3):
        torn.telemetry_rows(telemetry_rows(step, value=1.0))
    torn.close()
    path = torn.path / "telemetry.csv"
    path.write_bytes(path.read_bytes()[:-5])  # step 3 has its row of layer 0, and a torn one of layer 1
    ingest(home)
    assert quarantined(home) == [], "it is still running"
    resumed = started(run, resume_step=2)
    for step in (3, 4):
        resumed.telemetry_rows(telemetry_rows(step, value=2.0))
    resumed.close()
    assert ingest(home).rows_new == 4
    torn_tail = path.stat().st_size - len(b"3,activation_rms,1")
    assert [row[1:3] for row in quarantined(home)] == [(torn_tail, "torn tail")]
    found = query.rows(home, "SELECT step, layer, value FROM telemetry ORDER BY ALL")
    wanted = [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    assert [tuple(row.values()) for row in found] == [(step, layer, v) for step, v in wanted for layer in (0, 1)]
    incremental = content_hash(home)
    ingest(home, rebuild=True)
    assert content_hash(home) == incremental


def test_telemetry_of_a_file_that_shrank_is_forgotten_and_its_bad_lines_are_named(home: Home) -> None:
    attempt = started(new_run(home))
    for step in (1, 2):
        attempt.telemetry_rows(telemetry_rows(step))
    attempt.close()
    ingest(home)
    path = attempt.path / "telemetry.csv"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]) + b"2,,0,1.0\n")
    assert ingest(home).bad_files == [(path.relative_to(home.path).as_posix(), "bad line")]
    assert query.rows(home, "SELECT step, layer FROM telemetry ORDER BY ALL") == [
        {"step": 1, "layer": 0},
        {"step": 1, "layer": 1},
    ]


def test_the_tail_of_a_running_attempt_is_neither_a_row_nor_a_fault(home: Home) -> None:
    attempt = started(new_run(home))
    attempt.train_row(train_row(1))
    path = attempt.path / "train.csv"
    line = b"2,20,1200.0,0.2,1.5,0.001,0.5,100.0\n"
    with path.open("ab", buffering=0) as file:
        file.write(line[:9])
        ingest(home)
        assert (steps_of(home, 0), quarantined(home)) == ([1], [])
        file.write(line[9:])
    assert ingest(home).rows_new == 1
    assert steps_of(home, 0) == [1, 2]


def test_files_that_vanish_while_an_ingest_looks_are_no_fault(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = started(new_run(home))
    attempt.train_row(train_row(1))
    for name in (".heartbeat.tmp", "log.txt"):
        (attempt.path / name).touch()
    scandir = os.scandir

    @contextlib.contextmanager
    def behind_whose_back_files_go(folder: Any) -> Iterator[Iterator["os.DirEntry[str]"]]:
        with scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.name in (".heartbeat.tmp", "log.txt"):
                Path(entry.path).unlink(missing_ok=True)
        yield iter(found)

    monkeypatch.setattr(os, "scandir", behind_whose_back_files_go)
    assert ingest(home).bad_files == []
    assert steps_of(home, 0) == [1]


DAMAGE = [b"", b'{"half": ', b"[]", b"\x00\xff", b"{}", b'{"config": 1, "account": 2}', b'{"resume_step": "x"}']


@pytest.mark.parametrize("name", ["spec.json", "DONE.json", "attempts/0001/start.json", "attempts/0001/exit.json"])
@pytest.mark.parametrize("damage", DAMAGE[:4])
def test_one_damaged_file_is_named_and_harms_no_other_run(home: Home, name: str, damage: bytes) -> None:
    for number in range(3):
        finished(home, number)
    path = home.run(run_id(1)).path / name
    path.write_bytes(damage)
    report = ingest(home)
    relative = path.relative_to(home.path).as_posix()
    assert [bad for bad, _ in report.bad_files] == [relative]
    assert relative in {row["path"] for row in query.rows(home, "SELECT path FROM quarantine")}
    others = query.rows(home, "SELECT run_id FROM runs WHERE state = 'DONE' AND run_id <> ?", [run_id(1)])
    assert [row["run_id"] for row in others] == [run_id(0), run_id(2)]
    assert steps_of(home, 0) == steps_of(home, 2) == [1, 2, 3, 4, 5]
    if path.name != "spec.json":
        assert steps_of(home, 1) == [1, 2, 3, 4, 5], "what is whole of a damaged run stays"
    finished_file = {"spec.json": spec(1, steps=5)}.get(name, {"reason": "done", "resume_step": 0, "step": 5})
    write_json(path, finished_file)
    assert ingest(home).bad_files == [], "repaired, it is forgotten"


@pytest.mark.parametrize("damage", DAMAGE[4:6])
def test_json_of_another_shape_is_named_too(home: Home, damage: bytes) -> None:
    finished(home, 0)
    finished(home, 1)
    (home.run(run_id(1)).path / "spec.json").write_bytes(damage)
    (home.sweeps / "s" / "p").mkdir(parents=True)
    (home.sweeps / "s" / "p" / "plan.json").write_bytes(damage)
    assert [path for path, _ in ingest(home).bad_files] == ["runs/000000000001/spec.json", "sweeps/s/p/plan.json"]
    assert query.rows(home, "SELECT run_id FROM runs") == [{"run_id": run_id(0)}]


@pytest.mark.parametrize("damage", [DAMAGE[4], DAMAGE[6]])
def test_a_start_of_another_shape_is_named_and_costs_no_rows(home: Home, damage: bytes) -> None:
    run = new_run(home, 0)
    for resume_step in (0, 2):
        attempt = started(run, resume_step=resume_step)
        for step in range(resume_step + 1, resume_step + 4):
            attempt.train_row(train_row(step))
        attempt.close()
    (attempt.path / "start.json").write_bytes(damage)
    ((path, reason),) = ingest(home).bad_files
    assert path == f"runs/{run.run_id}/attempts/0002/start.json"
    assert "resume_step" in reason
    found = query.rows(home, "SELECT attempt, step FROM train ORDER BY step")
    assert [(row["attempt"], row["step"]) for row in found] == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]


HALF_A_PARQUET = b"PAR1\x15\x04\x15\x20"


@pytest.mark.parametrize("content", [b"", b'{"rows": [{"batch": 1', HALF_A_PARQUET])
def test_torn_files_in_a_run_folder_are_named_if_they_are_ours_and_else_left_alone(home: Home, content: bytes) -> None:
    """Whatever somebody or something drops there; `lab ingest` ends well unless it is asked to be strict."""
    for number in range(4):
        finished(home, number)
    folder = home.run(run_id(1)).path
    for place in ("", "attempts/0001/", "checkpoints/"):
        (folder / place).mkdir(exist_ok=True)
        for name in ("part-0.parquet", "train.parquet", "notes.json", "0001.json"):
            (folder / place / name).write_bytes(content)
    strictly = ["ingest", "--home", str(home.path), "--strict"]
    told = CliRunner().invoke(cli.app, strictly)
    assert (told.exit_code, told.stderr) == (0, ""), "files of others are no fault of ours"
    (folder / "decode.json").write_bytes(content)
    told = CliRunner().invoke(cli.app, strictly[:-1])
    assert told.exit_code == 0
    assert f"runs/{run_id(1)}/decode.json" in told.stderr and "parquet" not in told.stderr
    assert CliRunner().invoke(cli.app, strictly).exit_code == 1
    states = query.rows(home, "SELECT state, count(*) AS n FROM runs GROUP BY ALL")
    assert states == [{"state": "DONE", "n": 4}]
    assert all(steps_of(home, number) == [1, 2, 3, 4, 5] for number in range(4))
    (folder / "decode.json").unlink()
    assert CliRunner().invoke(cli.app, strictly).exit_code == 0, "gone, it is forgotten"


BAD_LINES = [
    b"",
    b"3,30,1.0,0.1,1.5,0.001,0.5",
    b"3,30,1.0,0.1,1.5,0.001,0.5,100.0,7",
    b"3,30,1.0,0.1,oops,0.001,0.5,100.0",
    b"3.5,30,1.0,0.1,1.5,0.001,0.5,100.0",
    b"3,30,1.0,0.1,,0.001,0.5,100.0",
    b'"3",30,1.0,0.1,1.5,0.001,0.5,100.0',
    b"\xff\xfe\x00,30,1.0,0.1,1.5,0.001,0.5,100.0",
    b"3,30,1.0,0.1,1.5,0.001,0.5,1002,20,1200.0,0.2,1.5,0.001,0.5,100.0",
]


def test_lines_that_are_no_rows_are_set_aside_with_their_place(home: Home) -> None:
    expected = []
    for number, line in enumerate(BAD_LINES):
        attempt = started(new_run(home, number))
        attempt.train_row(train_row(1))
        path = attempt.path / "train.csv"
        expected.append((path.relative_to(home.path).as_posix(), path.stat().st_size, "bad line"))
        with path.open("ab") as file:
            file.write(line + b"\n")
        attempt.train_row(train_row(2))
        attempt.close()
    assert {path for path, _ in ingest(home).bad_files} == {path for path, _, _ in expected}
    assert [row[:3] for row in quarantined(home)] == expected
    assert all(steps_of(home, number) == [1, 2] for number in range(len(BAD_LINES)))
    ingest(home)
    assert [row[:3] for row in quarantined(home)] == expected, "an ingest of nothing new forgets no bad line"


def test_a_file_with_another_header_is_refused_whole(home: Home) -> None:
    attempt = started(new_run(home))
    (attempt.path / "train.csv").write_text("step,loss\n1,2.0\n")
    assert ingest(home).bad_files == [("runs/000000000000/attempts/0001/train.csv", "unexpected header")]
    assert steps_of(home, 0) == []


def test_rows_of_files_that_shrank_or_vanished_are_forgotten(home: Home) -> None:
    for number in range(3):
        finished(home, number)
    ingest(home)
    shrunk = home.run(run_id(1)).path / "attempts" / "0001" / "train.csv"
    shrunk.write_bytes(b"".join(shrunk.read_bytes().splitlines(keepends=True)[:3]))
    (home.run(run_id(2)).path / "attempts" / "0001" / "eval.csv").unlink()
    ingest(home)
    assert (steps_of(home, 0), steps_of(home, 1)) == ([1, 2, 3, 4, 5], [1, 2])
    incremental = content_hash(home)
    ingest(home, rebuild=True)
    assert content_hash(home) == incremental


@pytest.mark.parametrize("steps", [5, 9])
def test_a_run_that_was_deleted_and_trained_again_is_not_its_predecessor(home: Home, steps: int) -> None:
    finished(home, 0)
    ingest(home)
    shutil.rmtree(home.run(run_id(0)).path)
    attempt = started(new_run(home, 0))
    for step in range(1, steps + 1):
        attempt.train_row(train_row(step, loss=100 / step))
    attempt.eval_row(eval_row(0))  # to the byte as long as before, and this file even to the byte the same
    attempt.eval_row(eval_row(5))
    attempt.close()
    assert ingest(home).rows_new == steps + 2
    assert query.rows(home, "SELECT max(loss) AS loss, count(*) AS n FROM train") == [{"loss": 100.0, "n": steps}]
    incremental = content_hash(home)
    ingest(home, rebuild=True)
    assert content_hash(home) == incremental


def test_a_row_file_that_somebody_replaced_by_a_longer_one_is_read_anew(home: Home) -> None:
    path = finished(home, 0).path / "attempts" / "0001" / "train.csv"
    ingest(home)
    path.write_bytes(path.read_bytes().replace(b",0.001,", b",0.0011,") + b"6,60,3600.0,0.6,9.0,0.001,0.5,100.0\n")
    assert ingest(home).rows_new == 6
    assert query.rows(home, "SELECT count(*) AS n FROM train WHERE lr = 0.0011") == [{"n": 5}]


def damage_bytes(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + 64] = bytes(byte ^ 0xFF for byte in data[offset : offset + 64])
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["deleted", "empty", "garbage", "header", "other schema", "foreign wal"])
def test_whatever_happens_to_the_database_the_next_ingest_has_it_all(home: Home, how: str) -> None:
    for number in range(3):
        finished(home, number)
    ingest(home)
    clean = content_hash(home)
    wal = home.path / "lab.duckdb.wal"
    match how:
        case "deleted":
            home.database.unlink()
        case "empty":
            home.database.write_bytes(b"")
        case "garbage":
            home.database.write_bytes(random.Random(0).randbytes(100_000))
        case "header":
            damage_bytes(home.database, 4096)
            damage_bytes(home.database, 8192)
        case "other schema":
            with duckdb.connect(str(home.database)) as con:
                con.execute("UPDATE schema_version SET sha256 = 'other'; DELETE FROM train_rows; DELETE FROM ledger")
        case "foreign wal":
            wal.write_bytes(random.Random(0).randbytes(1000))
    report = ingest(home)
    assert content_hash(home) == clean
    assert report.runs == 3
    assert not wal.exists()


def test_a_flipped_byte_in_the_wal_of_a_killed_ingest_harms_nothing(home: Home) -> None:
    finished(home, 0)
    ingest(home)
    clean = content_hash(home)
    killed = home.path / ".ingest" / "0001"
    (killed / "new.duckdb").write_bytes(home.database.read_bytes())
    (killed / "new.duckdb.wal").write_bytes(b"\x00\xff" * 50)
    ingest(home)
    assert content_hash(home) == clean
    assert [path.name for path in (home.path / ".ingest").iterdir()] == ["0002"]


INGESTER = """
import sys, time
from results.home import Home
from results.ingest import ingest
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
ingest(Home(sys.argv[1]))
print(time.perf_counter() - began, flush=True)
"""


def test_an_ingest_killed_at_any_moment_leaves_nothing_to_repair(home: Home) -> None:
    attempts = [started(new_run(home, number)) for number in range(20)]
    probe = python(INGESTER, home.path)
    hear(probe)
    say(probe, "go")
    takes = 3 * float(hear(probe))
    end(probe)
    kills, interrupted = 20, 0
    following = python(INGESTER, home.path)
    for kill in range(kills):
        for attempt in attempts:
            for step in range(100 * kill + 1, 100 * kill + 101):
                attempt.train_row(train_row(step))
        ingester, following = following, python(INGESTER, home.path)
        hear(ingester)
        say(ingester, "go")
        time.sleep(takes * kill / kills)
        ingester.kill()
        end(ingester)
        (seen,) = query.rows(home, "SELECT count(*) AS n, count(*) % 100 AS odd FROM train")
        assert seen["odd"] == 0
        interrupted += seen["n"] < 2000 * (kill + 1)
        assert not (home.path / "lab.duckdb.wal").exists()
    assert interrupted
    following.kill()
    end(following)
    ingest(home)
    assert query.rows(home, "SELECT count(*) AS n FROM train") == [{"n": 2000 * kills}]
    incremental = content_hash(home)
    ingest(home, rebuild=True)
    assert content_hash(home) == incremental
    for attempt in attempts:
        attempt.close()


READER = """
import sys
from results import query
con = query.open(sys.argv[1])
while True:
    print(con.execute("SELECT count(*) FROM train").fetchone()[0], flush=True)
    if not sys.stdin.readline():
        break
"""


def test_an_open_reader_neither_blocks_nor_is_blocked(home: Home) -> None:
    finished(home, 0)
    ingest(home)
    reader = python(READER, home.path)
    assert hear(reader) == "5"
    for number in (1, 2):
        finished(home, number)
        assert ingest(home).seconds < 10
        say(reader, "again")
        assert hear(reader) == "5", "it goes on reading what it opened"
    late = python(READER, home.path)
    assert hear(late) == "15"
    assert (end(reader), end(late)) == (0, 0)


def test_within_one_process_a_new_connection_sees_the_new_content(home: Home) -> None:
    finished(home, 0)
    ingest(home)
    with results.open(home) as old:
        finished(home, 1)
        ingest(home)
        with results.open(home) as new:
            assert new.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert old.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        with pytest.raises(duckdb.Error, match="read-only"):
            old.execute("DELETE FROM runs")


def test_a_second_ingest_waits_for_the_first(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(home, 0)
    ingesters = [python(INGESTER, home.path) for _ in range(3)]
    for ingester in ingesters:
        hear(ingester)
    for ingester in ingesters:
        say(ingester, "go")
    assert [end(ingester) for ingester in ingesters] == [0, 0, 0]
    assert len(steps_of(home, 0)) == 5
    monkeypatch.setattr(ingest_module, "WAIT_S", 0.2)
    holder = home.path / ".ingest" / "0004"
    holder.mkdir()
    write_json(holder / "owner.json", {**claim_identity(), "host": "another-host"})
    with pytest.raises(Busy, match=r"another-host.*delete .*0004"):
        ingest(home)
    write_json(holder / "owner.json", {**claim_identity(), "pid_start": 1})
    ingest(home)
    assert not holder.exists()


def test_a_full_disk_leaves_the_old_database(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        home = Home(disk)
        finished(home, 0)
        ingest(home)
        clean = content_hash(home)
        attempt = started(new_run(home, 1))
        for step in range(1, 2000):
            attempt.train_row(train_row(step, loss=random.random()))
        attempt.close()
        junk = fill(disk, leave_bytes=100_000)
        with pytest.raises((OSError, duckdb.Error), match=r"(?i)space|disk|write"):
            ingest(home)
        assert content_hash(home) == clean
        junk.unlink()
        ingest(home)
        assert len(steps_of(home, 1)) == 1999


def test_the_database_does_not_grow_by_ingesting_nothing(home: Home) -> None:
    for number in range(5):
        finished(home, number)
    for _ in range(4):
        ingest(home)
    size = home.database.stat().st_size
    for _ in range(6):
        ingest(home)
    assert home.database.stat().st_size <= size


def test_answers_are_ready_for_json(home: Home) -> None:
    with pytest.raises(FileNotFoundError, match="lab ingest"):
        query.open(home)
    ingest(home)
    sql = "SELECT 'nan'::DOUBLE AS a, 'inf'::DOUBLE AS b, DATE '2026-01-02' AS c"
    sql += ", 1.5::DECIMAL(4, 2) AS d, [1.0, 'nan'::DOUBLE] AS e"
    assert query.rows(home, sql) == [{"a": None, "b": None, "c": "2026-01-02", "d": 1.5, "e": [1.0, None]}]
    assert query.rows(home.path, "SELECT ? AS x", [3]) == [{"x": 3}]
    with pytest.raises(ValueError, match="share a name"):
        query.rows(home, "SELECT 1 AS x, 2 AS x")
