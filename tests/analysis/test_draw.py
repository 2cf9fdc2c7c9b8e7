from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import curves, draw, figures
from analysis.draw import looks_for
from analysis.flops import flops_shares
from analysis.frames import runs_frame
from analysis.rates import rate_grids
from analysis.select import Plan, resolve_plan
from analysis.table import summary
from analysis.units import si
from tests.analysis.synthetic import FFN, Arm, Builder, final_loss, five_arms

LOOKS = looks_for(list(FFN), "relu")


def test_every_arm_has_its_own_look_and_the_baseline_is_ink() -> None:
    arms = [f"arm{i}" for i in range(28)]
    looks = looks_for(arms, "arm3")
    assert len(set(looks.values())) == 28
    assert looks["arm3"].color == draw.INK
    assert set(looks) == set(arms)


def test_a_baseline_that_is_no_arm_adds_none() -> None:
    assert set(looks_for(["a"], None)) == set(looks_for(["a"], "gone")) == {"a"}


@pytest.mark.parametrize(
    ("axis", "largest", "expected"),
    [
        ("step", 5e6, (1, "optimiser steps")),
        ("tokens", 2.5e6, (1e6, "training tokens (millions)")),
        ("tokens", 900, (1, "training tokens")),
        ("flops", 3e15, (1e15, "training compute (PFLOPs)")),
        ("flops", 3e23, (1e21, "training compute (ZFLOPs)")),
        ("wall_s", 100, (1, "training time (seconds)")),
        ("wall_s", 1000, (60, "training time (minutes)")),
        ("wall_s", 1e5, (3600, "training time (hours)")),
    ],
)
def test_units(axis: str, largest: float, expected: tuple[float, str]) -> None:
    assert draw.unit_of(axis, largest) == expected


@pytest.mark.parametrize(
    ("value", "text"), [(12.3e12, "12.3 TFLOPs"), (950, "950 FLOPs"), (1000, "1 kFLOPs"), (None, "–")]
)
def test_si(value: Any, text: str) -> None:
    assert si(value, "FLOPs") == text


def test_names_are_one_drawable_line() -> None:
    assert draw.shown("a\nb  c") == "a b c"
    assert draw.shown("$x$") == r"\$x\$"
    assert draw.shown("\u5909a") == "\ufffda"
    assert draw.shown("x" * 40, 10) == "x" * 9 + "…"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0.01, 0.2))
def test_spread_keeps_names_apart_and_in_order(heights: list[float], gap: float) -> None:
    heights = sorted(heights)
    out = draw.spread(heights, gap)
    assert all(b - a >= gap * (1 - 1e-6) for a, b in pairwise(out))
    assert sum(out) == pytest.approx(sum(heights), abs=1e-9)


