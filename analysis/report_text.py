"""The report as text for the appendix of a paper: Markdown, or LaTeX with a booktabs table."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.answer import headline, judged, own, sentence, terms
from analysis.lint import Finding
from analysis.pictures import Picture
from analysis.provenance import Provenance, listed
from analysis.sections import Section, StoredPicture
from analysis.select import Plan
from analysis.table import number, with_interval
from analysis.told import Table
from analysis.units import si

Row = dict[str, Any]
Escape = Callable[[str], str]
SHOWN = ("results", "tokens")  # parts of the report whose pictures an appendix has room for

COLUMNS: dict[str, Callable[[Row], str]] = {
    "arm": lambda row: row["arm"],
    "n": lambda row: f"{row['done']}/{row['planned']}",
    "loss (nats)": lambda row: with_interval(row, "val_loss", ".4f"),
    "difference": lambda row: "baseline" if row["baseline"] else with_interval(row, "difference", "+.4f"),
    "%": lambda row: number(row["difference_percent"], "+.2f"),
    "p (Holm)": lambda row: number(row["p_holm"], ".2g"),
    "compute gain": lambda row: with_interval(row, "compute_gain", ".2f"),
    "parameters": lambda row: number(row["params"], ","),
    "FLOPs": lambda row: si(row["train_flops"]),
    "KV bytes": lambda row: number(row["kv_bytes_per_token"], ",.0f"),
    "tokens/s": lambda row: number(row["tokens_per_s"], ",.0f"),
    "verdict": lambda row: row["verdict"] or "",
}
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: "\\" + c for c in "&%$#_{}"
}
LATEX |= {
    "–": "--",
    "…": r"\dots{}",
    "→": r"$\to$",
    "−": "$-$",
    "[": "{[}",
    "\u00a0": "~",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "∝": r"$\propto$",
}


@dataclass(frozen=True)
class Appendix:
    """What a report tells in text: of a plan its rows, findings, origin, pictures, and the sections kept for it."""

    plan: Plan
    rows: list[Row]
    findings: list[Finding]
    origin: Provenance
    pictures: Sequence[Picture]
    sections: Sequence[Section]


def markdown(of: Appendix) -> str:
    """Question, verdict, table, pictures, sections, warnings, provenance."""
    plan, rows = of.plan, of.rows
    lines = [f"# {_md(plan.question or plan.sweep)}", "", f"**{_md(headline(rows))}**", ""]
    lines += [f"- {_md(sentence(row))}" for row in judged(rows)] + [""]
    lines += [_md(text) for text in (*own(rows), *terms(plan, rows))] + [""]
    lines += _md_table(list(COLUMNS), [[cell(row) for cell in COLUMNS.values()] for row in rows])
    lines += _md_pictures(p for p in of.pictures if p.part in SHOWN)
    lines += ["", _markdown_sections(of.sections), "## Warnings", ""]
    lines += [_md_finding(finding) for finding in of.findings] or ["None."]
    lines += ["", "## Provenance", "", *(f"- {_md(text)}" for text in _origin(plan, of.origin)), ""]
    return "\n".join(lines)


def markdown_of_table(table: Path, sections: Sequence[Section]) -> str:
    """All that was answered about somebody's table."""
    return f"# {_md(table.name)}\n\n{_md(str(table))}\n\n{_markdown_sections(sections)}"


def latex_of_table(table: Path, sections: Sequence[Section]) -> str:
    """The same for LaTeX."""
    return r"\section*{" + _tex(table.name) + "}\n" + _tex(str(table)) + "\n\n" + _latex_sections(sections)


def _markdown_sections(sections: Sequence[Section]) -> str:
    """Each with the call that made it."""
    lines: list[str] = []
    for section in sections:
        lines += [f"## {_md(section.title)}", "", f"    {' '.join(section.command.split())}", ""]
        for block in section.blocks:
            if isinstance(block, Table):
                lines += [*([_md(block.title), ""] if block.title else []), *_md_table(block.header, block.rows), ""]
            else:
                lines += [_md(block) if isinstance(block, str) else _md_finding(block), ""]
        lines += [*_md_pictures(section.pictures), ""]
    return "\n".join(lines)


