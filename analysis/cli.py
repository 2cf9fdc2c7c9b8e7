"""The commands that answer questions from the database: report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from results.console import HomeOption, JsonFlag, home_at, ingested, print_json, stdout

if TYPE_CHECKING:
    from analysis.report import ReportFiles
    from results.home import Home

app = typer.Typer()


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


def export_curves(name: str, home: "Home", tensorboard: Path | None, wandb: Path | None) -> dict[str, list[str]]:
    """Write curves of a run or of all runs of a sweep; returns the folders by viewer."""
    import results
    from analysis import export

    done: dict[str, list[str]] = {}
    with results.open(home) as con:
        runs = export.runs_named(con, name)
        if tensorboard:
            done["tensorboard"] = [str(path) for path in export.to_tensorboard(con, runs, tensorboard)]
        if wandb:
            done["wandb"] = [str(path) for path in export.to_wandb(con, runs, wandb, name.partition("/")[0])]
    return done