def test_spread_leaves_alone_what_is_far_apart() -> None:
    assert draw.spread([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]


def limits(curve: pl.DataFrame, column: str) -> tuple[float, float]:
    found = draw.loss_limits(curve, column)
    assert found is not None
    return found


def test_the_limits_cut_the_early_fall_and_hold_every_end(con: Any, plan: Plan) -> None:
    curve = curves.over_seeds(curves.val_points(con, plan))
    low, high = limits(curve, "mean")
    ends = curve.filter(pl.col("step") == 600)["mean"].to_list()
    assert low < min(ends) and max(ends) < high
    assert high < 0.7 * max(curve["mean"].to_list())


def test_a_run_that_blows_up_does_not_flatten_the_others(con: Any, trouble: Plan) -> None:
    curve = curves.smooth(curves.train_curve(con, trouble))
    assert max(curve["smoothed"].to_list()) > 2.2
    assert limits(curve, "smoothed")[1] < 2.2


def small_curve(**arms: list[float | None]) -> pl.DataFrame:
    """One seed per arm, a value for each step from 0."""
    rows = [(arm, i, i * 10, i * 1e3, i * 0.5, x) for arm, values in arms.items() for i, x in enumerate(values)]
    names = ["arm", "step", "tokens", "flops", "wall_s", "loss"]
    return curves.over_seeds(pl.DataFrame(rows, schema=names, orient="row").cast({"loss": pl.Float64}))


def test_an_arm_that_diverges_as_a_whole_may_leave_but_one_that_ends_worse_may_not() -> None:
    good: list[float | None] = [3.0, 2.0, 1.9, 1.8, 1.7, 1.6]
    assert limits(small_curve(a=good, b=good, c=[3.0, 2.0, 9.0, None]), "mean")[1] < 2.2
    assert limits(small_curve(a=good, b=good, c=[3.0, 2.9, 2.9, 2.9, 2.9, 2.9]), "mean")[1] > 2.9


@pytest.mark.parametrize("values", [[4.0], [4.0, 3.0], [None], [4.0, None], [None, 4.0], [2.0] * 5])
@pytest.mark.parametrize("axis", ["step", "wall_s"])
def test_the_first_minutes_of_a_run_can_be_drawn(values: list[float | None], axis: str) -> None:
    curve = curves.thin(small_curve(relu=values, gelu=values))
    for figure in (
        figures.loss_figure(curve, axis, "t", LOOKS),
        figures.loss_figure(curves.smooth(curve), axis, "t", LOOKS),
        figures.difference_figure(curve, axis, "relu", LOOKS),
    ):
        figure.draw_without_rendering()
        named = {text.get_text() for text in figure.axes[0].texts}
        assert named == ({"relu", "gelu"} if any(values) else set())


def test_an_early_divergence_is_marked_at_the_edge() -> None:
    curve = small_curve(relu=[3.0 - 0.1 * i for i in range(20)], gelu=[3.0, None])
    axes: Any = figures.loss_figure(curve, "step", "t", LOOKS).axes[0]
    marks = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "x"]
    assert [axes.get_xlim()[0]] in marks


def test_limits_without_any_finite_value() -> None:
    curve = pl.DataFrame({"arm": ["a"], "step": [1], "mean": [None]}, schema_overrides={"mean": pl.Float64})
    assert draw.loss_limits(curve, "mean") is None


def line_ends(axes: Any) -> dict[str, float]:
    """{colour: last value} of the solid or dashed line of each arm."""
    return {line.get_color(): line.get_ydata()[-1] for line in axes.lines if line.get_linewidth() == 1.6}


def test_the_loss_picture_draws_the_means_and_names_every_arm(con: Any, plan: Plan) -> None:
    figure = figures.loss_figure(curves.over_seeds(curves.val_points(con, plan)), "tokens", "t", LOOKS)
    axes: Any = figure.axes[0]
    truth = {LOOKS[arm.name].color: sum(final_loss(arm, s) for s in range(3)) / 3 for arm in five_arms()}
    assert line_ends(axes) == pytest.approx(truth, abs=1e-5)
    assert {text.get_text() for text in axes.texts} == set(FFN)
    assert axes.get_xlabel() == "training tokens (millions)"
    assert "nats" in axes.get_ylabel()


def test_a_divergence_is_marked_in_the_arm_s_colour(con: Any, trouble: Plan) -> None:
    curve = curves.smooth(curves.train_curve(con, trouble))
    axes: Any = figures.loss_figure(curve, "step", "t", LOOKS).axes[0]
    marks = [(line.get_color(), list(line.get_xdata())) for line in axes.lines if line.get_marker() == "x"]
    assert [mark for mark in marks if mark[1]] == [(LOOKS["gelu"].color, [300])]


def test_the_difference_picture_has_zero_and_no_baseline_line(con: Any, plan: Plan) -> None:
    gap = curves.over_seeds(curves.minus_baseline(curves.val_points(con, plan), "relu"))
    axes: Any = figures.difference_figure(gap, "step", "relu", LOOKS).axes[0]
    assert line_ends(axes) == pytest.approx({LOOKS[a].color: offset for a, offset in FFN.items() if a != "relu"})
    assert axes.get_ylim()[0] < -0.035 and axes.get_ylim()[1] > 0


