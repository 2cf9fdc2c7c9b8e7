"""The `lab` command. Each command is a few lines that call one function; heavy imports live inside commands."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from results.home import Home

app = typer.Typer(
    help="Ablation and scaling experiments for decoder-only language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Where results live [default: $LAB_HOME or ./lab-home].")
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.lr=3e-3; may be repeated.")]
ScaleOption = Annotated[str | None, typer.Option(help="One of the sweep's scales [default: the sweep's own].")]


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="An experiment's name, or the path of a sweep file.")],
    scale: ScaleOption = None,
    set_: Sets = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per arm [default: the sweep's own].")] = None,
    cluster: Annotated[str, typer.Option(help="local or slurm.")] = "local",
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Runs at once at most.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="SLURM option, such as partition=gpu or time=120.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Start the failed runs again.")] = False,
    take_over: Annotated[bool, typer.Option(help="Go on with runs whose worker elsewhere is dead.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only show the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the end and write the report.")] = True,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Plan an experiment, show what it costs, run what is missing, and report."""
    from sweeps import commands

    place, console = _home(home), _errors()
    asked = commands.SweepRequest(name, scale, set_ or (), seeds, cluster, jobs, slurm or (), retry_failed, take_over)
    plan, options = commands.plan_sweep(asked, place)
    if as_json and dry_run:
        _print_json(commands.plan_json(plan, options, place))
    else:
        commands.show_plan(plan, options, place, console if as_json else _stdout())
    if dry_run or not (yes or as_json or commands.confirmed(len(plan.runs))):
        return
    with commands.started(plan, options, place, console) as running:
        counts = running.wait() if wait else running.leave()
    if wait:
        _report(f"{plan.sweep}/{plan.plan_id}", place, quiet=as_json)
    if as_json:
        _print_json(commands.plan_json(plan, options, place) | {"counts": counts})
    raise typer.Exit(0 if not wait or commands.all_well(counts) else 1)


