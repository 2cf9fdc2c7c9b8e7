"""The options that commands on tables of runs share, and what they mean."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import polars as pl

    from analysis.ladder import Columns, Ladder, Rules

Source = Annotated[str, typer.Argument(metavar="TABLE|NAME", help="A CSV, TSV, JSON or parquet file, or a sweep.")]
Column = str | None
NColumn = Annotated[Column, typer.Option("--n", help="Column of parameters [guessed from its name].")]
DColumn = Annotated[Column, typer.Option("--d", help="Column of training tokens [C / (6 N) where there is none].")]
FlopsColumn = Annotated[Column, typer.Option("--flops", help="Column of training FLOPs [6 N D where there is none].")]
LossColumn = Annotated[Column, typer.Option("--loss", help="Column of losses in nats.")]
RunColumn = Annotated[Column, typer.Option("--run", help="Column that says which run a row is from [run, run_id].")]
SeedColumn = Annotated[Column, typer.Option("--seed", help="Column of seeds [seed].")]
UniqueColumn = Annotated[Column, typer.Option("--unique", help="Column of unique tokens, for repeated data.")]
LrColumn = Annotated[Column, typer.Option("--lr", help="Column of learning rates.")]
UnitN = Annotated[str | None, typer.Option("--n-unit", help="What N counts in, such as M or 1e9.")]
UnitD = Annotated[str | None, typer.Option("--d-unit", help="What D counts in, such as B.")]
UnitC = Annotated[str | None, typer.Option("--flops-unit", help="What FLOPs count in, such as EFLOPs, PFdays.")]
Where = Annotated[str | None, typer.Option(help="SQL condition on rows, such as 'loss < 5'.")]
DropHighest = Annotated[int, typer.Option(min=0, help="Leave out that many of the highest losses.")]
UniqueRows = Annotated[bool, typer.Option("--unique-rows", help="Leave out exact copies of rows.")]
Final = Annotated[bool, typer.Option("--final", help="Keep the last row of each run.")]
PerPair = Annotated[float, typer.Option(min=1e-9, help="FLOPs per parameter and token.")]
Embeddings = Annotated[str | None, typer.Option(help="Whether N counts embeddings: in or out.")]
Plots = Annotated[Path | None, typer.Option(help="Folder for pictures (SVG and PNG).")]


def _a_title(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise typer.BadParameter("a title has letters")
    return text


SectionTitle = Annotated[
    str | None,
    typer.Option(
        "--section",
        metavar="TITLE",
        help="Add this, with pictures, to the sweep's report or the table's page.",
        callback=_a_title,
    ),
]
Group = Annotated[list[str] | None, typer.Option("--group", help="Column that splits the table; may be repeated.")]


@dataclass(frozen=True)
class Asked:
    """What is to be done with an answer about `source`: pictures into `plots`, a `section` of that title, or JSON."""

    source: str
    home: Path | None
    plots: Path | None
    section: str | None
    as_json: bool


def columns(**parts: Any) -> "Columns":
    """Columns from options; n_unit, d_unit, flops_unit are units."""
    from analysis.ladder import Columns

    units = {part: parts.pop(f"{part}_unit", None) for part in ("n", "d", "flops")}
    return Columns(**parts, units={part: unit for part, unit in units.items() if unit})


def rules(where: str | None, drop_highest: int, unique_rows: bool, final: bool, per_pair: float) -> "Rules":
    """Rules from options."""
    from analysis.ladder import Rules

    return Rules(where, drop_highest, unique_rows, final, per_pair)


def table_of(source: str, wanted: "Columns", home: Path | None) -> "tuple[pl.DataFrame, Columns]":
    """A file or a sweep as it is, and which of its columns are meant."""
    from analysis.sources import is_file, load
    from results.console import home_at, ingested

    if is_file(source):
        return load(source, wanted, home_at(home))
    try:
        return load(source, wanted, ingested(home))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no file {source!r}, and no sweep: {error}") from None


def ladder_of(source: str, wanted: "Columns", rules: "Rules", home: Path | None) -> "Ladder":
    """The usable rows of a file or a sweep."""
    from analysis.ladder import ladder

    return ladder(*table_of(source, wanted, home), rules)


def counts_embeddings(text: str | None) -> bool | None:
    """in, out or None. Raises typer.BadParameter for other words."""
    if text not in (None, "in", "out"):
        raise typer.BadParameter(f"{text!r}: say in or out", param_hint="--embeddings")
    return None if text is None else text == "in"


def sizes(texts: list[str]) -> dict[str, float]:
    """`["width=512"]` to {"width": 512.0}; width, n and d are known. Raises typer.BadParameter."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = 0.0
        if name not in ("width", "n", "d") or not 0 < found[name] < float("inf"):
            raise typer.BadParameter(f"{text!r}: say width=, n= or d= and a positive number", param_hint="--at")
    return found
