"""The commands on tables of runs, as a user calls them: tables, JSON, pictures, sweeps, clear errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import cli
from analysis.answer_fit import Question, answer
from analysis.fit import Spec
from analysis.ladder import Columns, ladder
from analysis.sources import SWEEP_COLUMNS, sweep_table
from analysis.tables import TableError
from tests.analysis.ladders import TRUTH, runs, surface
from tests.analysis.synthetic import Arm, Builder
from tests.analysis.test_isoflop import grid
from tests.analysis.test_lr import sweep

PNG, SVG = b"\x89PNG", b"<?xml"


def lab(*arguments: object) -> str:
    done = CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def images(folder: Path) -> list[str]:
    for path in folder.iterdir():
        assert path.read_bytes().startswith(PNG if path.suffix == ".png" else SVG)
    return sorted(path.stem for path in folder.glob("*.png"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    runs(120, noise=0.003).write_csv(path)
    return path


def test_fit_prints_a_table_and_writes_pictures(table: Path, tmp_path: Path) -> None:
    told = lab("fit", table, "--resamples", 30, "--budget", "1e24", "--plots", tmp_path / "p")
    for word in ("alpha", "bootstrap", "optimum at a budget", "rolling extrapolation", "other widths", "one_seed"):
        assert word in told
    assert images(tmp_path / "p") == ["fit_extrapolation", "fit_profiles", "fit_residuals", "fit_surface"]


def test_fit_as_json_is_one_object(table: Path) -> None:
    record = json.loads(lab("fit", table, "--n", "n", "--d", "d", "--loss", "loss", "--resamples", 30, "--json"))
    for name, value in TRUTH.items():
        low, high = record["ci"][name]
        assert low <= record[name] <= high
        assert record[name] == pytest.approx(value, rel=0.5)
        assert record["identified"][name] is True
    assert {"a", "objective", "delta_sensitivity", "extrapolation", "lint", "starts_at_optimum"} <= record.keys()


def test_fit_forms_ties_and_filters(table: Path) -> None:
    common = ("--resamples", 0, "--json")
    tied = json.loads(lab("fit", table, "--tie", *common))
    assert tied["alpha"] == tied["beta"]
    held = json.loads(lab("fit", table, "--fix", "alpha=0.34", "--fix", "E=1.8", *common))
    assert (held["alpha"], held["fixed"]) == (0.34, {"alpha": 0.34, "E": 1.8})
    of_n = json.loads(lab("fit", table, "--form", "n", *common))
    assert of_n["equation"].startswith("L(N)")
    some = json.loads(lab("fit", table, "--where", "loss < 3", "--drop-highest", 2, *common))
    assert some["rows"] == runs(120, noise=0.003).filter(pl.col("loss") < 3).height - 2


def test_fit_of_compute_alone_predicts_the_loss_of_a_budget(tmp_path: Path) -> None:
    c = np.geomspace(1e17, 1e21, 25)
    pl.DataFrame({"compute": c, "loss": 1.7 + 900 * c**-0.16}).write_csv(tmp_path / "c.csv")
    record = json.loads(lab("fit", tmp_path / "c.csv", "--budget", "1e23", "--resamples", 20, "--json"))
    assert record["budgets"][0]["loss"] == pytest.approx(1.7 + 900 * 1e23**-0.16, rel=1e-4)


def test_isoflop_multiverse_lr_and_lint(tmp_path: Path) -> None:
    grid(TRUTH).write_csv(tmp_path / "iso.csv")
    sweep().write_csv(tmp_path / "lr.csv")
    runs(40).write_csv(tmp_path / "runs.csv")
    for command, file, options in (
        ("isoflop", "iso.csv", ("--budget", "1e24")),
        ("lr", "lr.csv", ("--width", "width", "--initial-loss", "start")),
        ("multiverse", "runs.csv", ("--resamples", 0)),
    ):
        told = lab(command, tmp_path / file, *options, "--plots", tmp_path / command)
        assert "95 %" in told
        record = json.loads(lab(command, tmp_path / file, *options, "--json"))
        assert record
    assert images(tmp_path / "isoflop") == ["isoflop_optimal_0", "isoflop_profiles_0"]
    assert images(tmp_path / "lr") == ["lr_curves", "lr_law"]
    assert images(tmp_path / "multiverse") == ["multiverse_E", "multiverse_a"]
    found = json.loads(lab("lint", tmp_path / "runs.csv", "--json"))["warnings"]
    assert {"code", "level", "reason", "remedy"} == set(found[0])


def test_a_law_is_checked_by_runs_of_a_size_it_has_not_seen(tmp_path: Path) -> None:
    whole = sweep()
    largest = float(whole["width"].to_list()[-1])
    whole.filter(pl.col("width") < largest).write_csv(tmp_path / "seen.csv")
    whole.filter(pl.col("width") == largest).write_csv(tmp_path / "unseen.csv")
    asked = ("lr", tmp_path / "seen.csv", "--width", "width", "--initial-loss", "start", "--at", f"width={largest}")
    checked = (*asked, "--check", tmp_path / "unseen.csv")
    told = lab(*checked, "--plots", tmp_path / "p")
    found = json.loads(lab(*checked, "--json"))["predicted"]
    means = whole.filter(pl.col("width") == largest).group_by("lr").agg(pl.col("loss").mean()).sort("loss")
    check = found["check"]
    assert (check["best_tested"], check["lowest"]) == pytest.approx(means.row(0))
    assert check["lr"] == pytest.approx(found["lr"], rel=0.5) and check["interior"]
    below, above = check["beside"]
    assert below["lr"] < found["lr"] < above["lr"]
    assert min(below["loss"], above["loss"]) <= check["at_most"] <= max(below["loss"], above["loss"])
    assert f"so at most {check['at_most']:.4f} at it" in told
    assert "check" not in json.loads(lab(*asked, "--json"))["predicted"]
    one = tmp_path / "one.csv"
    whole.write_csv(one)
    parts = ("--where", f"width<{largest}", "--check", one, "--check-where", f"width={largest}")
    assert json.loads(lab("lr", one, *asked[2:], *parts, "--json"))["predicted"]["check"] == check


def test_tables_of_one_name_have_a_page_each(tmp_path: Path) -> None:
    pages = set()
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        sweep().write_csv(tmp_path / place / "runs.csv")
        asked = (tmp_path / place / "runs.csv", "--width", "width", "--section", "Rates", "--json")
        pages |= set(json.loads(lab("lr", *asked, "--home", tmp_path / "home"))["report"])
    assert len(pages) == 2


def test_answers_about_one_table_stand_on_one_page(tmp_path: Path) -> None:
    grid(TRUTH).write_csv(tmp_path / "iso.csv")
    home, asked = tmp_path / "home", (tmp_path / "iso.csv", "--home", tmp_path / "home")
    told = lab("fit", *asked, "--resamples", 20, "--section", "Surface")
    lab("multiverse", *asked, "--resamples", 0, "--section", "How far choices move it")
    record = json.loads(lab("isoflop", *asked, "--section", "Profiles", "--json"))
    (page,) = record["report"]
    assert page in told and Path(page).is_relative_to(home / "reports")
    text = Path(page).read_text(encoding="utf-8")
    places = [text.index(f"<h2>{title}</h2>") for title in ("Surface", "How far choices move it", "Profiles")]
    assert places == sorted(places) and "alpha" in text and text.count("<svg") == 4 + 2 + 2
    assert not (home / "runs").exists()


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("n,d,loss\n1,2,3\n", ("fit",), "usable rows"),
        ("n,d,loss\n1,2,3\n", ("fit", "--loss", "los"), "did you mean 'loss'"),
        ("n,d,loss\n1,2,3\n", ("fit", "--where", "x <"), "--where"),
        ("", ("fit",), "no rows"),
        ("a,b\nx,y\n", ("isoflop",), "--loss"),
        ("lr,loss\n1e-3,3\n", ("lr", "--lr", "rate"), "the columns are lr, loss"),
        ("lr,loss,w\n1e-3,3,8\n", ("lr", "--width", "w", "--check", "gone.csv"), "gone.csv"),
        ("n,d,loss\n1,2,3\n", ("multiverse", "--n-unit", "x"), "not a unit"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, text: str, arguments: tuple[str, ...], message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    command = [sys.executable, "-m", "cli", arguments[0], str(path), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(cli.__file__).parent)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_file_and_a_missing_sweep_are_told(tmp_path: Path) -> None:
    for name, message in (("gone.csv", "gone.csv"), ("gone", "no file 'gone', and no sweep")):
        command = [sys.executable, "-m", "cli", "fit", name, "--home", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(cli.__file__).parent)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def scaled(builder: Builder) -> Any:
    """The runs of a plan with sizes, tokens and losses of a known surface; two of them diverge."""
    n, d = np.meshgrid(np.geomspace(1e6, 1e9, 5), np.geomspace(1e8, 1e11, 4))
    builder.plan([Arm(f"a{i}") for i in range(20)], sweep="ladder", plan_id="1adde0000000", seeds=1)
    ids = [row[0] for row in builder.con.sql("SELECT run_id FROM plan_runs ORDER BY ord").fetchall()]
    for run, size, tokens in zip(ids, n.ravel(), d.ravel(), strict=True):
        values = [int(size), int(tokens), float(surface(size, tokens)), run]
        builder.con.execute("UPDATE runs SET params = ?, tokens = ?, val_loss = ? WHERE run_id = ?", values)
    builder.con.execute("UPDATE runs SET state = 'DIVERGED' WHERE run_id IN (?, ?)", ids[:2])
    return builder.con


def test_a_sweep_of_the_database_is_a_table_too() -> None:
    con = scaled(Builder())
    frame = sweep_table(con, "ladder")
    assert {"params", "tokens", "val_loss", "train.lr", "model.d_model", "initial_loss"} <= set(frame.columns)
    rows = ladder(frame, SWEEP_COLUMNS)
    assert rows.left_out == {"diverged (loss not finite)": 2}
    found = answer(rows, Spec(), Question(resamples=20))
    assert found.fit.values["alpha"] == pytest.approx(TRUTH["alpha"], abs=0.01)
    assert found.boot is not None
    assert found.boot.clusters == 18
    con.execute("UPDATE runs SET state = 'RUNNING'")
    with pytest.raises(TableError, match="no run of ladder"):
        sweep_table(con, "ladder")


def test_columns_of_a_sweep_can_be_named_otherwise() -> None:
    frame = sweep_table(scaled(Builder()), "ladder")
    with pytest.raises(TableError, match="did you mean 'params'"):
        ladder(frame, Columns(n="param", d="tokens", loss="val_loss"))


@pytest.mark.parametrize("command", ["fit", "isoflop", "multiverse", "lint"])
@pytest.mark.parametrize("budget", ["-1", "0", "nan", "inf"])
def test_a_budget_is_a_number_of_flops(table: Path, command: str, budget: str) -> None:
    assert CliRunner().invoke(cli.app, [command, str(table), "--budget", budget]).exit_code == 2
