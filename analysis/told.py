"""An answer as data, told alike by the terminal, a page and the appendix of a paper: lines, tables and findings."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.lint import Finding

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Table:
    """A heading per column, texts in rows, a title above."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]] = field(default_factory=list)
    title: str = ""


Block = str | Table | Finding


def number(value: Any, digits: int = 4) -> str:
    """Short, or a dash for None."""
    return "–" if value is None else f"{value:.{digits}g}"


def interval(ends: Sequence[float | None] | None) -> str:
    """[low, high]; an end that the data does not bound is a dash."""
    return "" if ends is None else f"[{number(ends[0])}, {number(ends[1])}]"


def sort_key(cell: str) -> str:
    """What a cell sorts by: the number at its beginning, where it has one, and "" for a dash."""
    found = re.match(r"[-+]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?", cell)
    return found[0].replace(",", "") if found else "" if cell == "–" else cell


def show(console: "Console", blocks: Iterable[Block]) -> None:
    """To the terminal."""
    from rich.table import Table as Grid

    for block in blocks:
        if isinstance(block, str):
            console.print(block)
        elif isinstance(block, Finding):
            console.print(f"{block.level}: {block.reason} ({block.code})")
            console.print(f"    {block.remedy}")
        else:
            drawn = Grid(*block.header, title=block.title or None, title_justify="left")
            for row in block.rows:
                drawn.add_row(*row)
            console.print(drawn)
