import math
import os
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results import query
from results.home import Home
from results.ingest import ingest
from results.rows import COLUMNS, RowLog
from tests.results.helpers import eval_row, new_run, started, telemetry_rows, train_row

floats = st.lists(st.floats(), min_size=1, max_size=200)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(losses=floats)
def test_floats_come_back_bit_for_bit_through_file_and_database(home: Home, losses: list[float]) -> None:
    run = new_run(home, len(home.run_ids()))
    attempt = started(run)
    for step, loss in enumerate(losses, start=1):
        attempt.train_row(train_row(step, loss))
        attempt.eval_row(eval_row(step, loss))
        attempt.telemetry_rows(telemetry_rows(step, loss, layers=1))
    attempt.finish("preempted")
    attempt.close()
    assert ingest(home).bad_files == []
    with query.open(home) as con:
        for view, column in (("train", "loss"), ("evals", "loss"), ("telemetry", "value")):
            found = con.execute(f"SELECT {column} FROM {view} WHERE run_id = ? ORDER BY step", [run.run_id]).fetchall()
            assert [repr(loss) for (loss,) in found] == [repr(abs(x) if math.isnan(x) else x) for x in losses]


def test_a_row_is_visible_at_once_as_one_write(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = started(new_run(home))
    writes: list[bytes] = []
    real_write = os.write

    def spy(fd: int, data: bytes) -> int:
        writes.append(data)
        return real_write(fd, data)

    monkeypatch.setattr("results.rows.os.write", spy)
    monkeypatch.setattr("results.rows.os.fsync", lambda fd: pytest.fail("a row was fsynced"))
    attempt.train_row(train_row(1))
    attempt.train_row(train_row(2, math.nan))
    assert (attempt.path / "train.csv").read_bytes() == b"".join(writes)
    assert [data.count(b"\n") for data in writes] == [2, 1], "the header travels with the first row"
    assert writes[0].startswith(b"step,tokens,flops,wall_s,loss,lr,grad_norm,tokens_per_s\n1,10,600.0,0.1,1.5,")
    assert b",nan," in writes[1]
    attempt.close()


def test_the_rows_of_a_step_are_one_write_or_none(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = started(new_run(home))
    path = attempt.path / "telemetry.csv"
    attempt.telemetry_rows(telemetry_rows(1))
    whole = b"step,name,layer,value\n1,activation_rms,0,0.5\n1,activation_rms,1,0.5\n"
    assert path.read_bytes() == whole
    with pytest.raises(ValueError, match="plain word"):
        attempt.telemetry_rows([*telemetry_rows(2), {"step": 2, "name": "a,b", "layer": 0, "value": 1.0}])
    real_write = os.write
    monkeypatch.setattr("results.rows.os.write", lambda fd, data: real_write(fd, data[:30]))
    with pytest.raises(OSError, match="no space"):
        attempt.telemetry_rows(telemetry_rows(3))
    assert path.read_bytes() == whole
    attempt.close()


def test_a_partial_write_is_taken_back(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = started(new_run(home))
    attempt.train_row(train_row(1))
    before = (attempt.path / "train.csv").read_bytes()
    real_write = os.write
    monkeypatch.setattr("results.rows.os.write", lambda fd, data: real_write(fd, data[:10]))
    with pytest.raises(OSError, match="no space"):
        attempt.train_row(train_row(2))
    assert (attempt.path / "train.csv").read_bytes() == before
    attempt.close()


def test_numpy_scalars_are_written_as_numbers(home: Home) -> None:
    attempt = started(new_run(home))
    row: dict[str, Any] = {name: np.float64(2.5) if type_ is float else np.int64(2) for name, type_ in train_types()}
    attempt.train_row(row)
    attempt.close()
    assert (attempt.path / "train.csv").read_text().splitlines()[1] == "2,2,2.5,2.5,2.5,2.5,2.5,2.5"


def train_types() -> list[tuple[str, type]]:
    return list(COLUMNS["train"].items())


def test_rows_that_do_not_fit_are_refused_and_leave_no_trace(home: Home) -> None:
    attempt = started(new_run(home))
    with pytest.raises(ValueError, match="expected"):
        attempt.train_row({**train_row(1), "extra": 1.0})
    with pytest.raises(KeyError):
        attempt.train_row({**{k: v for k, v in train_row(1).items() if k != "lr"}, "learning_rate": 1.0})
    with pytest.raises(ValueError, match="plain word"):
        attempt.eval_row(eval_row(1, split="a,b"))
    assert not (attempt.path / "train.csv").exists()


def test_logging_a_row_costs_little(home: Home) -> None:
    log = RowLog(home.path / "train.csv", "train")
    row = train_row(1234, 2.3456789012345)
    costs = []
    for _ in range(2000):
        began = time.perf_counter()
        log.append(row)
        costs.append(time.perf_counter() - began)
    log.close()
    assert sorted(costs)[len(costs) // 2] < 50e-6
