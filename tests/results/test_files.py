import math
import threading
from pathlib import Path

import pytest

from results.files import BadFile, BadName, StorageFull, read_json, safe_name, write_bytes, write_json
from results.home import Home
from results.ingest import ingest
from results.query import rows
from tests.results.helpers import fill, new_run, python, small_disk, started, train_row


def test_json_round_trip_and_names_for_what_json_cannot_say(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"b": [math.nan, -math.inf, 0.1], "a": {"x": math.inf}})
    assert read_json(path) == {"a": {"x": "inf"}, "b": ["nan", "-inf", 0.1]}
    assert path.read_text().endswith("}\n")
    assert list(tmp_path.iterdir()) == [path]


def test_absent_json_is_none_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_json(path) is None
    for content in (b"", b"\n", b'{"a": 1', b"[1]", b"\xff\xfe{}", b'{"a":' * 100_000):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=r"a\.json"):
            read_json(path)


def test_a_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"who": 0, "body": "0" * 10_000})

    def write(who: int) -> None:
        for _ in range(40):
            write_json(path, {"who": who, "body": str(who) * 10_000})

    writers = [threading.Thread(target=write, args=(who,)) for who in (1, 2, 3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        value = read_json(path)
        assert value is not None
        assert value["body"] == str(value["who"]) * 10_000
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_keeps_the_old_content_and_says_how_much_is_needed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        path = disk / "a.json"
        write_json(path, {"old": True})
        junk = fill(disk)
        with pytest.raises(StorageFull, match=r"200000 bytes.*a\.json"):
            write_bytes(path, b"x" * 200_000)
        assert read_json(path) == {"old": True}
        assert sorted(disk.iterdir()) == [path, junk]


def test_full_disk_harms_neither_checkpoints_nor_rows(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        run = new_run(Home(disk))
        attempt = started(run)
        attempt.save_checkpoint(1, {"weights": b"w" * 50_000})
        junk = fill(disk, leave_bytes=100_000)
        with pytest.raises(StorageFull, match="checkpoints"):
            attempt.save_checkpoint(2, {"weights": b"w" * 90_000, "optim": b"o" * 90_000})
        assert run.latest_checkpoint() == (1, {"weights": b"w" * 50_000})
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step_00000001"]
        fill(disk)
        written = 0
        with pytest.raises(StorageFull, match=r"train\.csv"):
            for step in range(1, 10_000):
                attempt.train_row(train_row(step))
                written = step
        junk.unlink()
        attempt.train_row(train_row(written + 1))
        lines = (attempt.path / "train.csv").read_text().splitlines()
        assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1, written + 2))
        attempt.close()


@pytest.mark.parametrize("name", ["a?b", "a\\b", "a:b", "a\udcffb"])
def test_a_home_whose_path_duckdb_reads_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadName, match=r"in its path\. Set LAB_HOME"):
        Home(tmp_path / name).ensure()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["a*b", "a[x]b", "a'b", "a%20b", "a#b", " a "])
def test_a_home_with_another_odd_path_is_ingested_into_it(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / name)
    home.ensure()
    ingest(home)
    assert home.database.is_file()
    assert rows(home, "SELECT count(*) AS n FROM runs") == [{"n": 0}]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 101, "ä", "a\n"])
def test_names_that_are_no_path_component_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="bad name"):
        safe_name(name)


def test_the_home_says_why_it_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="LAB_HOME"):
        Home(tmp_path / "file" / "home").ensure()


def test_home_lists_only_runs_that_have_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "elsewhere"))
    home = Home()
    assert home.path == tmp_path / "elsewhere"
    assert home.run_ids() == []
    new_run(home, 3)
    new_run(home, 1)
    (home.runs / "0123456789ab").mkdir()
    (home.runs / "notes").mkdir()
    assert home.run_ids() == ["000000000001", "000000000003"]


def test_writing_the_record_loads_no_heavy_library() -> None:
    script = "import sys, results, results.record, results.state, results.home, results.query\n"
    script += "sys.exit(len({'duckdb', 'polars', 'torch', 'pandas', 'numpy'} & sys.modules.keys()))"
    process = python(script)
    process.communicate()
    assert process.returncode == 0
