"""Each rule fires on a table made for it, and none but notes on a good one."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis.answer_fit import lint_ladder
from analysis.fit import Spec, fit
from analysis.ladder import Columns, Rules, ladder
from analysis.lint_table import RULES, Facts, lint_table
from tests.analysis.ladders import runs


def good() -> pl.DataFrame:
    """Four lengths for each of eight sizes, two seeds."""
    n, d = np.meshgrid(np.geomspace(1e7, 1e10, 8), np.geomspace(1e9, 1e12, 4))
    table = pl.DataFrame({"n": np.tile(n.ravel(), 2), "d": np.tile(d.ravel(), 2)})
    noise = np.random.default_rng(0).normal(0, 0.003, len(table))
    loss = 1.8 + 420 / table["n"].to_numpy() ** 0.34 + 1400 / table["d"].to_numpy() ** 0.37
    return table.with_columns(loss=loss * np.exp(noise), seed=pl.Series(["0"] * 32 + ["1"] * 32))


def codes(table: pl.DataFrame, columns: Columns | None = None, **facts: Any) -> list[str]:
    return [finding.code for finding in lint_table(Facts(ladder(table, columns or Columns()), **facts))]


CASES: dict[str, tuple[pl.DataFrame, Columns, dict[str, Any]]] = {
    "rows_left_out": (good().with_columns(loss=pl.when(pl.col("n") > 9e9).then(None).otherwise("loss")), Columns(), {}),
    "few_sizes": (good().filter(pl.col("n") < 3e8), Columns(), {}),
    "narrow_range": (good().filter(pl.col("d") < 2e10), Columns(), {}),
    "one_seed": (runs(20), Columns(), {}),
    "mid_decay": (good().with_columns(run=pl.col("n").cast(pl.String)), Columns(run="run"), {}),
    "schedule_horizon": (good().with_columns(step=50.0, total_steps=100.0), Columns(), {}),
    "long_warmup": (good().with_columns(warmup_steps=50.0, total_steps=100.0), Columns(), {}),
    "collinear": (good().with_columns(d=20 * pl.col("n")), Columns(), {}),
    "embeddings_undeclared": (good(), Columns(), {}),
    "mixed_conventions": (
        good().with_columns(flops=6 * pl.col("n") * pl.col("d") * pl.Series([1.0, 1.6] * 32)),
        Columns(n="n", d="d", flops="flops"),
        {},
    ),
    "units": (good().with_columns(n=pl.col("n") / 1e9), Columns(), {}),
    "data_repeated": (good().with_columns(unique=5e9), Columns(unique="unique"), {}),
    "duplicate_rows": (pl.concat([good(), good().head(3)]), Columns(), {}),
    "tokenizers_differ": (good().with_columns(tokenizer=pl.Series(["a", "b"] * 32)), Columns(), {}),
    "evaluations_differ": (good().with_columns(dataset=pl.Series(["a", "b"] * 32)), Columns(), {}),
    "not_identified": (good(), Columns(), {"unidentified": ("beta",)}),
    "far_extrapolation": (good(), Columns(), {"budget": 1e27}),
}


@pytest.mark.parametrize("code", CASES)
def test_a_rule_fires_where_it_should(code: str) -> None:
    table, columns, facts = CASES[code]
    assert code in codes(table, columns, **facts)
    if code != "embeddings_undeclared":
        assert code not in codes(good(), Columns(seed="seed"))


@pytest.mark.parametrize("code", ["at_bound", "not_converged"])
def test_rules_about_the_optimiser(code: str) -> None:
    rows = ladder(good(), Columns())
    found = fit(Spec(), rows.logs(), rows.loss)
    assert code not in [f.code for f in lint_table(Facts(rows, found))]
    stuck = np.where(np.array(found.model.names) == "alpha", found.model.upper, found.theta)
    bad = replace(found, theta=stuck) if code == "at_bound" else replace(found, reached=1)
    assert code in [f.code for f in lint_table(Facts(rows, bad))]


def test_every_rule_has_a_case() -> None:
    assert {rule[0] for rule in RULES} == {*CASES, "at_bound", "not_converged"}
    assert all(
        level in ("note", "warning", "error") and remedy.endswith((".", "'x'\".")) for _, level, _, remedy in RULES
    )


def test_a_declared_good_table_has_no_finding() -> None:
    rows = ladder(good(), Columns(seed="seed"))
    assert lint_ladder(rows, None, True) == []


def test_a_table_without_a_fit_is_linted_all_the_same() -> None:
    rows = ladder(good().head(4), Columns(), Rules())
    assert {"no_fit", "narrow_range"} <= {finding.code for finding in lint_ladder(rows, None, None)}
