"""Bins of steps: what pictures of training curves are drawn from, so that 10^8 rows are not read for each.

A step below 2 FINE is a bin of its own; beyond, an octave of steps has FINE bins, none wider than WIDEST. So bins serve
a linear and a logarithmic axis, need not know how long a run will be, and lie alike in all runs. Bins are made from the
same rows, in the same transaction, as the tables; what two ingests read of one bin stays two rows, which add up.
"""

import duckdb
import polars as pl

FINE = 128
WIDEST = 256
KEYS = ("run_id", "attempt", "bin")
AXES = ("step", "tokens", "flops", "wall_s")
QUANTUM = 2.0**-20  # nats; sums of multiples of it are exact, so that they do not depend on the order of ingests

CUT_ROWS = """
WITH cut AS (
    SELECT b.run_id, b.attempt, b.first_step, b.last_step, a.resume_step, a.until_step
    FROM bin_all b JOIN attempts a USING (run_id, attempt) JOIN changed ON changed.folder = 'runs/' || b.run_id
    WHERE b.last_step > a.resume_step AND (a.until_step IS NULL OR b.first_step <= a.until_step)
        AND (b.first_step <= a.resume_step OR b.last_step > a.until_step)
)
SELECT t.run_id, t.attempt, t.step, t.tokens, t.flops, t.wall_s, t.loss
FROM train_all t JOIN cut USING (run_id, attempt)
WHERE t.step BETWEEN first_step AND last_step AND t.step > resume_step AND (until_step IS NULL OR t.step <= until_step)
ORDER BY ALL
"""


def of_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `train_rows` to rows of `bin_rows`: one for each stretch of rows that share run, attempt and bin."""
    width = pl.lit(1, pl.Int64)
    for power in range(1, WIDEST.bit_length()):
        width = pl.when(pl.col("step") >= FINE << power).then(1 << power).otherwise(width)
    step, loss = pl.col("step"), pl.col("loss")
    finite = loss.is_finite().fill_null(False)
    marked = rows.with_columns(bin=step - step % width, finite=finite, loss=pl.when(finite).then(loss))
    stretch = pl.struct(KEYS).rle_id().set_sorted()
    return (
        marked.group_by(stretch.alias("stretch"), maintain_order=True)
        .agg(
            pl.col(KEYS).first(),
            loss.count().cast(pl.Int64).alias("n"),
            (~pl.col("finite")).sum().cast(pl.Int64).alias("n_bad"),
            ((loss / QUANTUM).round() * QUANTUM).sum().alias("total"),
            loss.min().alias("low"),
            loss.max().alias("high"),
            step.get(loss.arg_min()).alias("low_step"),
            step.get(loss.arg_max()).alias("high_step"),
            step.filter(~pl.col("finite")).min().alias("bad_step"),
            pl.col(AXES).min().name.prefix("first_"),
            pl.col(AXES).max().name.prefix("last_"),
        )
        .drop("stretch")
    )


def cut(con: duckdb.DuckDBPyConnection) -> None:
    """Make the bins anew that a resume cuts in two, of the runs whose folders are in `changed`."""
    con.execute("DELETE FROM bin_cuts WHERE 'runs/' || run_id IN (FROM touched)")
    con.register("pieces", of_rows(con.sql(CUT_ROWS).pl()).to_arrow())
    con.execute("INSERT INTO bin_cuts BY NAME SELECT * FROM pieces")
    con.unregister("pieces")
