"""Loss by position, from rows whose means are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.draw import looks_for
from analysis.positions import final_losses, longer_figure, longer_losses, minus_baseline, over_seeds, position_figure
from analysis.report import write_report
from analysis.select import Plan, resolve_plan
from tests.analysis.synthetic import CONTEXT, POSITIONS, STEPS, Arm, Builder, val_loss


def test_it_is_the_last_evaluation_of_runs_that_are_done(con: Any, trouble: Plan) -> None:
    states = con.execute("SELECT state FROM plan_runs JOIN runs USING (run_id) WHERE plan_id = ?", [trouble.plan_id])
    found_states = [state for (state,) in states.fetchall()]
    found = final_losses(con, trouble)
    assert 0 < found_states.count("DONE") < len(found_states)
    assert len(found) == found_states.count("DONE") * len(POSITIONS)


def test_means_and_extremes_are_over_seeds(con: Any, plan: Plan) -> None:
    rows = {(row["arm"], row["start"]): row for row in over_seeds(final_losses(con, plan)).to_dicts()}
    losses = [val_loss(Arm("gelu", -0.004), seed, STEPS) for seed in range(3)]
    row = rows["gelu", 2]
    assert (row["stop"], row["n"]) == (4, 3)
    assert row["mean"] == pytest.approx(sum(losses) / 3 + 0.5)
    assert (row["low"], row["high"]) == (pytest.approx(min(losses) + 0.5), pytest.approx(max(losses) + 0.5))


def test_the_difference_is_paired_by_seed(con: Any, plan: Plan) -> None:
    gap = over_seeds(minus_baseline(final_losses(con, plan), "relu"))
    assert set(gap["arm"]) == {"gelu", "silu", "swiglu", "geglu"}
    each = [val_loss(Arm("swiglu", -0.035), s, STEPS) - val_loss(Arm("relu"), s, STEPS) for s in range(3)]
    row = gap.filter(arm="swiglu", start=64).to_dicts()[0]
    assert (row["low"], row["high"]) == (pytest.approx(min(each)), pytest.approx(max(each)))


def test_an_arm_evaluated_on_other_sequences_is_not_subtracted(tmp_path: Path) -> None:
    builder = Builder().plan([Arm("a"), Arm("b"), Arm("c", fingerprint="another")])
    plan = resolve_plan(builder.con, "ffn_ablation")
    losses = final_losses(builder.con, plan)
    assert set(minus_baseline(losses, "a")["arm"]) == {"b"} and set(losses["arm"]) == {"a", "b", "c"}
    page = write_report(builder.con, plan, tmp_path).page.read_text(encoding="utf-8")
    assert "Evaluated on other sequences, and left out: c." in page
    builder.con.close()


def test_arms_keep_their_looks_and_a_pointer_finds_the_values(con: Any, plan: Plan) -> None:
    looks = looks_for(["relu", "gelu"], "relu")
    figure = position_figure(over_seeds(final_losses(con, plan)), "By position", looks)
    colors = {line.get_color() for line in figure.axes[0].get_lines() if line.get_linewidth() == 1.6}
    assert colors == {look.color for look in looks.values()}
    told = [str(line.get_gid()) for line in figure.axes[0].get_lines() if line.get_gid()]
    assert len(told) == 2 * len(POSITIONS) and any("3 to 4 tokens of context" in text for text in told)


def test_the_report_has_both_pictures_and_none_without_rows(con: Any, plan: Plan, tmp_path: Path) -> None:
    names = {path.stem for path in write_report(con, plan, tmp_path / "with").images}
    assert {"position", "position_difference"} <= names
    old = Builder().plan([Arm("a"), Arm("b")])
    old.con.execute("DELETE FROM position_rows")
    names = {path.stem for path in write_report(old.con, resolve_plan(old.con, "ffn_ablation"), tmp_path / "no").images}
    assert not names & {"position", "position_difference"}
    old.con.close()


def test_longer_sequences_are_drawn_by_arm_and_scaling_with_the_end_of_training(tmp_path: Path) -> None:
    builder = Builder().plan([Arm("a"), Arm("b"), Arm("c", fails={0: "code", 1: "code", 2: "code"})], seeds=3)
    for context in (256, 512):  # the longest counts
        builder.con.execute(
            "INSERT INTO lengths SELECT run_id, ?, s, start, 2 * start, 1.5 + seed + ?, '' FROM plan_runs, "
            "unnest(['none', 'linear']) t(s), unnest([64, 128, 256]) u(start) WHERE s = 'none' OR arm = 'a'",
            [context, context / 512],
        )
    plan = resolve_plan(builder.con, "ffn_ablation")
    losses = longer_losses(builder.con, plan)
    assert set(losses["context"]) == {512} and set(losses["arm"]) == {"a", "b"}
    assert losses.filter(arm="b")["loss"].to_list() == [2.5] * 3 + [3.5] * 3 + [4.5] * 3
    figure = longer_figure(losses, "Longer", looks_for(["a", "b"], "a"))
    told = [str(line.get_gid()) for line in figure.axes[0].get_lines() if line.get_gid()]
    assert [sum(text.startswith(f"tip:{name},") for text in told) for name in ("a", "a, linear", "b")] == [6, 3, 3]
    assert any(np.all(np.asarray(line.get_xdata()) == CONTEXT) for line in figure.axes[0].get_lines())
    page = write_report(builder.con, plan, tmp_path).page.read_text(encoding="utf-8")
    assert "Loss beyond the training length" in page and "Not measured: c." in page
    builder.con.close()
