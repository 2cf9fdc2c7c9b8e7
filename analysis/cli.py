"""The commands that answer questions from the database: report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis import cli_fits
from results.console import HomeOption, JsonFlag, home_at, ingested, print_json, stdout

if TYPE_CHECKING:
    from analysis.report import ReportFiles
    from results.home import Home

app = typer.Typer()
app.add_typer(cli_fits.app)


@app.command()
def report(
    name: str,
    out: Annotated[Path | None, typer.Option(help="Folder to write [default: reports/NAME/SCALE in the home].")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Write the HTML page and the pictures of a sweep."""
    ingested(home)
    files = write(name, home_at(home), quiet=True, out=out)
    if as_json:
        print_json({"html": str(files.html), "images": [str(path) for path in files.images]})
    else:
        print(files.html)


def write(name: str, home: "Home", quiet: bool, out: Path | None = None) -> "ReportFiles":
    """Ingest, print the table of arms, write the report."""
    import results
    from analysis.report import write_report
    from analysis.select import resolve_plan
    from analysis.table import summary, terminal_table
    from results.ingest import ingest as ingest_files

    ingest_files(home)
    with results.open(home) as con:
        plan = resolve_plan(con, name)
        if not quiet:
            stdout().print(terminal_table(summary(con, plan)))
        files = write_report(con, plan, out or home.reports / plan.sweep / (plan.scale or ""))
    if not quiet:
        print(f"report: {files.html}")
    return files
