"""The commands on tables of scaling runs: fit, isoflop, multiverse, lr."""

from typing import Annotated, Any

import typer

from analysis import fit_options as opt
from results.console import HomeOption, JsonFlag, print_json, stdout

app = typer.Typer()


@app.command()
def fit(
    source: opt.Source,
    n: opt.NColumn = None,
    d: opt.DColumn = None,
    flops: opt.FlopsColumn = None,
    loss: opt.LossColumn = None,
    unique: opt.UniqueColumn = None,
    run: opt.RunColumn = None,
    seed: opt.SeedColumn = None,
    n_unit: opt.UnitN = None,
    d_unit: opt.UnitD = None,
    flops_unit: opt.UnitC = None,
    where: opt.Where = None,
    drop_highest: opt.DropHighest = 0,
    unique_rows: opt.UniqueRows = False,
    final: opt.Final = False,
    per_pair: opt.PerPair = 6.0,
    form: Annotated[str | None, typer.Option(help="nd, n, d, c or ndu (repeated data) [by the columns].")] = None,
    tie: Annotated[bool, typer.Option("--tie", help="One exponent for N and D.")] = False,
    fix: Annotated[
        list[str] | None, typer.Option(help="Hold a parameter, such as alpha=0.34; may be repeated.")
    ] = None,
    joint: Annotated[
        bool, typer.Option("--joint", help="Repeated data: fit the surface together with R_D*, R_N*.")
    ] = False,
    delta: Annotated[float, typer.Option(help="Width of the Huber zone of log loss; inf is least squares.")] = 1e-3,
    budget: Annotated[list[float] | None, typer.Option(help="FLOPs to split best; may be repeated.")] = None,
    resamples: Annotated[int | None, typer.Option(min=0, help="Of the bootstrap [1000; 200 for ndu].")] = None,
    embeddings: opt.Embeddings = None,
    plots: opt.Plots = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Fit L(N, D) = E + A/N^alpha + B/D^beta (or L(C), L(N, D, U)) to a table of runs, and say how far to trust it."""
    from analysis.answer_fit import Question, answer, make_spec
    from analysis.print_fit import print_answer

    wanted = opt.columns(
        n=n, d=d, flops=flops, loss=loss, unique=unique, run=run, seed=seed,
        n_unit=n_unit, d_unit=d_unit, flops_unit=flops_unit,
    )  # fmt: skip
    rows = opt.ladder_of(source, wanted, opt.rules(where, drop_highest, unique_rows, final, per_pair), home)
    spec = make_spec(rows, form, tie, fix or (), joint, delta)
    found = answer(rows, spec, Question(tuple(budget or ()), resamples, 0, opt.counts_embeddings(embeddings)))
    if plots:
        from analysis.fit_figures import fit_pictures
    images = [path for picture in fit_pictures(found) for path in picture.save(plots)] if plots else []
    _say(found.record(), images, as_json, lambda: print_answer(stdout(), found))


def _say(record: dict[str, Any], images: list[Any], as_json: bool, show: Any) -> None:
    """The record as JSON, or the tables of `show` and the files written."""
    if as_json:
        print_json(record | ({"images": [str(path) for path in images]} if images else {}))
        return
    show()
    for path in images:
        print(path)
