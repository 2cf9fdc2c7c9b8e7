import math
import random

import numpy as np
import polars as pl
import pytest

from results import bins, query, segments
from results.home import Home
from results.ingest import ingest
from results.record import Attempt
from tests.results.helpers import new_run, run_id, started, train_row, without_fsync

MERGED = """
SELECT run_id, bin, sum(n)::BIGINT AS n, sum(n_bad)::BIGINT AS n_bad, sum(total) AS total, min(low) AS low,
    max(high) AS high, arg_min(low_step, low) AS low_step, arg_max(high_step, high) AS high_step,
    min(bad_step) AS bad_step, min(first_step) AS first_step, max(last_step) AS last_step,
    min(first_tokens) AS first_tokens, max(last_wall_s) AS last_wall_s
FROM {source} GROUP BY run_id, bin ORDER BY run_id, bin
"""


def stored(home: Home) -> pl.DataFrame:
    with query.open(home) as con:
        return pl.DataFrame(con.sql(MERGED.format(source="train_bins")).pl())


def true(home: Home) -> pl.DataFrame:
    """The bins of the rows that analysis sees."""
    with query.open(home) as con:
        con.register("fresh", bins.of_rows(con.sql("FROM train ORDER BY run_id, step").pl()).to_arrow())
        return pl.DataFrame(con.sql(MERGED.format(source="fresh")).pl())


def train(attempt: Attempt, first: int, last: int, seed: int = 0) -> None:
    """Rows of steps first..last, a few of them not finite."""
    values = np.random.default_rng(seed).normal(3, 1, last - first + 1).tolist()
    for step, loss in zip(range(first, last + 1), values, strict=True):
        bad = {7: math.nan, 8: math.inf}.get(step % 50)
        attempt.train_row(train_row(step, bad or loss))


@pytest.mark.parametrize("segment_rows", [400, 10**6])
def test_bins_are_those_of_the_rows_whatever_resumes_and_ingests_came_between(
    home: Home, segment_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_ROWS", segment_rows)
    chance = random.Random(1)
    with without_fsync():
        for number in range(4):
            run, resume = new_run(home, number), 0
            for n in range(4):
                attempt = started(run, resume_step=resume)
                middle, last = resume + chance.randrange(1, 400), resume + chance.randrange(400, 900)
                train(attempt, resume + 1, middle, seed=n)
                ingest(home)
                train(attempt, middle + 1, last, seed=10 + n)
                attempt.close()
                resume = chance.randrange(resume // 2, last)  # rewinds past an earlier resume, too
                ingest(home)
                assert stored(home).equals(true(home))
    (row,) = query.rows(home, "SELECT count(*) AS n FROM bin_cuts")
    assert row["n"] > 0
    incremental = stored(home)
    ingest(home, rebuild=True)
    assert stored(home).equals(incremental)


def test_a_bin_knows_its_rows() -> None:
    steps = list(range(1, 2050))
    loss = np.random.default_rng(0).normal(3, 1, len(steps))
    loss[999] = math.nan  # step 1000
    rows = pl.DataFrame({"run_id": "r", "attempt": 1, "step": steps, "loss": loss})
    rows = rows.with_columns(tokens=pl.col("step") * 10, flops=pl.col("step") * 2.0, wall_s=pl.col("step") * 0.5)
    found = bins.of_rows(rows)
    assert found.select(pl.col("n") + pl.col("n_bad")).sum().item() == len(steps)
    assert found.filter(pl.col("first_step") < 256).select("first_step", "last_step").rows() == [
        (s, s) for s in range(1, 256)
    ]
    widths = found.select((pl.col("last_step") - pl.col("first_step") + 1) / pl.col("first_step")).to_series()
    assert max(widths[256:].to_list()) <= 1 / bins.FINE
    row = found.filter(pl.col("bin") == 1000).row(0, named=True)
    part = loss[1000:1004]
    assert (row["n"], row["n_bad"], row["bad_step"], row["first_step"], row["last_step"]) == (3, 1, 1000, 1000, 1003)
    assert (row["low"], row["high"]) == (part[:3].min(), part[:3].max())
    assert (row["low_step"], row["high_step"]) == (1001 + part[:3].argmin(), 1001 + part[:3].argmax())
    assert row["total"] == pytest.approx(part[:3].sum(), abs=3e-6)
    assert (row["first_tokens"], row["last_wall_s"]) == (10_000, 501.5)


def test_rows_that_are_gone_are_gone_from_the_bins(home: Home) -> None:
    attempt = started(new_run(home))
    train(attempt, 1, 20)
    attempt.close()
    ingest(home)
    path = attempt.path / "train.csv"
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:5]) + b"\n")
    ingest(home)
    assert stored(home)["last_step"].to_list() == [1, 2, 3, 4]
    assert query.rows(home, "SELECT count(*) AS n FROM bin_rows WHERE run_id = ?", [run_id(0)]) == [{"n": 4}]
