"""The report as text for the appendix of a paper: Markdown, or LaTeX with a booktabs table."""

from collections.abc import Callable, Sequence
from typing import Any

from analysis.answer import headline, judged, own, sentence, terms
from analysis.lint import Finding
from analysis.pictures import Picture
from analysis.provenance import Provenance, listed
from analysis.select import Plan
from analysis.table import number, with_interval
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
}


def markdown(
    plan: Plan, rows: list[Row], findings: list[Finding], origin: Provenance, pictures: Sequence[Picture]
) -> str:
    """Question, verdict, table, pictures, warnings, provenance."""
    lines = [f"# {_md(plan.question or plan.sweep)}", "", f"**{_md(headline(rows))}**", ""]
    lines += [f"- {_md(sentence(row))}" for row in judged(rows)] + [""]
    lines += [_md(text) for text in (*own(rows), *terms(plan, rows))] + [""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_md(cell(row)) for cell in COLUMNS.values()) + " |" for row in rows]
    for picture in pictures:
        if picture.part in SHOWN:
            lines += ["", f"![{_md(picture.title)}](figures/{picture.name}.png)", "", _md(picture.caption)]
    lines += ["", "## Warnings", ""]
    lines += [f"- {f.level} `{f.code}`: {_md(f.reason)}. {_md(f.remedy)}." for f in findings] or ["None."]
    lines += ["", "## Provenance", "", *(f"- {_md(text)}" for text in _origin(plan, origin)), ""]
    return "\n".join(lines)


def latex(plan: Plan, rows: list[Row], findings: list[Finding], origin: Provenance, pictures: Sequence[Picture]) -> str:
    """The same for LaTeX: needs the packages booktabs and graphicx."""
    lines = [r"\section*{" + _tex(plan.question or plan.sweep) + "}", r"\textbf{" + _tex(headline(rows)) + "}", ""]
    lines += [_tex(sentence(row)) + "\n" for row in judged(rows)]
    lines += [r"\begin{table}[h]", r"\centering\scriptsize\setlength{\tabcolsep}{3pt}"]
    lines += [r"\caption{" + _tex(" ".join((*own(rows), *terms(plan, rows)))) + "}"]
    lines += [r"\resizebox{\textwidth}{!}{\begin{tabular}{l" + "r" * (len(COLUMNS) - 2) + "l}", r"\toprule"]
    lines += [" & ".join(map(_tex, COLUMNS)) + r" \\", r"\midrule"]
    lines += [" & ".join(_tex(cell(row)) for cell in COLUMNS.values()) + r" \\" for row in rows]
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}", ""]
    for picture in pictures:
        if picture.part in SHOWN:
            lines += [
                r"\begin{figure}[h]",
                r"\centering\includegraphics[width=0.7\textwidth]{figures/" + picture.name + ".png}",
            ]
            lines += [r"\caption{" + _tex(f"{picture.title}. {picture.caption}") + "}", r"\end{figure}", ""]
    said = [f"{f.level} ({f.code}): {f.reason}. {f.remedy}." for f in findings]
    lines += _items("Warnings", said or ["None."]) + _items("Provenance", _origin(plan, origin))
    return "\n".join(lines)


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
    return "".join(LATEX.get(c, c) for c in " ".join(text.split(" ")).replace("\n", " "))
