"""The commands about the record: runs, logs, ingest, sql, gc."""

from typing import Annotated

import typer

from results.console import HomeOption, JsonFlag, home_at, ingested, name_bad_files, print_json, print_rows

app = typer.Typer()


@app.command()
def runs(as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Every run of this home."""
    from results import views

    print_rows(views.runs(ingested(home)), as_json)


@app.command()
def logs(
    run: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    home: HomeOption = None,
) -> None:
    """What the newest attempt of a run printed."""
    from results import views

    for text in views.log(home_at(home), run, follow):
        print(text, end="", flush=True)


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

    place = home_at(home)
    place.must_exist()
    done = ingest_files(place, rebuild=rebuild)
    if as_json:
        print_json(asdict(done))
    else:
        print(f"{done.rows_new} new rows, {done.runs} runs, {done.seconds:.2f} s: {place.database}")
    name_bad_files(done.bad_files)
    raise typer.Exit(1 if strict and done.bad_files else 0)


@app.command()
def sql(query: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Query tables: plans, plan_runs, trials, runs, attempts, train, evals, positions, telemetry, decode, lengths."""
    from results.query import rows

    print_rows(rows(ingested(home), query), as_json)


@app.command()
def gc(
    run: Annotated[list[str] | None, typer.Argument(help="Runs, by the beginning of their ids [default: all].")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would go.")] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Delete checkpoints that nobody needs: of ended runs all but the newest good one and the best."""
    from results import garbage, views

    place = home_at(home)
    place.must_exist()
    found = garbage.garbage(place, [views.resolve(place, prefix) for prefix in run] if run else place.run_ids())
    freed = sum(item.bytes for item in found) if dry_run else garbage.delete(found)
    if as_json:
        items = [{"path": str(item.path), "bytes": item.bytes, "why": item.why} for item in found]
        print_json({"deleted": not dry_run, "bytes": freed, "items": items})
        return
    for item in found:
        print(f"{item.bytes:>14,} bytes  {item.path}  ({item.why})")
    print(f"{freed:,} bytes {'could be freed' if dry_run else 'freed'}, {len(found)} folders")
