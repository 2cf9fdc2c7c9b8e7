"""The `lab` command. Each command is a few lines that call one function; heavy imports live inside commands.

The commands of one room are in its `cli` module; here are those that join rooms.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import analysis.cli
import results.cli
import sweeps.cli
from results.console import HomeOption, JsonFlag, home_at, ingested, print_json, stderr, stdout
from sweeps.cli import ScaleOption, Sets

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"lab {version('lab')}")
        raise typer.Exit


@app.callback()
def lab(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ablation and scaling experiments for decoder-only language models."""


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="An experiment's name, or the path of a sweep file.")],
    scale: ScaleOption = None,
    set_: Sets = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per arm [default: the sweep's own].")] = None,
    cluster: Annotated[str, typer.Option(help="local or slurm.")] = "local",
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Runs at once at most.")] = None,
    runs_per_gpu: Annotated[int | None, typer.Option(min=1, help="Runs that share a GPU at most.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="SLURM option, such as partition=gpu or time=120.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Start the failed runs again.")] = False,
    take_over: Annotated[bool, typer.Option(help="Go on with runs whose worker elsewhere is dead.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only show the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the end.")] = True,
    report: Annotated[bool, typer.Option(help="Write the report at the end.")] = True,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Plan an experiment, show what it costs, run what is missing, and report."""
    from sweeps import budget, commands, running

    place, console = home_at(home), stderr()
    asked = commands.SweepRequest(
        name, scale, set_ or (), seeds, cluster, jobs, slurm or (), retry_failed, take_over, runs_per_gpu
    )
    plan, options = commands.plan_sweep(asked, place)
    if as_json and dry_run:
        print_json(budget.plan_json(plan, options, place))
    else:
        budget.show_plan(plan, options, place, console if as_json else stdout())
    if dry_run or not (yes or as_json or commands.confirmed(budget.runs_at_most(plan))):
        return
    stage, counts = running.carry_out(plan, options, place, console, wait)
    if wait and report:
        analysis.cli.write(f"{stage.sweep}/{stage.plan_id}", place, quiet=as_json)
    if as_json:
        print_json(budget.plan_json(stage, options, place) | {"counts": counts})
    raise typer.Exit(0 if not wait or running.all_well(counts) else 1)


@app.command()
def search(
    name: Annotated[str, typer.Argument(help="A file or experiment whose search() returns a Search.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")],
    sampler: Annotated[str, typer.Option(help="tpe, random, grid, cmaes or gp.")] = "tpe",
    pruner: Annotated[str, typer.Option(help="none, median, asha or hyperband.")] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Of the sampler; runs keep their own.")] = 0,
    set_: Sets = None,
    cluster: Annotated[str, typer.Option(help="local or slurm.")] = "local",
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Trials at once at most.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="SLURM option, such as partition=gpu or time=120.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Start failed trials again.")] = False,
    take_over: Annotated[bool, typer.Option(help="Go on with trials whose worker elsewhere is dead.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only show the first asks and the budget.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before starting.")] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Search for settings of low validation loss; the same command continues a search that was stopped."""
    from sweeps.commands import SweepRequest, confirmed
    from sweeps.search_session import SearchRequest, Session

    place, console = home_at(home), stderr()
    how = SweepRequest(name, None, set_ or (), None, cluster, jobs, slurm or (), retry_failed, take_over)
    session = Session(SearchRequest(how, trials, sampler, pruner, seed), place)
    if as_json and dry_run:
        print_json(session.budget())
    else:
        session.show_budget(console if as_json else stdout())
    if dry_run or not (yes or as_json or confirmed(trials)):
        return
    found = session.run(console)
    if not as_json:
        session.show(found, stdout())
    best = analysis.cli.recommended(session.name, place, quiet=as_json)
    if as_json:
        print_json(session.answer(found) | {"recommended": best})
    raise typer.Exit(0 if session.complete(found) else 1)


for room in (sweeps.cli, results.cli, analysis.cli):
    app.add_typer(room.app)


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

    runs = commands.models(model, scale, set_ or (), home_at(home))
    found, extra = commands.flops(runs, context, batch), dict[str, Any]()
    measured = plots is not None and (peak_flops is None or bandwidth is None)
    device = commands.peak(next(iter(runs.values())).train.means.threads, home_at(home)) if peak or measured else {}
    if peak:
        extra["peak"] = device
    if plots is not None:
        images = _cost_pictures(runs, context, device, peak_flops, bandwidth, plots)
        extra["images"] = [str(path) for path in images]
    if as_json:
        print_json((next(iter(found.values())) if len(found) == 1 else {"models": found}) | extra)
        return
    stdout().print(account_table(found))
    for line in [*(peak_lines(device) if peak else ()), *extra.get("images", ())]:
        print(line)


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="A run by the beginning of its id; for curves also a sweep.")],
    hf: Annotated[Path | None, typer.Option(help="Folder to write the model for transformers (safetensors).")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for curves as TensorBoard event files.")] = None,
    wandb: Annotated[Path | None, typer.Option(help="Folder for curves as offline W&B runs (`wandb sync`).")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Write the model of a run for another library and check its loss there, or curves for another viewer."""
    if not (hf or tensorboard or wandb):
        raise typer.BadParameter("say what to write: --hf, --tensorboard or --wandb")
    place, done = home_at(home), dict[str, Any]()
    if hf:
        from sweeps.sample import export as export_model

        done |= export_model(place, name, hf)
    if tensorboard or wandb:
        done |= analysis.cli.export_curves(name, ingested(home), tensorboard, wandb)
    if as_json:
        print_json(done)
        return
    if hf:
        here, there = done["val_loss"], done["val_loss_there"]
        print(f"{done['folder']}: {done['family']}, validation loss {here:.6f} here, {there:.6f} there")
    print("\n".join([*done.get("tensorboard", ()), *done.get("wandb", ())]))


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

    precision = next(iter(runs.values())).train.means.precision
    flops_per_s, bytes_per_s = peak_flops or device["flops_per_s"][precision], bandwidth or device["bytes_per_s"]
    models = {name: run.model for name, run in runs.items()}
    pictures = cost_pictures(models, context, flops_per_s, bytes_per_s, precision)
    return [path for picture in pictures for path in picture.save(folder)]


def _is_expected(error: Exception) -> bool:
    """Errors of use or of the surroundings, told in one line; anything else is a fault of ours and keeps its trace."""
    if isinstance(error, OSError):
        return True
    package = type(error).__module__.partition(".")[0].lstrip("_")
    return package in ("lmcore", "results", "sweeps", "analysis", "duckdb")


def _as_full_disk(error: Exception) -> Exception:
    """The same in words that say what to do, if that is what it is and nobody has said so yet."""
    from results.files import StorageFull, full_disk_code

    code = full_disk_code(error)
    if code is None or isinstance(error, StorageFull):
        return error
    return StorageFull(Path(getattr(error, "filename", None) or Path.cwd()), None, code)


def main() -> None:
    """Entry point. Exit codes: 0 all well, 1 something failed, 2 wrong usage, 130 interrupted."""
    # Read when numpy is first imported: beside other work two of its threads can be ten times slower than one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has left; there is nobody to tell
        sys.exit(1)
    except Exception as error:
        error = _as_full_disk(error)
        if not _is_expected(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        if "--json" in sys.argv:
            print_json({"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