@app.command()
def status(name: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """The state of every run of a sweep (NAME, NAME@SCALE or NAME/PLAN)."""
    from sweeps import commands

    answer = commands.status(name, _home(home))
    _print_json(answer) if as_json else _stdout().print(commands.status_table(answer))


@app.command()
def runs(as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Every run of this home."""
    from results import views

    _rows(views.runs(_ingested(home)), as_json)


@app.command()
def show(run: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """One run: what it is, its attempts and how it ended (RUN may be the beginning of an id)."""
    from results import views

    _print_json(views.run(_home(home), run), indent=None if as_json else 2)


@app.command()
def logs(
    run: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    home: HomeOption = None,
) -> None:
    """What the newest attempt of a run printed."""
    from results import views

    for text in views.log(_home(home), run, follow):
        print(text, end="", flush=True)


@app.command()
def cancel(name: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Stop a sweep or one run; each saves first, and `lab sweep` goes on from there."""
    from sweeps import commands

    asked = commands.cancel(name, _home(home))
    _print_json({"cancelled": asked}) if as_json else print(f"asked {len(asked)} runs to save and stop")


@app.command()
def ingest(
    rebuild: Annotated[bool, typer.Option(help="Read every file again into a new database.")] = False,
    strict: Annotated[bool, typer.Option(help="Fail when a file could not be read.")] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Bring lab.duckdb up to date with the run folders."""
    from dataclasses import asdict

    from results.ingest import ingest as ingest_files

    done = ingest_files(_home(home), rebuild=rebuild)
    if as_json:
        _print_json(asdict(done))
    else:
        print(f"{done.rows_new} new rows, {done.runs} runs, {done.seconds:.2f} s: {_home(home).database}")
    _name_bad_files(done.bad_files)
    raise typer.Exit(1 if strict and done.bad_files else 0)


@app.command()
def sql(query: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Query the results database (tables: plans, plan_runs, runs, attempts, train, evals, telemetry, decode)."""
    from results.query import rows

    _rows(rows(_ingested(home), query), as_json)


@app.command()
def report(
    name: str,
    out: Annotated[Path | None, typer.Option(help="Folder to write [default: reports/NAME/SCALE in the home].")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Write the HTML page and the pictures of a sweep."""
    _ingested(home)
    files = _report(name, _home(home), quiet=True, out=out)
    if as_json:
        _print_json({"html": str(files.html), "images": [str(path) for path in files.images]})
    else:
        print(files.html)


@app.command()
def generate(
    run: str,
    prompt: Annotated[list[str], typer.Option(help="Text to continue; may be repeated.")],
    tokens: Annotated[int, typer.Option(min=1, help="New tokens.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the smallest set of this probability.")] = None,
    seed: int = 0,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Let the model of a run write on."""
    from lmcore.generate import Sampling
    from sweeps.sample import continuations

    new = continuations(_home(home), run, prompt, tokens, Sampling(temperature, top_k, top_p, seed))
    if as_json:
        _print_json([{"prompt": text, "continuation": more} for text, more in zip(prompt, new, strict=True)])
    else:
        print("\n---\n".join(text + more for text, more in zip(prompt, new, strict=True)))


@app.command()
def decode(
    name: str,
    batch: Annotated[list[int], typer.Option(min=1, help="Sequences at once; may be repeated.")] = [1, 8],  # noqa: B006
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 64,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens.")] = 64,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Measure what generating costs with the model of each arm of a sweep; stored beside the loss."""
    from sweeps import commands

    _rows(commands.decode(name, _home(home), batch, prompt, tokens), as_json)


@app.command()
def export(
    run: str,
    hf: Annotated[Path, typer.Option(help="Folder to write for transformers (safetensors).")],
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Write the model of a run for another library, and check its loss there."""
    from sweeps.sample import export as export_run

    done = export_run(_home(home), run, hf)
    if as_json:
        _print_json(done)
    else:
        here, there = done["val_loss"], done["val_loss_there"]
        print(f"{done['folder']}: {done['family']}, validation loss {here:.6f} here, {there:.6f} there")


@app.command()
def flops(
    model: Annotated[str | None, typer.Argument(help="A known model, an experiment, or nothing with --set.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence [default: the model's].")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences of a training step [default: train.batch].")
    ] = None,
    scale: ScaleOption = None,
    set_: Sets = None,
    peak: Annotated[
        bool, typer.Option("--peak", help="Measure this device, and show what recorded runs reach.")
    ] = False,
    plots: Annotated[Path | None, typer.Option(help="Folder for pictures: shares of components, roofline.")] = None,
    peak_flops: Annotated[float | None, typer.Option(help="FLOP/s for the roofline [default: measured].")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Bytes/s for the roofline [default: measured].")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Parameters, FLOPs by component and convention, KV bytes and training memory of a model."""
    from sweeps import commands
    from sweeps.show_account import account_table, peak_lines

    runs = commands.models(model, scale, set_ or (), _home(home))
    found, extra = commands.flops(runs, context, batch), dict[str, Any]()
    measured = plots is not None and (peak_flops is None or bandwidth is None)
    device = commands.peak(next(iter(runs.values())).train.threads, _home(home)) if peak or measured else {}
    if peak:
        extra["peak"] = device
    if plots is not None:
        images = _cost_pictures(runs, context, device, peak_flops, bandwidth, plots)
        extra["images"] = [str(path) for path in images]
    if as_json:
        _print_json((next(iter(found.values())) if len(found) == 1 else {"models": found}) | extra)
        return
    _stdout().print(account_table(found))
    for line in [*(peak_lines(device) if peak else ()), *extra.get("images", ())]:
        print(line)


def _cost_pictures(
    runs: dict[str, Any],
    context: int | None,
    device: dict[str, Any],
    peak_flops: float | None,
    bandwidth: float | None,
    folder: Path,
) -> list[Path]:
    """Draw and save; what was not given was measured."""
    from analysis.cost_figures import cost_pictures

    precision = next(iter(runs.values())).train.precision
    flops_per_s, bytes_per_s = peak_flops or device["flops_per_s"][precision], bandwidth or device["bytes_per_s"]
    models = {name: run.model for name, run in runs.items()}
    pictures = cost_pictures(models, context, flops_per_s, bytes_per_s, precision)
    return [path for picture in pictures for path in picture.save(folder)]


def _home(path: Path | None) -> "Home":
    from results.home import Home

    return Home(path)


def _ingested(path: Path | None) -> "Home":
    """The home with its database brought up to date; somebody else's, where we may not write, as it is."""
    import os

    from results.ingest import ingest as ingest_files

    home = _home(path)
    if os.access(home.path, os.W_OK) or not home.path.exists():
        _name_bad_files(ingest_files(home).bad_files)
    return home


def _report(name: str, home: "Home", quiet: bool, out: Path | None = None) -> Any:
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
            _stdout().print(terminal_table(summary(con, plan)))
        files = write_report(con, plan, out or home.reports / plan.sweep / (plan.scale or ""))
    if not quiet:
        print(f"report: {files.html}")
    return files


def _name_bad_files(bad: Any) -> None:
    for path, reason in bad:
        print(f"could not read {path}: {reason}", file=sys.stderr)


def _print_json(value: Any, indent: int | None = None) -> None:
    print(json.dumps(value, indent=indent, default=str, allow_nan=False))


def _rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A list of records, as a JSON list or as a table."""
    if as_json:
        _print_json(rows)
        return
    from rich.table import Table

    table = Table(*(rows[0] if rows else ["(no rows)"]))
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    _stdout().print(table)


def _cell(value: Any) -> str:
    """For eyes: six digits, and the beginning of long texts; --json gives all of it."""
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _stdout() -> "Console":
    from rich.console import Console

    # Piped, a table must not be folded to 80 columns.
    return Console(width=None if _is_terminal(sys.stdout) else 200, markup=False, highlight=False)


def _errors() -> "Console":
    from rich.console import Console

    width = None if _is_terminal(sys.stderr) else 200
    return Console(stderr=True, width=width, markup=False, highlight=False)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: closed by the caller


def _is_expected(error: Exception) -> bool:
    """Errors of use or of the surroundings, told in one line; anything else is a fault of ours and keeps its trace."""
    if isinstance(error, OSError):
        return True
    package = type(error).__module__.partition(".")[0].lstrip("_")
    return package in ("lmcore", "results", "sweeps", "analysis", "duckdb")


def main() -> None:
    """Entry point. Exit codes: 0 all well, 1 something failed, 2 wrong usage, 130 interrupted."""
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has left; there is nobody to tell
        sys.exit(1)
    except Exception as error:
        if not _is_expected(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        if "--json" in sys.argv:
            _print_json({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
