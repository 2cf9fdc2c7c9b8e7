"""IsoFLOP profiles: truth without noise, published exponents, the bias of parabolas, warnings."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis.allocate import allocate
from analysis.answer_isoflop import isoflop
from analysis.isoflop import line, parabola_bias, vertex
from analysis.ladder import Columns, ladder
from analysis.tables import TableError, read_table
from tests.analysis.ladders import TRUTH, public, surface
from tests.shared import case

# Coefficients of the surfaces of approach2_bias_expected.json, which gives their exponents.
COEFFICIENTS = {"symmetric": (400.0, 400.0), "chinchilla": (406.4, 410.7), "asymmetric": (406.4, 410.7)}
BUDGETS = 10.0 ** np.arange(17, 22)


def grid(truth: dict[str, float], width: float = 4.0, centre: float = 1.0, points: int = 15) -> pl.DataFrame:
    """Noise-free losses: `points` sizes per budget from centre/width to centre*width times the best N."""
    tables = []
    for flops in BUDGETS:
        n = allocate(truth, flops).n * centre * np.geomspace(1 / width, width, points)
        tables.append(pl.DataFrame({"n": n, "flops": [flops] * points, "loss": surface(n, flops / 6 / n, truth)}))
    return pl.concat(tables)


def test_a_parabola_gives_its_vertex_back() -> None:
    x = np.linspace(15, 22, 9)
    at, low, sd = vertex(x, 2 + 0.1 * (x - 18.3) ** 2) or (0, 0, 0)
    assert (at, low) == (pytest.approx(18.3), pytest.approx(2.0))  # type: ignore[comparison-overlap]
    assert sd == pytest.approx(0, abs=1e-6)
    assert vertex(x, -((x - 18) ** 2)) is None


def test_the_sd_of_a_vertex_is_that_of_repeated_experiments() -> None:
    generator, x = np.random.default_rng(0), np.linspace(-2, 2, 9)
    found = [vertex(x, 2 + 0.1 * x**2 + generator.normal(0, 0.01, 9)) or (0, 0, 0) for _ in range(400)]
    assert np.mean([sd for *_, sd in found if sd]) == pytest.approx(np.std([at for at, *_ in found]), rel=0.15)


def test_lines_have_student_intervals() -> None:
    generator, x, hits = np.random.default_rng(0), np.linspace(0, 10, 6), 0
    for _ in range(1000):
        found = line(x, 1 + 0.5 * x + generator.normal(0, 1, 6))
        hits += bool(found and found.slope_low <= 0.5 <= found.slope_high)
    assert hits == pytest.approx(950, abs=25)


@pytest.mark.parametrize("index", range(24))
def test_bias_of_parabolas_is_the_published_one(index: int) -> None:
    expected = case("approach2_bias_expected.json")[index]
    a, b = COEFFICIENTS[expected["surface"]]
    truth = {"E": 1.69, "A": a, "B": b, "alpha": expected["alpha"], "beta": expected["beta"]}
    # There the grid of D is centred at `center_scale` times the best D, so that of N at its inverse.
    table = grid(truth, expected["width"], 1 / expected["center_scale"])
    grids = [(c, np.log(table.filter(pl.col("flops") == c)["n"].to_numpy())) for c in BUDGETS]
    found = parabola_bias(truth, grids, 1e24)
    assert found["d_error_pct"] == pytest.approx(expected["rel_err_pct"], abs=5e-5)
    assert found["a_surface"] == pytest.approx(expected["a_true"])
    assert found["a_parabola"] == pytest.approx(expected["a_app2"], abs=1e-8)
    assert found["b_parabola"] == pytest.approx(expected["b_app2"], abs=1e-8)


def test_noise_free_profiles_give_exponent_and_bias() -> None:
    (group,) = isoflop(ladder(grid(TRUTH), Columns()), budgets=(1e24,))
    record = group.record()
    a = TRUTH["beta"] / (TRUTH["alpha"] + TRUTH["beta"])
    for method in ("parabola", "akima", "surface"):
        assert record["exponents"][method]["a"] == pytest.approx(a, abs=1e-3)
    bias, target = record["parabola_bias"][0], record["targets"][0]
    truth = allocate(TRUTH, 1e24)
    assert target["parabola"]["d"] / truth.d - 1 == pytest.approx(bias["d_error_pct"] / 100, abs=1e-6)
    assert target["surface"]["n"] == pytest.approx(truth.n, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"centre": 4.5}, "edge_minimum"),
        ({"centre": 2.5}, "off_centre"),
        ({"width": 1.8}, "narrow_grid"),
        ({"points": 3}, "few_points"),
    ],
)
def test_grids_that_mislead_are_warned_of(change: dict[str, Any], code: str) -> None:
    (group,) = isoflop(ladder(grid(TRUTH, **change), Columns()))
    assert code in [finding.code for finding in group.findings]
    (good,) = isoflop(ladder(grid(TRUTH), Columns()))
    assert code not in [finding.code for finding in good.findings]


def test_tables_without_profiles_say_so() -> None:
    with pytest.raises(TableError, match="three sizes"):
        isoflop(ladder(grid(TRUTH, points=2), Columns()))
    with pytest.raises(TableError, match="--n and --flops"):
        isoflop(ladder(grid(TRUTH).select("n", "loss"), Columns()))


def test_the_chain_of_porian_from_its_optima_to_four_digits() -> None:
    chain = {"owt2": [0.8635, 0.6985, 0.6032, 0.5743, 0.5185], "rw": [0.8353, 0.7065, 0.6020, 0.5715, 0.4969]}
    expected = case("scaling_expected.json")["porian2024"]["expected_a_published_ci95"]
    assert [values[0] for key, values in expected.items() if key.startswith("rw")] == chain["rw"]
    columns = Columns(n="n_star", flops="flops", loss="loss_star", sd="n_star_logstd")
    found = _chain(public("porian2024/optimal_points.csv"), columns, "points")
    for dataset, values in chain.items():
        assert found[dataset] == pytest.approx(values, abs=5.1e-5)


def test_the_chain_of_porian_from_its_runs_by_akima() -> None:
    columns = Columns(n="n", flops="flops", d="tokens", loss="loss")
    found = _chain(public("porian2024/isoflop_points.csv"), columns, "akima")
    # Recomputed values whose search grid is not recorded; an exact search moves them in the third digit.
    assert found["rw"] == pytest.approx([0.8348, 0.7003, 0.6055, 0.5715, 0.4970], abs=1.5e-3)


def _chain(path: Any, columns: Columns, method: str) -> dict[str, list[float]]:
    steps = [
        ("base", "long", "kaplan", "kaplan", "train"),
        ("base", "long", "kaplan", "standard", "val"),
        ("base", "short", "kaplan", "standard", "val"),
        ("base", "short", "chinchilla", "standard", "val"),
        ("tuned", "short", "const", "standard", "val"),
    ]
    names = ["dataset", "hparams", "warmup", "decay", "param_count", "loss_split"]
    frame = read_table(path)
    frame = frame.filter(pl.struct(names[1:]).is_in([dict(zip(names[1:], step, strict=True)) for step in steps]))
    groups = isoflop(ladder(frame, columns), names, resamples=0)
    found = {tuple(g.name.values()): g.record()["exponents"][method]["a"] for g in groups}
    return {dataset: [found[(dataset, *step)] for step in steps] for dataset in ("rw", "owt2")}