def latex(of: Appendix) -> str:
    """The same for LaTeX: needs the packages booktabs and graphicx."""
    plan, rows = of.plan, of.rows
    lines = [r"\section*{" + _tex(plan.question or plan.sweep) + "}", r"\textbf{" + _tex(headline(rows)) + "}", ""]
    lines += [_tex(text) + "\n" for text in (*map(sentence, judged(rows)), *own(rows))]
    cells = [[cell(row) for cell in COLUMNS.values()] for row in rows]
    lines += _tex_table(list(COLUMNS), cells, " ".join(terms(plan, rows)))
    lines += _tex_pictures(p for p in of.pictures if p.part in SHOWN)
    lines += [_latex_sections(of.sections)]
    lines += _items("Warnings", [_said(finding) for finding in of.findings] or ["None."])
    return "\n".join(lines + _items("Provenance", _origin(plan, of.origin)))


def _latex_sections(sections: Sequence[Section]) -> str:
    """Each with the call that made it."""
    lines: list[str] = []
    for section in sections:
        lines += [r"\subsection*{" + _tex(section.title) + "}", r"\texttt{" + _tex(section.command) + "}", ""]
        for block in section.blocks:
            if isinstance(block, Table):
                lines += _tex_table(block.header, block.rows, block.title)
            else:
                lines += [_tex(block if isinstance(block, str) else _said(block)), ""]
        lines += _tex_pictures(section.pictures)
    return "\n".join(lines)


def _md_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(map(_md, header)) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(map(_md, row)) + " |" for row in rows),
    ]


def _md_pictures(pictures: Iterable[Picture | StoredPicture]) -> Iterator[str]:
    for picture in pictures:
        yield from ("", f"![{_md(picture.title)}](figures/{picture.name}.png)", "", _md(picture.caption))


def _md_finding(finding: Finding) -> str:
    return f"- {finding.level} `{finding.code}`: {' '.join(map(_md, finding.sentences))}"


def _tex_table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> list[str]:
    return [
        r"\begin{table}[h]",
        r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
        *([r"\caption{" + _tex(caption) + "}"] if caption else []),
        r"\resizebox{\textwidth}{!}{\begin{tabular}{l" + "r" * (len(header) - 2) + "l}",
        r"\toprule",
        " & ".join(map(_tex, header)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, row)) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
        "",
    ]


def _tex_pictures(pictures: Iterable[Picture | StoredPicture]) -> Iterator[str]:
    for picture in pictures:
        yield r"\begin{figure}[h]"
        yield (
            r"\centering\includegraphics[width=0.7\textwidth,height=0.8\textheight,keepaspectratio]{figures/"
            + picture.name
            + ".png}"
        )
        yield from (r"\caption{" + _tex(f"{picture.title}. {picture.caption}") + "}", r"\end{figure}", "")


def _said(finding: Finding) -> str:
    return f"{finding.level} ({finding.code}): {' '.join(finding.sentences)}"


def _items(title: str, texts: list[str]) -> list[str]:
    items = [r"\item " + _tex(text) for text in texts]
    return [r"\paragraph{" + title + "}", r"\begin{itemize}", *items, r"\end{itemize}", ""]


def _origin(plan: Plan, origin: Provenance) -> list[str]:
    code = "; ".join(f"{c['code_hash']}, git {c['git_sha'] or 'unknown'} ({c['runs']} runs)" for c in origin.code)
    return [
        f"plan {plan.name} {plan.plan_id}, planned {plan.created_at}",
        f"code {code or 'not recorded'}",
        f"data {listed(origin.data)}",
        f"seeds {', '.join(map(str, origin.seeds))}",
        f"hardware {listed(origin.hardware)}",
        f"numerics {listed(origin.numerics)}",
    ]


def _md(text: str) -> str:
    """One line in which nothing is markup."""
    line = " ".join(text.split())
    for mark in "\\`*_{}[]<>#|":
        line = line.replace(mark, "\\" + mark)
    return line


def _tex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text.replace("\n", " "))
