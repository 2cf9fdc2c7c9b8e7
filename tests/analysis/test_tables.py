"""Tables as people write them: numbers, units, separators, broken rows, wrong names."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from analysis.fit import Spec, fit
from analysis.ladder import Columns, Rules, ladder
from analysis.tables import TableError, column, parse_numbers, parse_unit, read_table, where
from tests.analysis.ladders import TRUTH, runs


def write(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567", 1234567),
        ("1_000", 1000),
        ("125M", 125e6),
        ("1.3 B", 1.3e9),
        ("2e9", 2e9),
        ("6.9×10^21", 6.9e21),
        ("12 000", 12000),
        ("-3.5", -3.5),
        ("99999999999999999999", 1e20),
    ],
)
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert parse_numbers([text])[0] == pytest.approx(value)


def test_what_is_no_number_is_none_and_what_diverged_is_nan() -> None:
    found = parse_numbers(["", "n/a", None, "about 3", "nan", "diverged", "inf"])
    assert found[:4] == [None] * 4
    assert all(x is not None and np.isnan(x) for x in found[4:])


def test_decimal_commas_are_told_from_thousands() -> None:
    assert parse_numbers(["3,141", "2,718"]) == [3141.0, 2718.0]
    assert parse_numbers(["3,14", "2,718"]) == [3.14, 2.718]


@pytest.mark.parametrize("unit", ["M", "millions", "1e6", "MFLOPs"])
def test_units(unit: str) -> None:
    assert parse_unit(unit) == 1e6


@pytest.mark.parametrize("unit", ["", "parsec", "-1", "0", "inf"])
def test_units_that_are_none(unit: str) -> None:
    with pytest.raises(TableError, match="not a unit"):
        parse_unit(unit)


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolon", "json", "columns", "jsonl", "parquet", "spaces"])
def test_the_same_table_in_every_format(tmp_path: Path, kind: str) -> None:
    table = runs(12)
    path = tmp_path / {"semicolon": "t.csv", "columns": "t.json", "spaces": "t.txt"}.get(kind, f"t.{kind}")
    rows = table.to_dicts()
    if kind == "parquet":
        table.write_parquet(path)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "columns":
        path.write_text(json.dumps(table.to_dict(as_series=False)))
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "spaces":
        path.write_text("\n".join("  ".join(map(str, line)) for line in [table.columns, *table.rows()]))
    else:
        table.write_csv(path, separator={"csv": ",", "tsv": "\t", "semicolon": ";"}[kind])
    assert_frame_equal(read_table(path).select(table.columns), table)


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.csv", ""), ("t.csv", "n,d,loss\n"), ("t.json", "{"), ("t.json", "3"), ("t.parquet", "no"), ("t.json", "[]")],
)
def test_what_is_no_table_says_so(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(TableError):
        read_table(write(tmp_path, text, name))


def test_a_wrong_column_names_the_nearest() -> None:
    frame = pl.DataFrame({"Model Size": [1.0], "Training FLOP": [2.0], "loss": [3.0]})
    assert column(frame, "model_size") == "Model Size"
    with pytest.raises(TableError, match="did you mean 'Training FLOP'"):
        column(frame, "train_flop")
    with pytest.raises(TableError, match=r"'loss' \(--loss\) must hold numbers and has text such as 'low'"):
        ladder(pl.DataFrame({"n": [1.0], "d": [1.0], "loss": ["low"]}), Columns())


def test_conditions_are_sql_and_their_faults_are_told() -> None:
    frame = pl.DataFrame({"Model Size": [1.0, 2.0], "loss": [3.0, 6.0]})
    assert len(where(frame, 'loss < 5 AND "Model Size" > 0')) == 1
    for bad in ("loss <", "lossy < 5", "loss < 0"):
        with pytest.raises(TableError, match="--where"):
            where(frame, bad)


def test_units_in_names_are_read_and_said() -> None:
    table = runs(60)
    named = pl.DataFrame({"params (M)": table["n"] / 1e6, "tokens_B": table["d"] / 1e9, "loss": table["loss"]})
    rows = ladder(named, Columns(n="params (M)", d="tokens_B"))
    assert [finding.code for finding in rows.findings] == ["unit_from_name"] * 2
    assert fit(Spec(), rows.logs(), rows.loss).values["A"] == pytest.approx(TRUTH["A"], rel=0.4)
    told = ladder(named, Columns(n="params (M)", d="tokens_B", units={"n": "1", "d": "B"}))
    assert told.rows["n"].to_list() == pytest.approx((table["n"] / 1e6).to_list())
    assert told.findings == ()


def test_a_name_that_merely_ends_in_m_is_no_unit() -> None:
    table = runs(20)
    assert ladder(table.rename({"n": "size_m"}), Columns(n="size_m", d="d")).findings == ()


def test_tokens_follow_from_flops_beyond_the_end_of_64_bit_integers(tmp_path: Path) -> None:
    table = runs(20)
    lines = [f"{n:.0f},{6 * n * d:.0f},{loss}" for n, d, loss in table.rows()]
    rows = ladder(read_table(write(tmp_path, "\n".join(["n,flops,loss", *lines]))), Columns())
    assert rows.rows["c"].max() > 2**63  # type: ignore[operator]
    assert rows.rows["d"].to_list() == pytest.approx(table["d"].to_list(), rel=1e-6)


def test_rows_that_cannot_be_used_are_counted_by_reason() -> None:
    frame = pl.DataFrame(
        {
            "n": [1e8, 1e8, None, 1e8, 0.0, 1e8],
            "d": [1e9] * 6,
            "loss": [3.0, float("nan"), 3.0, -1.0, 3.0, None],
        }
    )
    rows = ladder(frame, Columns())
    assert len(rows.loss) == 1
    assert rows.left_out == {
        "diverged (loss not finite)": 1,
        "without N": 1,
        "loss not positive (its logarithm is fitted)": 1,
        "N not positive": 1,
        "without a loss": 1,
    }
    with pytest.raises(TableError, match="no row is usable: 2 loss not positive"):
        ladder(pl.DataFrame({"n": [1e8] * 2, "d": [1e9] * 2, "loss": [0.0, -1.0]}), Columns())


def test_rules_choose_rows() -> None:
    frame = pl.DataFrame(
        {"n": [1e8] * 4, "d": [1e9, 2e9, 1e9, 1e9], "loss": [3.0, 2.9, 3.1, 3.1], "run": ["a", "a", "b", "b"]}
    )
    columns = Columns(run="run")
    assert len(ladder(frame, columns, Rules(unique_rows=True)).loss) == 3
    assert ladder(frame, columns, Rules(final=True)).loss.tolist() == [2.9, 3.1]
    assert ladder(frame, columns, Rules(drop_highest=2)).loss.tolist() == [3.0, 2.9]
    assert ladder(frame, columns).clusters == [0, 0, 1, 1]
    assert ladder(frame, Columns()).clusters == [0, 0, 1, 1]  # a column called run is one
    assert len(set(ladder(frame.drop("run"), Columns()).clusters)) == 3  # two rows are copies
    with pytest.raises(TableError, match="--run"):
        ladder(frame.drop("run"), Columns(), Rules(final=True))
    with pytest.raises(TableError, match="leaves no row"):
        ladder(frame, columns, Rules(drop_highest=4))


def test_a_header_after_a_hash_and_letters_of_a_spreadsheet(tmp_path: Path) -> None:
    """numpy.savetxt writes '# a b'; a comment that is no header stays one."""
    (tmp_path / "t.csv").write_bytes("# made by hand\n# N,größe\n1,2\n3,4\n".encode("cp1252"))
    assert read_table(tmp_path / "t.csv").to_dict(as_series=False) == {"N": [1.0, 3.0], "größe": [2.0, 4.0]}
    (tmp_path / "u.csv").write_text("# a,b\nN,D\n1,2\n")
    assert read_table(tmp_path / "u.csv").columns == ["N", "D"]
