"""The report's telemetry section, from rows whose means are known."""

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.draw import looks_for
from analysis.report import write_report
from analysis.select import Plan, resolve_plan
from analysis.telemetry import MOST_LAYERS, QUANTITIES, few, means, telemetry_figure
from tests.analysis.synthetic import Arm, Builder

LAYERS, STEPS = 8, range(100, 601, 100)
GROUPS = ("attention", "embedding", "ffn", "head", "norms")


def value(name: str, layer: int, step: int, seed: int, shift: float) -> float:
    """A plausible course for the eye, linear in the seed, so that the mean of seeds 0, 1, 2 is seed 1."""
    course = {
        "activation_rms": 1 + 0.3 * layer + step / 800,
        "attention_max_logit": 3 + layer + step / 100,
        "attention_entropy": 3.2 - 0.2 * layer - step / 600,
        "log_normaliser": 4.3 + step / 2000,
    }
    return (1 + shift) * (1 + 0.02 * (seed - 1)) * course.get(name, 10 ** (-2 - len(name) % 3 / 3 - step / 900))


@pytest.fixture(scope="module")
def built() -> Any:
    builder = Builder().plan([Arm("relu"), Arm("gelu", -0.02, ffn="gelu"), Arm("swiglu", -0.04, ffn="swiglu")])
    runs = builder.con.execute("SELECT run_id, arm, seed FROM plan_runs").fetchall()
    names = [(name, layer) for name in QUANTITIES if name.startswith(("a", "b")) for layer in range(LAYERS)]
    names += [("log_normaliser", -1), *((f"update_ratio/{group}", -1) for group in GROUPS)]
    shifts = {"relu": 0.0, "gelu": 0.1, "swiglu": 0.3}
    rows = [
        (run_id, 1, step, name, layer, value(name, layer, step, seed, shifts[arm]))
        for run_id, arm, seed in runs
        for name, layer in names
        for step in STEPS
    ]
    builder.con.executemany("INSERT INTO telemetry_rows VALUES (?, ?, ?, ?, ?, ?)", rows)
    yield builder.con
    builder.con.close()


@pytest.fixture
def plan(built: Any) -> Plan:
    return resolve_plan(built, "ffn_ablation")


def test_means_are_over_seeds_and_finite_values(built: Any, plan: Plan) -> None:
    rows = {(r["quantity"], r["panel"], r["arm"], r["step"]): r["mean"] for r in means(built, plan).to_dicts()}
    assert len(rows) == 3 * len(STEPS) * (3 * LAYERS + 1 + len(GROUPS))
    assert rows["activation_rms", "layer 2", "relu", 400] == pytest.approx(2.1)
    assert rows["log_normaliser", "", "gelu", 200] == pytest.approx(1.1 * 4.4)
    assert rows["update_ratio", "head", "relu", 100] > 0
    assert not any(math.isnan(mean) for mean in rows.values())


def test_a_value_that_is_not_finite_is_left_out_of_the_mean() -> None:
    builder = Builder().plan([Arm("a")])
    for run_id, number in zip(("p1a2b3000000", "p1a2b3000001", "p1a2b3000002"), (1.0, math.nan, 3.0), strict=True):
        row = [run_id, 1, 5, "log_normaliser", -1, number]
        builder.con.execute("INSERT INTO telemetry_rows VALUES (?, ?, ?, ?, ?, ?)", row)
    assert means(builder.con, resolve_plan(builder.con, "ffn_ablation"))["mean"].to_list() == [2.0]
    builder.con.close()


def test_panels_share_one_scale_and_the_arms_their_looks(built: Any, plan: Plan) -> None:
    rows, looks = means(built, plan), looks_for(["relu", "gelu", "swiglu"], "relu")
    layers = telemetry_figure(rows.filter(quantity="activation_rms"), "activation_rms", looks)
    titles = [axes.get_title(loc="left") for axes in layers.axes if axes.get_visible()]
    assert len(titles) == MOST_LAYERS and (titles[0], titles[-1]) == ("layer 0", f"layer {LAYERS - 1}")
    assert len({axes.get_ylim() for axes in layers.axes}) == 1
    drawn = [[line.get_color() for line in axes.get_lines()] for axes in layers.axes]
    assert all(colors == [look.color for look in looks.values()] for colors in drawn)
    ratios = telemetry_figure(rows.filter(quantity="update_ratio"), "update_ratio", looks)
    shown = [axes for axes in ratios.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == list(GROUPS)
    assert {axes.get_yscale() for axes in shown} == {"log"}


def test_few_keeps_both_ends_and_the_order() -> None:
    assert few(["a", "b"], 6) == ["a", "b"]
    assert few([str(i) for i in range(32)], 4) == ["0", "10", "21", "31"]


def test_the_section_is_there_only_with_rows(built: Any, plan: Plan, con: Any, tmp_path: Path) -> None:
    files = write_report(built, plan, tmp_path / "with")
    html = files.page.read_text(encoding="utf-8")
    assert set(QUANTITIES) <= {path.stem for path in files.images}
    section = html[html.index('id="telemetry"') : html.index('id="warnings"')]
    assert section.count("<svg") == len(QUANTITIES)
    assert html.count("<svg") == len(files.images) // 2
    without = write_report(con, resolve_plan(con, "stories"), tmp_path / "without")
    assert 'id="telemetry"' not in without.page.read_text(encoding="utf-8")
