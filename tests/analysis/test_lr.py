"""The best learning rate: known optima under noise and cliffs, coverage, sensitivity, laws."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer

from analysis.answer_lr import LrAnswer, answer_lr, checked
from analysis.fit_options import sizes
from analysis.ladder import Columns, Rules
from analysis.lr import LrError, optimum, sensitivity
from analysis.lr_law import law
from analysis.tables import TableError
from analysis.told_study import lr_blocks

BEST = 3e-3


def losses(lrs: Any, best: float = BEST, cliff: float | None = None, beyond: float = np.nan) -> Any:
    """A parabola in log LR; from `cliff` times the best LR upward the runs end at `beyond`."""
    x = np.log(np.asarray(lrs) / best)
    found = 3 + 0.08 * x**2
    return found if cliff is None else np.where(x > np.log(cliff), beyond, found)


def test_a_parabola_gives_its_optimum_back() -> None:
    lrs = np.geomspace(3e-4, 3e-2, 7)
    found = optimum(lrs, losses(lrs, 2.2e-3))
    assert found.lr == pytest.approx(2.2e-3, rel=1e-6)
    assert found.loss == pytest.approx(3)
    assert found.curvature == pytest.approx(0.16)
    assert found.interior


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_covers_the_truth(seeds: int) -> None:
    generator, hits, tries = np.random.default_rng(0), 0, 600
    for _ in range(tries):
        best = BEST * np.exp(generator.uniform(-0.5, 0.5))
        lrs = np.repeat(np.geomspace(3e-4, 3e-2, 9), seeds)
        found = optimum(lrs, losses(lrs, best) + generator.normal(0, 0.01, len(lrs)), 10.0)
        low, high = found.low or 0.0, found.high or np.inf
        hits += low <= best <= high
    assert hits / tries == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_a_valley_that_rises_faster_on_one_side_does_not_move_the_optimum(ratio: float) -> None:
    """A parabola puts its vertex on the flat side, a factor 1.4 off, and its interval left the truth out in 7 of 10."""
    generator, near, hits, tries = np.random.default_rng(3), 0, 0, 150
    for _ in range(tries):
        best = BEST * np.exp(generator.uniform(-0.5, 0.5))
        lrs = np.geomspace(1.5e-4, 3e-2, 14)
        x = np.log(lrs / best)
        values = 3 + 0.06 * np.where(x < 0, ratio**-0.5, ratio**0.5) * x**2
        found = optimum(lrs, values + generator.normal(0, 0.008, len(lrs)), 10.0)
        near += abs(np.log(found.lr / best)) < np.log(1.3)
        hits += (found.low or 0.0) <= best <= (found.high or np.inf)
    assert near / tries > 0.85
    assert hits / tries > 0.85


def test_a_rate_that_diverged_bounds_an_optimum_before_it() -> None:
    """The best rate is the last stable one: the optimum lies between its lower neighbour and the cliff."""
    lrs = np.geomspace(3e-4, 3e-2, 9)
    noise = np.random.default_rng(0).normal(0, 0.005, 9)
    found = optimum(lrs, losses(lrs, cliff=1.01) + noise, 10.0)
    assert found.low and found.high and found.low < BEST < found.high
    assert found.high <= lrs[5] * 1.0001


@pytest.mark.parametrize("beyond", [np.nan, 6.0, 11.0])
def test_a_cliff_on_the_right_does_not_move_the_optimum(beyond: float) -> None:
    generator, near, tries = np.random.default_rng(1), 0, 200
    for _ in range(tries):
        best = BEST * np.exp(generator.uniform(-0.5, 0.5))
        lrs = np.exp(generator.uniform(np.log(2e-4), np.log(4e-2), 16))
        found = optimum(lrs, losses(lrs, best, 2.5, beyond) + generator.normal(0, 0.005, 16), 10.0)
        near += abs(np.log(found.lr / best)) < np.log(1.3)
    assert near / tries > 0.93


def test_an_optimum_at_the_edge_is_not_interior() -> None:
    lrs = np.geomspace(1e-5, 1e-4, 6)
    found = optimum(lrs, losses(lrs))
    assert not found.interior
    assert found.lr == pytest.approx(1e-4)
    cliff = optimum(np.geomspace(1e-4, 3e-2, 9), losses(np.geomspace(1e-4, 3e-2, 9), cliff=1.01), 10.0)
    assert cliff.at_cliff


def test_three_rates_give_an_optimum_without_an_interval() -> None:
    found = optimum([1e-3, 3e-3, 9e-3], losses([1e-3, 3e-3, 9e-3]))
    assert found.lr == pytest.approx(BEST)
    assert (found.low, found.high, found.sd_log) == (None, None, None)


@pytest.mark.parametrize(
    ("lrs", "values"), [([1e-3], [3.0]), ([1e-3, 2e-3], [np.nan, 3.0]), ([-1.0, 1.0], [3.0, 3.0]), ([1.0], [1.0, 2.0])]
)
def test_what_says_nothing_about_an_optimum_is_refused(lrs: list[float], values: list[float]) -> None:
    with pytest.raises(LrError), np.errstate(invalid="ignore"):
        optimum(lrs, values)


def test_sensitivity_is_the_mean_rise_with_divergence_clipped() -> None:
    lrs, values = [1e-4, 1e-3, 1e-2, 1e-1], [3.5, 3.0, 3.2, float("nan")]
    found = sensitivity(lrs, values, initial_loss=8.0)
    assert found.value == pytest.approx((0.5 + 0 + 0.2 + 5.0) / 4)
    assert found.integral == pytest.approx((0.25 + 0.1 + 2.6) / 3)
    assert found.clipped == 1
    assert sensitivity([1e-3, 1e-2], [3.0, 9.0], 8.0).value == pytest.approx(2.5)
    with pytest.raises(LrError, match="--initial-loss"):
        sensitivity(lrs, values)
    with pytest.raises(LrError, match="two rates"):
        sensitivity([1e-3, 1e-3], [3.0, 3.1], 8.0)


def test_a_law_gives_its_exponents_back_and_its_interval_covers() -> None:
    generator = np.random.default_rng(0)
    width, d = 10 ** generator.uniform(2, 4, 24), 10 ** generator.uniform(8, 11, 24)
    truth = 0.3 * width**-0.9 * (d / 1e9) ** -0.1
    exact = law({"width": width, "d": d, "n": np.full(24, 1e8)}, truth)
    assert exact.exponents == pytest.approx({"width": -0.9, "d": -0.1})
    assert exact.at({"width": 512, "d": 1e9}) == pytest.approx(0.3 * 512**-0.9)
    hits = {"student": 0, "bootstrap": 0, "unseen": 0}
    for _ in range(60):
        found = law({"width": width}, 0.3 * width**-0.9 * np.exp(generator.normal(0, 0.2, 24)))
        for kind, ends in (("student", found.student["width"]), ("bootstrap", found.ci["width"])):
            hits[kind] += bool(ends and ends[0] <= -0.9 <= ends[1])
        ends = found.interval_at({"width": 3e4})
        hits["unseen"] += bool(ends and ends[0] <= 0.3 * 3e4**-0.9 <= ends[1])
    assert min(hits.values()) >= 50
    assert hits["unseen"] < 60  # an interval that always covers says nothing
    assert law({"width": width[:2]}, truth[:2]).interval_at({"width": 512}) is None


def test_features_that_move_together_give_no_law() -> None:
    width = np.array([1.0, 2.0, 4.0, 8.0])
    with pytest.raises(LrError, match="vary together"):
        law({"width": width, "n": width**2}, 1 / width)
    with pytest.raises(LrError, match="does not vary"):
        law({"width": np.ones(3)}, np.ones(3))


def sweep(initial: bool = True) -> pl.DataFrame:
    generator, rows = np.random.default_rng(2), []
    for width in (64, 128, 256, 512):
        for lr in np.geomspace(1e-4, 1e-1, 10):
            for seed in range(3):
                x = np.log(lr * width / 0.3)
                loss = 3 + 0.06 * x**2 + generator.normal(0, 0.01)
                rows.append((float(width), float(lr), float(seed), loss if x < 2 else float("nan"), 5.5))
    return pl.DataFrame(rows, schema=["width", "lr", "seed", "loss", "start"], orient="row")


def test_a_table_gives_a_curve_per_width_and_their_law() -> None:
    found = answer_lr(sweep(), Columns(width="width"), Rules(), initial="start")
    record = found.record()
    for c in record["configurations"]:
        assert c["low"] <= c["lr"] <= c["high"]
        assert c["lr"] == pytest.approx(0.3 / c["width"], rel=0.1)
        assert c["sensitivity"] > 0.3
        assert c["interior"]
    assert record["law"]["exponents"]["width"] == pytest.approx(-1, abs=0.05)
    assert "initial_loss_missing" in [f.code for f in answer_lr(sweep(), Columns(), Rules()).findings]


def test_the_law_says_a_rate_for_a_size_nobody_ran() -> None:
    columns = Columns(width="width")
    found = answer_lr(sweep(), columns, Rules(), initial="start", at={"width": 2048.0}).predicted
    assert found is not None
    assert found["at"] == {"width": 2048.0}
    assert found["low"] < found["lr"] < found["high"]
    assert found["lr"] == pytest.approx(0.3 / 2048, rel=0.15)
    with pytest.raises(TableError, match="no law"):
        answer_lr(sweep().filter(pl.col("width") == 64), columns, Rules(), initial="start", at={"width": 2048.0})
    with pytest.raises(TableError, match="say --d COLUMN"):
        answer_lr(sweep(), columns, Rules(), initial="start", at={"d": 1e9})
    assert sizes(["width=512", "d=1e9"]) == {"width": 512.0, "d": 1e9}
    for text in ("512", "width=", "width=-1", "depth=3", "width=nan"):
        with pytest.raises(typer.BadParameter, match="width="):
            sizes([text])


def unseen(losses: dict[float, list[float]]) -> LrAnswer:
    """The law of `sweep` up to 256, which says about 6e-4 for a width of 512, beside runs of that width."""
    columns = Columns(width="width")
    law = answer_lr(sweep().filter(pl.col("width") < 512), columns, Rules(), initial="start", at={"width": 512.0})
    rows = [(512.0, lr, loss, 5.5) for lr, some in losses.items() for loss in some]
    there = pl.DataFrame(rows, schema=["width", "lr", "loss", "start"], orient="row")
    return checked(law, answer_lr(there, columns, Rules(), initial="start"))


def test_a_rate_beside_the_laws_at_which_runs_diverged_is_told() -> None:
    calm = {1e-4: [3.2, 3.2], 4e-4: [3.0, 3.02], 1e-3: [3.05, 3.05], 4e-3: [3.3, 3.3]}
    check = unseen(calm).check
    assert check is not None and check.at_most is not None
    assert 3.01 < check.at_most < 3.05 and [rate.lr for rate in check.beside] == [4e-4, 1e-3]
    for bad in ([math.nan, 3.05], [6.0, 3.05], [math.nan, math.inf]):  # NaN, above the initial loss, all of them
        answer = unseen(calm | {1e-3: bad})
        check = answer.check
        assert check is not None and check.at_most is None
        lost = check.beside[1]
        assert (lost.lr, lost.runs, lost.diverged) == (1e-3, 2, sum(not loss < 5.5 for loss in bad))
        assert f"({lost.diverged} of 2 runs diverged)" in "\n".join(map(str, lr_blocks(answer)))
    check = unseen({lr: [math.nan] for lr in calm}).check
    assert check is not None and (check.lowest, check.lr) == (None, None)


def test_an_optimum_at_the_edge_there_is_told_and_a_seen_size_refused() -> None:
    answer = unseen({1e-4: [3.5], 4e-4: [3.3], 1e-3: [3.1], 4e-3: [3.0]})
    assert answer.check is not None and not answer.check.interior
    assert "at the edge of their grid" in "\n".join(map(str, lr_blocks(answer)))
    columns = Columns(width="width")
    seen = answer_lr(sweep(), columns, Rules(), initial="start", at={"width": 512.0})
    with pytest.raises(TableError, match="has seen width 512"):
        checked(seen, seen)
    with pytest.raises(TableError, match="say --at"):
        checked(answer_lr(sweep(), columns, Rules(), initial="start"), seen)
    other = answer_lr(sweep().filter(pl.col("width") < 128), columns, Rules(), initial="start")
    with pytest.raises(TableError, match="no configuration there with width 512"):
        checked(replace(answer, check=None), other)


def test_tables_that_say_nothing_about_rates_are_refused() -> None:
    with pytest.raises(TableError, match="--lr"):
        answer_lr(pl.DataFrame({"x": [1.0], "loss": [1.0]}), Columns(), Rules())
    with pytest.raises(TableError, match="initial-loss"):
        answer_lr(sweep(), Columns(), Rules(), initial="-2")
    diverged = answer_lr(sweep().with_columns(loss=pl.lit(float("nan"))), Columns(), Rules(), initial="5")
    assert "no_optimum" in [f.code for f in diverged.findings]
    single = answer_lr(sweep().filter(pl.col("lr") < 2e-4), Columns(), Rules())
    assert [f.code for f in single.findings] == ["few_rates"]


def test_a_feature_that_follows_another_is_left_out_of_the_law() -> None:
    """Of one depth, parameters are a function of the width: the law is in the width alone, and says so."""
    rows = [
        {"lr": lr, "loss": 3 + (np.log(lr * width)) ** 2, "width": width, "n": 12.0 * width**2, "d": 1e6}
        for width in (32.0, 64.0, 128.0, 256.0)
        for lr in 2.0 ** np.arange(-9, -3)
    ]
    found = answer_lr(pl.DataFrame(rows), Columns(width="width", n="n", d="d"), Rules())
    assert found.law is not None
    assert found.law.exponents == pytest.approx({"width": -1.0}, abs=0.05)
    assert [finding.reason for finding in found.findings if finding.code == "feature_follows"] == [
        "n follows width here, so the law is in width alone."
    ]


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (8192.0, "width 8192 is 16 times the largest of the law, 512"),
        (32.0, "width 32 is 1/2 of the smallest of the law, 64"),
        (512.0, None),
        (100.0, None),
    ],
)
def test_a_size_outside_of_the_law_is_told(width: float, words: str | None) -> None:
    answer = answer_lr(sweep(), Columns(width="width"), Rules(), initial="start", at={"width": width})
    told = [finding.reason for finding in answer.findings if finding.code == "extrapolated"]
    assert [reason.partition(":")[0] for reason in told] == ([] if words is None else [words])
