import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.draw import looks_for
from analysis.lint_sweep import lint
from analysis.pictures import pictures_for
from analysis.provenance import provenance
from analysis.report import ReportFiles, render, write_report
from analysis.report_text import COLUMNS, Appendix, latex, markdown
from analysis.select import resolve_plan
from analysis.table import summary
from tests.analysis.synthetic import Arm, Builder

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """Counts tags, collects attributes that could load something, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.links += [value for key, value in attrs if key in ("src", "href", "srcset", "action")]
        self.handlers += [key for key, _ in attrs if key.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def reports(con: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReportFiles]:
    out = tmp_path_factory.mktemp("reports")
    names = ("ffn_ablation", "trouble", "hostile", "stories", "waiting")
    return {name: write_report(con, resolve_plan(con, name), out / name) for name in names}


def page(reports: dict[str, ReportFiles], name: str) -> Page:
    return Page(reports[name].page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["ffn_ablation", "trouble", "hostile", "stories", "waiting"])
def test_the_page_loads_nothing_from_elsewhere(reports: dict[str, ReportFiles], name: str) -> None:
    found = page(reports, name)
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"url\((?!#)|@import|fetch\(", reports[name].page.read_text(encoding="utf-8"))
    assert found.tags["link"] == found.tags["iframe"] == 0


def test_it_reads_from_question_to_provenance(reports: dict[str, ReportFiles]) -> None:
    text = page(reports, "ffn_ablation").text
    order = [
        "Does a gated FFN help at equal parameters?",
        "Better than relu: swiglu (-0.0350)",
        "swiglu is better by -0.0350 [",
        "1.5517",
        "Results",
        "Curves and compute",
        "Warnings",
        "Provenance",
        "1f2e3d4c5b6a",
        "+x <= y",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_numbers_of_the_table_are_those_of_the_known_truth(reports: dict[str, ReportFiles]) -> None:
    text = page(reports, "ffn_ablation").text
    assert "-0.0350" in text and "-0.0310" in text and "12.3 TFLOPs" in text and "783,960 non-emb." in text
    assert "model.ffn relu → swiglu" in text


def test_names_cannot_inject(reports: dict[str, ReportFiles]) -> None:
    found = page(reports, "hostile")
    assert found.tags["script"] == 1
    assert found.tags["b"] == 0
    assert found.handlers == []
    assert "<script>alert(1)</script>" in found.text
    assert '<b>bold</b> & "so"' in found.text


def test_an_attribute_cannot_be_left() -> None:
    builder = Builder().plan([Arm('" onload="alert(1)'), Arm("b", ffn="gelu")], seeds=1)
    plan = resolve_plan(builder.con, "ffn_ablation")
    looks = looks_for(['" onload="alert(1)', "b"], plan.baseline)
    rows = summary(builder.con, plan)
    pictures = [p for p in pictures_for(builder.con, plan, looks, rows) if p.part == "results"]
    found = Page(render(builder.con, plan, looks, pictures, rows))
    builder.con.close()
    assert found.tags["svg"] == len(pictures) == 4
    assert found.handlers == []


def test_pictures_of_a_full_report(reports: dict[str, ReportFiles]) -> None:
    files = reports["ffn_ablation"]
    curves = [f"{kind}_{axis}" for kind in ("val_loss", "val_difference", "train_loss") for axis in
              ("step", "tokens", "flops", "wall_s")]  # fmt: skip
    log = {"val_loss_log_step", "train_loss_log_step", "train_runs"}
    expected = {"final", "difference", "position", "position_difference", "pareto_step_s", "flops", *curves, *log}
    assert {path.stem for path in files.images} == expected
    assert page(reports, "ffn_ablation").tags["svg"] == len(expected)
    for path in files.images:
        start = path.read_bytes()[:8]
        assert start == b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else start.startswith(b"<?xml")


def test_a_single_run_has_curves_and_no_comparison(reports: dict[str, ReportFiles]) -> None:
    stems = {path.stem for path in reports["stories"].images}
    assert {"final", "flops", "val_loss_step", "train_loss_wall_s"} <= stems
    assert not any("difference" in stem for stem in stems)
    assert "no baseline" in page(reports, "stories").text


def test_before_any_run_the_page_says_so(reports: dict[str, ReportFiles]) -> None:
    text = page(reports, "waiting").text
    assert "no answer" in text and "No run has finished yet." in text
    assert {path.stem for path in reports["waiting"].images} == {"flops"}


def test_troubles_are_announced_at_the_top_and_told_below(reports: dict[str, ReportFiles]) -> None:
    text = page(reports, "trouble").text
    assert text.index("8 warnings") < text.index("Results") < text.index("gelu seed 1 (diverged")
    assert "1 diverged" in text and "3 unfinished" in text and "1 failed" in text


def test_every_run_is_listed(reports: dict[str, ReportFiles]) -> None:
    html = reports["trouble"].page.read_text(encoding="utf-8")
    assert all(f'<td data-sort="badbad{n:06d}">' in html for n in range(15))


def test_the_same_record_gives_the_same_bytes_from_a_read_only_database(tmp_path: Path) -> None:
    path = tmp_path / "lab.duckdb"
    Builder(path).plan([Arm("a")], seeds=1).con.close()
    with duckdb.connect(str(path), read_only=True) as con:
        plan = resolve_plan(con, "ffn_ablation")
        first, second = write_report(con, plan, tmp_path / "1"), write_report(con, plan, tmp_path / "2")
    assert first.page.read_bytes() == second.page.read_bytes()
    for one, two in zip(first.images, second.images, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_importing_the_room_is_light_and_chooses_no_backend() -> None:
    code = (
        "import sys, analysis, analysis.select, analysis.lint_sweep, analysis.answer, analysis.flops\n"
        "assert not {'matplotlib', 'seaborn', 'pandas', 'duckdb', 'torch', 'jinja2'} & set(sys.modules)\n"
        "import matplotlib; before = matplotlib.rcParams._get('backend')\n"
        "import analysis.report\n"
        "assert matplotlib.rcParams._get('backend') == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_pointer_finds_values_and_no_two_pictures_share_an_id(reports: dict[str, ReportFiles]) -> None:
    html = reports["ffn_ablation"].page.read_text(encoding="utf-8")
    assert "<title>swiglu: -0.0350 (" in html
    assert "<title>geglu, step 600: 1.5207 (" in html
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids)) > 1000
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', html))
    assert used <= set(ids)


def test_failures_are_told_with_their_error(reports: dict[str, ReportFiles]) -> None:
    text = page(reports, "trouble").text
    assert "geglu seed 0: failed (oom) at step 200 of 600" in text and "boom" in text
    assert "Failures" not in page(reports, "ffn_ablation").text


@pytest.mark.parametrize("name", ["ffn_ablation", "hostile", "waiting", "trouble"])
def test_text_for_an_appendix(con: Any, tmp_path: Path, name: str) -> None:
    plan = resolve_plan(con, name)
    rows, findings, origin = summary(con, plan), lint(con, plan), provenance(con, plan)
    of = Appendix(plan, rows, findings, origin, [], [])
    text = markdown(of)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == len(rows) + 2
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "<script>" not in text
    tex = latex(of)
    assert tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [len(COLUMNS) - 1] * len(rows)
    assert not re.search(r"(?<!\\)[%#_]", body[0])


def test_the_appendix_has_its_pictures_beside_it(con: Any, tmp_path: Path) -> None:
    files = write_report(con, resolve_plan(con, "stories"), tmp_path, "md")
    assert files.page.name == "appendix.md"
    pictures = re.findall(r"\]\((figures/[^)]+)\)", files.page.read_text(encoding="utf-8"))
    assert pictures and all((tmp_path / picture).exists() for picture in pictures)
