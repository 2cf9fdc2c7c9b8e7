"""The commands that answer questions from the database: verdict, compare, lint, report."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis import cli_fits
from results.console import HomeOption, JsonFlag, home_at, ingested, print_json, stdout

if TYPE_CHECKING:
    from analysis.report import Kind as ReportKind
    from analysis.report import ReportFiles
    from results.home import Home

app = typer.Typer()
app.add_typer(cli_fits.app)


class Kind(StrEnum):
    """What `lab report` writes."""

    html = "html"
    md = "md"
    latex = "latex"


@app.command()
def verdict(
    what: Annotated[str, typer.Argument(metavar="NAME|TABLE", help="A sweep, or a .csv .tsv .parquet .jsonl file.")],
    arm: Annotated[str | None, typer.Option(help="Table: column of the arm.")] = None,
    value: Annotated[str | None, typer.Option("--value", "--mean", help="Table: column of the loss.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Table: the arm to compare with.")] = None,
    seed: Annotated[str | None, typer.Option(help="Table: column of the seed, if arms share seeds.")] = None,
    run: Annotated[str | None, typer.Option(help="Table: column that names the run.")] = None,
    step: Annotated[str | None, typer.Option(help="Table: column of the training step.")] = None,
    final: Annotated[bool, typer.Option("--final", help="Table: take the last step of each run.")] = False,
    lr: Annotated[str | None, typer.Option(help="Table: column of the learning rate; the best of each arm.")] = None,
    cost: Annotated[str | None, typer.Option(help="Table: column of what a run cost.")] = None,
    price: Annotated[float, typer.Option(min=-1e30, max=1e30, help="Table: loss a unit of --cost is worth.")] = 0.0,
    sd_column: Annotated[str | None, typer.Option(help="Table of means: column of the sd over runs.")] = None,
    n: Annotated[str | None, typer.Option("--n", help="Table of means: column of the runs, or their number.")] = None,
    smallest_effect: Annotated[float | None, typer.Option(min=0, help="Table: smallest effect that matters.")] = None,
    higher_better: Annotated[bool, typer.Option("--higher-better", help="Table: more is better.")] = False,
    sd: Annotated[float | None, typer.Option(help="Noise floor: sd between seeds known from elsewhere.")] = None,
    sd_df: Annotated[float | None, typer.Option(help="Its degrees of freedom (inf: exactly known).")] = None,
    alpha: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Error rate of the whole table.")] = 0.05,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Better, worse, equivalent, inconclusive or invalid: each arm of a sweep, or of anyone's table."""
    from analysis import verdict_show
    from analysis.sources import is_file
    from analysis.verdict import Rules, VerdictError
    from analysis.verdict_table import Columns

    floor = verdict_show.floor_of(sd, sd_df)
    if not is_file(what):
        answer, tables, sentences = verdict_show.of_sweep(ingested(home), what, floor, alpha)
    elif arm is None or value is None or baseline is None:
        raise VerdictError("a table needs --arm COLUMN, --value COLUMN and --baseline ARM")
    else:
        columns = Columns(arm, value, seed, run, step, lr, cost, price, sd_column, n)
        rules = Rules(alpha, smallest_effect or None, floor, higher_better)
        answer, tables = verdict_show.of_table(Path(what), columns, baseline, rules, final)
        sentences = []
    if as_json:
        print_json(answer)
        return
    for table in tables:
        stdout().print(table)
    for sentence in sentences:
        print(sentence)


@app.command()
def compare(
    a: str,
    b: str,
    baseline: Annotated[str | None, typer.Option(help="A:ARM or B:ARM [default: the baseline of A].")] = None,
    sd: Annotated[float | None, typer.Option(help="Noise floor: sd between seeds known from elsewhere.")] = None,
    sd_df: Annotated[float | None, typer.Option(help="Its degrees of freedom (inf: exactly known).")] = None,
    alpha: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Error rate of the whole table.")] = 0.05,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The arms of two sweeps against one baseline, and what differs between the sweeps."""
    import results
    from analysis import verdict_show
    from analysis.answer import headline, judged, sentence
    from analysis.compare import compare as compare_plans
    from analysis.select import resolve_plan
    from analysis.table import verdict_tables

    with results.open(ingested(home)) as con:
        plans = resolve_plan(con, a), resolve_plan(con, b)
        found = compare_plans(con, *plans, baseline, verdict_show.floor_of(sd, sd_df), alpha)
    if as_json:
        print_json(found.answer)
        return
    for table in verdict_tables(found.rows):
        stdout().print(table)
    print(f"A is {plans[0].name}, B is {plans[1].name}. {headline(found.rows)}")
    for line in (*map(sentence, judged(found.rows)), *found.notes, *(f"differs: {text}" for text in found.differs)):
        print(line)


@app.command()
def report(
    name: str,
    out: Annotated[Path | None, typer.Option(help="Folder to write [default: reports/NAME/SCALE in the home].")] = None,
    kind: Annotated[Kind, typer.Option("--format", help="A page, or text for the appendix of a paper.")] = Kind.html,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Write the page (or the text) and the pictures of a sweep."""
    ingested(home)
    files = write(name, home_at(home), quiet=True, out=out, kind=kind.value)
    if as_json:
        print_json({kind.value: str(files.page), "images": [str(path) for path in files.images]})
    else:
        print(files.page)


def write(name: str, home: "Home", quiet: bool, out: Path | None = None, kind: "ReportKind" = "html") -> "ReportFiles":
    """Ingest, print the table of arms and the verdict, write the report."""
    import results
    from analysis.answer import headline
    from analysis.report import write_in_home
    from analysis.select import resolve_plan
    from analysis.table import summary, terminal_table
    from results.ingest import ingest as ingest_files

    ingest_files(home)
    with results.open(home) as con:
        plan = resolve_plan(con, name)
        if not quiet:
            rows = summary(con, plan)
            stdout().print(terminal_table(rows))
            print(f"verdict: {headline(rows)}")
        files = write_in_home(con, plan, home, out, kind)
    if not quiet:
        print(f"report: {files.page}")
    return files


def recommended(name: str, home: "Home", quiet: bool) -> list[dict[str, Any]]:
    """Ingest, and say which learning rate the trials of a search speak for."""
    from analysis import trials
    from results.ingest import ingest as ingest_files

    ingest_files(home)
    found = trials.recommended(home, name)
    for one in () if quiet else found:
        print(trials.sentence(one))
    return found


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
