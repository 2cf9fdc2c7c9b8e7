"""Sections of a report: what a call answered, kept beside the report and shown in every format."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from analysis.lint import Finding
from analysis.pictures import Picture
from analysis.report import NAMES, write_report, write_sections
from analysis.sections import keep, kept, slug
from analysis.select import Plan
from analysis.told import Block, Table, sort_key

HOSTILE = '<script>alert("1")</script> | `x` $y_z$ & \\end{document}'
BLOCKS: list[Block] = [
    "L = 1.8 & more",
    Table(("name", "value"), [("alpha", "0.35"), (HOSTILE, "[0.1, –]")], "parameters"),
    Finding("one_seed", "warning", "There is one seed.", "Run more."),
]


def picture(name: str) -> Picture:
    figure = Figure(figsize=(2, 1))
    figure.add_subplot().plot([1, 2], [1, 2])
    return Picture(name, f"Title of {name}", f"Caption of {name}", figure)


def test_a_section_comes_back_as_it_was(tmp_path: Path) -> None:
    keep(tmp_path, "First", "lab fit t.csv", "0123", BLOCKS, [picture("curve")])
    section = kept(tmp_path, "0123")[0]
    assert (section.title, section.command, section.plan_id) == ("First", "lab fit t.csv", "0123")
    table = section.blocks[1]
    assert isinstance(table, Table) and [tuple(row) for row in table.rows] == list(BLOCKS[1].rows)  # type: ignore[union-attr]
    assert section.blocks[::2] == BLOCKS[::2]
    assert "<svg" in section.pictures[0].inline and "Title of curve" in section.pictures[0].inline


def test_the_same_title_replaces_and_of_another_plan_the_call_is_left(tmp_path: Path) -> None:
    for text in ("old", "new"):
        keep(tmp_path, "Title", "lab fit", "p1", [text], [])
    keep(tmp_path, "Other", "lab lr x", "p2", ["of another plan"], [picture("curve")])
    mine, other = sorted(kept(tmp_path, "p1"), key=lambda section: section.title, reverse=True)
    assert mine.blocks == ["new"]
    assert (other.command, other.pictures) == ("lab lr x", [])
    assert "plan p2, which is not the one shown" in str(other.blocks)


@pytest.mark.parametrize("title", ["../../etc/passwd", "a/b", "x" * 400, "\n\x00", "Größe: 5 µm", "", "CON"])
def test_no_title_leaves_the_folder(tmp_path: Path, title: str) -> None:
    folder = keep(tmp_path / "report", title, "lab fit", None, [], [])
    assert folder.resolve().parent == (tmp_path / "report" / "sections").resolve()
    assert kept(tmp_path / "report")[0].title == title
    assert re.fullmatch(r"[a-z0-9-]{6,60}", slug(title))
    assert slug(title) != slug(title + ".")


def test_a_damaged_section_harms_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(tmp_path, "Good", "lab fit", None, ["text"], [])
    for name, content in (("torn", '{"title": "T'), ("empty", "{}"), ("odd", '{"title": 1, "pictures": [3]}')):
        (tmp_path / "sections" / name).mkdir()
        (tmp_path / "sections" / name / "section.json").write_text(content)
    bare = keep(tmp_path, "Its picture is gone", "lab fit", None, ["text"], [picture("curve")])
    next(bare.glob("*.svg")).unlink()
    later = keep(tmp_path, "Of a later version", "lab fit", None, ["text"], []) / "section.json"
    later.write_text(later.read_text().replace('"format": 1', '"format": 2'))
    assert [section.title for section in kept(tmp_path)] == ["Good"]
    assert sum("cannot be read" in record.message for record in caplog.records) == 5
    assert write_sections(tmp_path / "t.csv", kept(tmp_path), tmp_path).page.is_file()


@pytest.mark.parametrize(
    ("cell", "key"),
    [("7.3e+10 [5.3e+10, 9e+10]", "7.3e+10"), ("1,234", "1234"), ("-0.5", "-0.5"), ("–", ""), ("75%", "75"),
     ("3.2 (edge)", "3.2"), ("relu", "relu"), ("", ""), (".5", ".5")],
)  # fmt: skip
def test_cells_sort_by_the_number_they_begin_with(cell: str, key: str) -> None:
    assert sort_key(cell) == key


def test_the_page_of_a_table_has_all_sections_in_every_format(tmp_path: Path) -> None:
    for title in ("First", HOSTILE):
        keep(tmp_path, title, f"lab fit {HOSTILE}", None, BLOCKS, [picture("curve")])
    files = write_sections(tmp_path / "<b>*runs*.csv", kept(tmp_path), tmp_path)
    page = files.page.read_text(encoding="utf-8")
    titles, commands, cells = 1, 2, 2 * 2  # a cell says it twice: for the eye, and to sort by
    assert "<script>alert" not in page and unescape(page).count(HOSTILE) == titles + commands + cells
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert len(files.images) == 4 and all(path.is_file() for path in files.images)
    text = (tmp_path / NAMES["md"]).read_text(encoding="utf-8")
    assert "| alpha | 0.35 |" in text and "There is one seed. Run more." in text and "<b>" not in text
    assert f"    lab fit {HOSTILE}\n" in text  # a block of code: a backtick stays one
    for name in re.findall(r"!\[[^\]]*\]\((.*?)\)", text):
        assert (tmp_path / name).is_file()
    tex = (tmp_path / NAMES["latex"]).read_text(encoding="utf-8")
    assert tex.count(r"\begin{tabular}") == 2 and HOSTILE not in tex and r"\end{document}" not in tex


def test_the_report_of_a_sweep_shows_its_sections(con: Any, plan: Plan, tmp_path: Path) -> None:
    keep(tmp_path, "Best rate by width", "lab lr ffn_ablation", plan.plan_id, BLOCKS, [picture("lr_curves")])
    sections = kept(tmp_path, plan.plan_id)
    page = write_report(con, plan, tmp_path, sections=sections).page.read_text(encoding="utf-8")
    assert page.index("Best rate by width") < page.index('id="curves"')
    assert (tmp_path / "figures" / f"{slug('Best rate by width')}-lr_curves.png").is_file()
    text = write_report(con, plan, tmp_path, "md", sections).page.read_text(encoding="utf-8")
    assert "## Best rate by width" in text
    assert "Best rate by width" in write_report(con, plan, tmp_path, "latex", sections).page.read_text(encoding="utf-8")
    bare = write_report(con, replace(plan), tmp_path / "bare").page.read_text(encoding="utf-8")
    assert "Best rate by width" not in bare
    assert json.loads((tmp_path / "sections" / slug("Best rate by width") / "section.json").read_text())["format"] == 1