def test_the_final_picture_shows_every_seed_and_sorts_the_best_on_top(con: Any, plan: Plan) -> None:
    axes: Any = figures.final_figure(runs_frame(con, plan), LOOKS).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["swiglu", "geglu", "gelu", "relu", "silu"]
    dots = {line.get_color(): sorted(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"}
    assert dots == {LOOKS[a.name].color: sorted(final_loss(a, s) for s in range(3)) for a in five_arms()}


def test_the_forest_says_where_there_is_nothing(con: Any, trouble: Plan) -> None:
    axes: Any = figures.forest_figure(summary(con, trouble), 0.01, LOOKS).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["swiglu", "geglu", "gelu", "silu"]
    assert [text.get_text() for text in axes.texts] == ["nothing to compare"]


def test_the_flops_bars_add_up_to_the_forward_pass(con: Any, plan: Plan) -> None:
    shares = flops_shares(con, plan)
    axes: Any = figures.flops_figure(shares).axes[0]
    ends = {round(bar.get_y() + bar.get_height() / 2): bar.get_x() + bar.get_width() for bar in axes.patches}
    totals = shares.group_by("arm", maintain_order=True).agg(pl.col("flops_per_token").sum())["flops_per_token"]
    assert [ends[row] for row in range(5)] == pytest.approx((totals / 1000).to_list())
    assert axes.get_xlabel() == "kFLOPs per token"


def test_names_in_math_mode_do_not_break_a_picture(con: Any) -> None:
    plan = resolve_plan(con, "hostile")
    runs = runs_frame(con, plan)
    figure = figures.final_figure(runs, looks_for(runs["arm"].unique().to_list(), plan.baseline))
    figure.draw_without_rendering()
    assert any("frac" in label.get_text() for label in figure.axes[0].get_yticklabels())


def test_the_pareto_line_joins_what_no_other_beats(con: Any, plan: Plan) -> None:
    rows = summary(con, plan)
    for row, cost in zip(rows, (1e12, 2e12, 3e12, 4e12, 5e12), strict=True):
        row["train_flops"] = cost
    axes: Any = figures.pareto_figure(rows, "train_flops", "training compute", "FLOPs", LOOKS).axes[0]
    assert axes.get_xlabel() == "training compute (TFLOPs)"
    front = axes.lines[0]
    assert list(front.get_xdata()) == [1.0, 2.0, 4.0]  # silu is dearer and worse than gelu, geglu than swiglu


def test_rates_are_lines_with_crosses_where_runs_diverged() -> None:
    arms = [
        Arm(f"{kind} lr {lr}", 0.01 * i, ffn=kind, lr=lr)
        for kind in ("relu", "gelu")
        for i, lr in enumerate((1e-3, 2e-3))
    ]
    arms[3].diverges = {0: 300}
    builder = Builder().plan(arms)
    plan = resolve_plan(builder.con, "ffn_ablation")
    runs = runs_frame(builder.con, plan)
    builder.con.close()
    grids = rate_grids(runs)
    assert [(grid.name, [p.lr for p in grid.points]) for grid in grids] == [
        ("relu", [1e-3, 2e-3]),
        ("gelu", [1e-3, 2e-3]),
    ]
    assert [p.diverged for p in grids[1].points] == [0, 1]
    axes: Any = figures.rates_figure(grids, looks_for([arm.name for arm in arms], plan.baseline)).axes[0]
    assert axes.get_xscale() == "log"
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "x"] == [[], [2e-3]]


def test_of_too_many_names_as_many_are_written_as_there_is_room_for() -> None:
    with draw.canvas() as (figure, axes):
        axes.plot([0, 1], [0, 1])
        draw.label_ends(axes, [(f"arm {i}", 1.0, i / 99, LOOKS["relu"]) for i in range(100)])
        figure.draw_without_rendering()
    written = [text.get_text() for text in axes.texts]
    assert written[0] == "arm 0"
    assert written[-1] == "arm 99"
    assert 5 < len(written) < 40
