"""`lab lint`: what to know before believing a table or a sweep."""

from pathlib import Path

import numpy as np

from analysis import fit_options as opt
from analysis.answer_fit import lint_ladder
from analysis.ladder import Columns, Ladder, Rules
from analysis.lint import Finding
from analysis.tables import TableError

LADDER = 2.0  # a sweep whose sizes differ by this factor asks about scale as well


def lint(
    source: str, wanted: Columns, rules: Rules, budget: float | None, embeddings: bool | None, home: Path | None
) -> list[Finding]:
    """Findings of a file as a table of scaling runs; of a sweep as an experiment, and as such a table if it is one."""
    from analysis.sources import is_file

    if is_file(source):
        return lint_ladder(opt.ladder_of(source, wanted, rules, home), budget, embeddings)
    found = _of_sweep(source, home)
    try:
        rows = opt.ladder_of(source, wanted, rules, home)
    except TableError:
        return found  # no run has finished: there is no table yet
    return [*found, *(lint_ladder(rows, budget, embeddings) if _is_ladder(rows) else ())]


def _of_sweep(name: str, home: Path | None) -> list[Finding]:
    import results
    from analysis import lint_sweep
    from analysis.select import resolve_plan
    from results.console import ingested

    with results.open(ingested(home)) as con:
        return lint_sweep.lint(con, resolve_plan(con, name))


def _is_ladder(rows: Ladder) -> bool:
    sizes = rows.logs().get("n")
    return sizes is not None and len(sizes) > 0 and float(np.ptp(sizes)) >= np.log(LADDER)
