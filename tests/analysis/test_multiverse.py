"""A specification curve: every combination, the reference first, spread told by choice."""

import numpy as np
import polars as pl
import pytest

from analysis.ladder import Columns, Rules
from analysis.multiverse import Choices, multiverse, multiverse_record, summary
from analysis.tables import TableError
from tests.analysis.ladders import TRUTH, runs

ALL = Choices(n_columns=("n_body",), final=True, tokens_from_flops=True, best_lr=True)


def table() -> pl.DataFrame:
    """Runs with a checkpoint before the end (higher loss), two LRs, embeddings apart, FLOPs that count 5 % more."""
    final = runs(40, noise=0.002).with_columns(run=pl.int_range(40).cast(pl.String), lr=pl.lit(1e-3))
    early = final.with_columns(d=final["d"] * 0.5, loss=final["loss"] * 1.06)
    other = final.with_columns(lr=pl.lit(1e-2), loss=final["loss"] * 1.02, run=pl.col("run") + "b")
    both = pl.concat([final, early, other])
    return both.with_columns(n_body=both["n"] * 0.8, flops=6.3 * both["n"] * both["d"])


@pytest.mark.slow
def test_every_combination_is_there_and_the_reference_is_first() -> None:
    columns = Columns(n="n", d="d", flops="flops", loss="loss", run="run", lr="lr")
    axes, found, target = multiverse(table(), columns, Rules(), ALL, 1e24, resamples=0)
    assert set(axes) == {"delta", "exponents", "rows", "N", "D", "checkpoints", "LR"}
    assert len(found) == np.prod([len(options) for options in axes.values()])
    assert found[0].choices == {axis: options[0] for axis, options in axes.items()}
    assert len({tuple(u.choices.values()) for u in found}) == len(found)
    assert all(u.values for u in found)
    assert target == 1e24
    record = multiverse_record(axes, found, target)
    by = record["quantities"]["E"]["by_choice"]
    assert by["LR"]["best per size"] < by["LR"]["all"]
    assert {u.rows for u in found if u.choices["checkpoints"] == "final" and u.choices["rows"] == "all"} == {40, 80}
    best = next(u for u in found if u.choices["checkpoints"] == "final" and u.choices["LR"] == "best per size")
    assert best.values["alpha"] == pytest.approx(TRUTH["alpha"], abs=0.02)


def test_an_interval_says_how_much_of_the_spread_it_holds() -> None:
    axes, found, _ = multiverse(runs(60, noise=0.01), Columns(), Rules(), Choices(), resamples=30)
    told = summary(axes, found, "a")
    assert told["lowest"] <= told["median"] <= told["highest"]
    assert 0 < told["inside_reference_ci"] <= 1
    assert told["reference"] == found[0].values["a"]


def test_a_table_without_n_and_d_is_refused() -> None:
    with pytest.raises(TableError, match="N and D"):
        multiverse(runs(20).select("n", "loss"), Columns(), Rules(), Choices())


def test_another_column_for_n_that_is_not_there_is_told() -> None:
    with pytest.raises(TableError, match=r"--n-alt.*did you mean 'n_body'"):
        multiverse(table(), Columns(), Rules(), Choices(n_columns=("n_bod",)), resamples=0)
