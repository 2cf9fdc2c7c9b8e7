"""What keeps a large home fast: folders passed over, rows in segments, runs that have no folder yet."""

import os
from pathlib import Path

import pytest

from results import collect, planned, query, segments, views
from results.files import write_json
from results.home import Home
from results.ingest import content_hash, ingest
from results.record import RunFolder
from results.state import State, run_state
from tests.results.helpers import finished, new_run, python, run_id, spec, started, train_row


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 20)


def held(home: Home) -> dict[str, int]:
    """Rows of the table, and rows in segments."""
    (table,) = query.rows(home, "SELECT count(*) AS n FROM train_rows")
    (beside,) = query.rows(home, "SELECT sum(rows)::BIGINT AS n FROM segments WHERE kind = 'train'")
    return {"table": table["n"], "segments": beside["n"] or 0}


@pytest.mark.usefixtures("small_segments")
def test_rows_move_into_segments_and_every_answer_stays_the_same(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        finished(home, number)
        ingest(home)
    assert held(home) == {"table": 5, "segments": 40}
    incremental = content_hash(home)
    ingest(home, rebuild=True)
    assert held(home)["segments"] == 45, "at once they fill a segment together"
    assert content_hash(home) == incremental
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 10**6)
    ingest(home, rebuild=True)
    assert held(home) == {"table": 45, "segments": 0}
    assert content_hash(home) == incremental


@pytest.mark.usefixtures("small_segments")
def test_a_run_that_goes_on_has_rows_on_both_sides(home: Home) -> None:
    attempt = started(new_run(home))
    for step in range(1, 26):
        attempt.train_row(train_row(step))
    ingest(home)
    for step in range(26, 31):
        attempt.train_row(train_row(step))
    attempt.close()
    assert ingest(home).rows_new == 5
    assert held(home) == {"table": 5, "segments": 25}
    (row,) = query.rows(home, "SELECT count(*) AS n, count(DISTINCT step) AS d, max(step) AS last FROM train")
    assert row == {"n": 30, "d": 30, "last": 30}
    assert query.rows(home, "SELECT train_loss FROM runs") == [{"train_loss": 1.5}]


@pytest.mark.usefixtures("small_segments")
def test_a_file_that_shrank_after_it_went_into_a_segment_is_read_again(home: Home) -> None:
    for number in range(5):
        finished(home, number)
    ingest(home)
    path = home.run(run_id(1)).path / "attempts" / "0001" / "train.csv"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    ingest(home)
    rows = query.rows(home, "SELECT run_id, count(*) AS n FROM train GROUP BY ALL ORDER BY ALL")
    assert [row["n"] for row in rows] == [5, 2, 5, 5, 5]


@pytest.mark.usefixtures("small_segments")
def test_a_home_may_be_moved_and_a_lost_segment_is_made_again(home: Home, tmp_path: Path) -> None:
    for number in range(5):
        finished(home, number)
    ingest(home)
    clean = content_hash(home)
    moved = Home(home.path.rename(tmp_path / "elsewhere"))
    ingest(moved)
    assert content_hash(moved) == clean
    for path in moved.segments.iterdir():
        path.unlink()
    ingest(moved)
    assert content_hash(moved) == clean


READER = """
import sys
from results import query
con = query.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print(con.execute("SELECT count(*) FROM train").fetchone()[0], flush=True)
"""


@pytest.mark.usefixtures("small_segments")
def test_an_open_reader_keeps_its_segments_for_a_day(home: Home) -> None:
    for number in range(5):
        finished(home, number)
    ingest(home)
    reader = python(READER, home.path)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"
    old = set(home.segments.iterdir())
    ingest(home, rebuild=True)
    ingest(home)
    assert old < set(home.segments.iterdir())
    assert reader.communicate("go\n")[0] == "25\n"
    for path in home.segments.iterdir():
        os.utime(path, (0, 0))
    ingest(home)
    assert not old & set(home.segments.iterdir())
    assert len(query.rows(home, "FROM train")) == 25


def test_what_has_settled_is_not_read_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        finished(home, number)
    lost = started(new_run(home, 3))
    lost.train_row(train_row(1))
    lost.close()
    ingest(home)
    read: list[str] = []
    real = collect._add_run

    def noting(found: collect.Survey, run: RunFolder) -> None:
        read.append(run.run_id)
        real(found, run)

    monkeypatch.setattr(collect, "_add_run", noting)
    ingest(home)
    assert read == [run_id(3)], "whether a process lives is in no file"
    home.run(run_id(1)).record_decode("cpu", [])
    ingest(home)
    assert read[1:] == [run_id(1), run_id(3)]


def plan_of(home: Home, numbers: range) -> Path:
    folder = home.sweeps / "s" / "p"
    folder.mkdir(parents=True)
    planned.write(folder, [spec(number) for number in numbers])
    runs = [{"run_id": run_id(n), "arm": "a", "seed": n, "match_residual": None} for n in numbers]
    write_json(folder / "plan.json", {"runs": runs})
    return folder


def test_a_run_without_a_folder_is_planned_shown_and_counted(home: Home) -> None:
    folder = plan_of(home, range(3))
    finished(home, 1)
    assert ingest(home).runs == 1
    states = query.rows(home, "SELECT run_id, state, params FROM runs ORDER BY ALL")
    assert [(row["state"], row["params"]) for row in states] == [("PLANNED", 10), ("DONE", 10), ("PLANNED", 10)]
    shown = views.run(home, run_id(2))
    assert (shown["state"], shown["spec"]["seed"], shown["attempts"]) == ("PLANNED", 2, [])
    planned.begin(home.run(run_id(2)), planned.specs(folder)[run_id(2)])
    assert run_state(home.run(run_id(2))).state is State.PLANNED
    before = content_hash(home)
    ingest(home)
    assert content_hash(home) == before
    ingest(home, rebuild=True)
    assert content_hash(home) == before
