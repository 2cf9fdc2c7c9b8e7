"""The commands on tables of scaling runs: fit, isoflop, multiverse, lr, lint."""

import math
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
    budget: Annotated[list[float] | None, typer.Option(min=1, max=1e60, help="FLOPs to split best.")] = None,
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
    images = []
    if plots:
        from analysis.fit_figures import fit_pictures

        images = [path for picture in fit_pictures(found) for path in picture.save(plots)]
    _say(found.record(), images, as_json, lambda: print_answer(stdout(), found))


@app.command()
def isoflop(
    source: opt.Source,
    n: opt.NColumn = None,
    d: opt.DColumn = None,
    flops: opt.FlopsColumn = None,
    loss: opt.LossColumn = None,
    run: opt.RunColumn = None,
    sd: Annotated[str | None, typer.Option(help="A table of optima: column of the sd of ln N*, for weights.")] = None,
    group: opt.Group = None,
    n_unit: opt.UnitN = None,
    d_unit: opt.UnitD = None,
    flops_unit: opt.UnitC = None,
    where: opt.Where = None,
    drop_highest: opt.DropHighest = 0,
    unique_rows: opt.UniqueRows = False,
    final: opt.Final = False,
    per_pair: opt.PerPair = 6.0,
    budget: Annotated[
        list[float] | None, typer.Option(min=1, max=1e60, help="FLOPs to reach [10 x the largest].")
    ] = None,
    embeddings: opt.Embeddings = None,
    plots: opt.Plots = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The best N at each budget by parabola, Akima spline and surface, their exponents, and the bias of parabolas."""
    from analysis.answer_isoflop import isoflop as answer
    from analysis.print_study import print_isoflop

    wanted = opt.columns(
        n=n, d=d, flops=flops, loss=loss, run=run, sd=sd, n_unit=n_unit, d_unit=d_unit, flops_unit=flops_unit
    )
    rows = opt.ladder_of(source, wanted, opt.rules(where, drop_highest, unique_rows, final, per_pair), home)
    groups = answer(rows, group or (), budget or (), opt.counts_embeddings(embeddings))
    images = []
    if plots:
        from analysis.lr_figures import isoflop_pictures

        images = [path for picture in isoflop_pictures(groups) for path in picture.save(plots)]
    records = [found.record() for found in groups]
    _say(records[0] if not group else {"groups": records}, images, as_json, lambda: print_isoflop(stdout(), groups))


@app.command()
def multiverse(
    source: opt.Source,
    n: opt.NColumn = None,
    d: opt.DColumn = None,
    flops: opt.FlopsColumn = None,
    loss: opt.LossColumn = None,
    run: opt.RunColumn = None,
    lr: opt.LrColumn = None,
    n_alt: Annotated[list[str] | None, typer.Option(help="Another column for N, such as without embeddings.")] = None,
    n_unit: opt.UnitN = None,
    d_unit: opt.UnitD = None,
    flops_unit: opt.UnitC = None,
    where: opt.Where = None,
    drop_highest: opt.DropHighest = 0,
    unique_rows: opt.UniqueRows = False,
    per_pair: opt.PerPair = 6.0,
    budget: Annotated[
        float | None, typer.Option(min=1, max=1e60, help="FLOPs of the optimum [10 x the largest].")
    ] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples of each fit.")] = 40,
    plots: opt.Plots = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The same fit under every defensible choice, as a specification curve."""
    from analysis.multiverse import Choices, multiverse_record
    from analysis.multiverse import multiverse as study
    from analysis.print_study import print_multiverse

    wanted = opt.columns(
        n=n, d=d, flops=flops, loss=loss, run=run, lr=lr, n_unit=n_unit, d_unit=d_unit, flops_unit=flops_unit
    )
    frame, meant = opt.table_of(source, wanted, home)
    choices = Choices(tuple(n_alt or ()), final=True, tokens_from_flops=True, best_lr=True)
    rules = opt.rules(where, drop_highest, unique_rows, False, per_pair)
    axes, found, target = study(frame, meant, rules, choices, budget, resamples)
    images = []
    if plots:
        from analysis.lr_figures import multiverse_picture

        images = [path for name in ("a", "E") for path in multiverse_picture(axes, found, name).save(plots)]
    record = multiverse_record(axes, found, target)
    _say(record, images, as_json, lambda: print_multiverse(stdout(), record["quantities"], found, target))


@app.command()
def lr(
    source: opt.Source,
    lr: opt.LrColumn = None,
    loss: opt.LossColumn = None,
    n: Annotated[str | None, typer.Option("--n", help="Column of parameters: a curve for each.")] = None,
    d: Annotated[str | None, typer.Option("--d", help="Column of training tokens: a curve for each.")] = None,
    width: Annotated[str | None, typer.Option("--width", help="Column of widths: a curve for each.")] = None,
    group: opt.Group = None,
    initial_loss: Annotated[str | None, typer.Option(help="Loss at initialisation: a number or a column.")] = None,
    at: Annotated[list[str] | None, typer.Option(help="A size to ask the law about, such as width=512.")] = None,
    seed: opt.SeedColumn = None,
    where: opt.Where = None,
    plots: opt.Plots = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The best learning rate with its interval, the LR sensitivity, and the law of the best LR over width, N and D."""
    from analysis.answer_lr import answer_lr
    from analysis.ladder import Rules
    from analysis.print_study import print_lr

    wanted = opt.columns(lr=lr, loss=loss, n=n, d=d, width=width, seed=seed)
    frame, meant = opt.table_of(source, wanted, home)
    # A sweep knows its widths and its loss at initialisation.
    start = initial_loss or ("initial_loss" if "initial_loss" in frame.columns and meant is not wanted else None)
    found = answer_lr(frame, meant, Rules(where=where), group or (), start, opt.sizes(at or []))
    images = []
    if plots:
        from analysis.lr_figures import lr_pictures

        images = [path for picture in lr_pictures(found) for path in picture.save(plots)]
    _say(found.record(), images, as_json, lambda: print_lr(stdout(), found))


@app.command()
def lint(
    source: opt.Source,
    n: opt.NColumn = None,
    d: opt.DColumn = None,
    flops: opt.FlopsColumn = None,
    loss: opt.LossColumn = None,
    unique: opt.UniqueColumn = None,
    run: opt.RunColumn = None,
    seed: opt.SeedColumn = None,
    where: opt.Where = None,
    budget: Annotated[float | None, typer.Option(min=1, max=1e60, help="The FLOPs you ask about.")] = None,
    embeddings: opt.Embeddings = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """What to know before believing a sweep's numbers, or a table of scaling runs: each with what to do about it."""
    from dataclasses import asdict

    from analysis import answer_lint
    from analysis.ladder import Rules
    from analysis.print_fit import print_findings

    wanted = opt.columns(n=n, d=d, flops=flops, loss=loss, unique=unique, run=run, seed=seed)
    found = answer_lint.lint(source, wanted, Rules(where=where), budget, opt.counts_embeddings(embeddings), home)
    if as_json:
        print_json({"warnings": [asdict(finding) for finding in found]})
    else:
        print_findings(stdout(), found)


def _say(record: dict[str, Any], images: list[Any], as_json: bool, show: Any) -> None:
    """The record as JSON, or the tables of `show` and the files written."""
    if as_json:
        print_json(_finite(record | ({"images": [str(path) for path in images]} if images else {})))
        return
    show()
    for path in images:
        print(path)


def _finite(value: Any) -> Any:
    """`value` with null for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
