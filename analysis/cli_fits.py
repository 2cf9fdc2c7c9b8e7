"""The commands on tables of scaling runs: fit, isoflop, multiverse, lr, lint."""

import math
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis import fit_options as opt
from results.console import HomeOption, JsonFlag, home_at, print_json, stdout

if TYPE_CHECKING:
    from analysis.answer_lr import LrAnswer
    from analysis.pictures import Picture
    from analysis.told import Block

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
    section: opt.SectionTitle = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Fit L(N, D) = E + A/N^alpha + B/D^beta (or L(C), L(N, D, U)) to a table of runs, and say how far to trust it."""
    from analysis.answer_fit import Question, answer, make_spec
    from analysis.told_fit import fit_blocks

    wanted = opt.columns(
        n=n, d=d, flops=flops, loss=loss, unique=unique, run=run, seed=seed,
        n_unit=n_unit, d_unit=d_unit, flops_unit=flops_unit,
    )  # fmt: skip
    rows = opt.ladder_of(source, wanted, opt.rules(where, drop_highest, unique_rows, final, per_pair), home)
    spec = make_spec(rows, form, tie, fix or (), joint, delta)
    found = answer(rows, spec, Question(tuple(budget or ()), resamples, 0, opt.counts_embeddings(embeddings)))

    def draw() -> "list[Picture]":
        from analysis.fit_figures import fit_pictures

        return fit_pictures(found)

    _say(opt.Asked(source, home, plots, section, as_json), found.record(), fit_blocks(found), draw)


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
    section: opt.SectionTitle = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The best N at each budget by parabola, Akima spline and surface, their exponents, and the bias of parabolas."""
    from analysis.answer_isoflop import isoflop as answer
    from analysis.told_study import isoflop_blocks

    wanted = opt.columns(
        n=n, d=d, flops=flops, loss=loss, run=run, sd=sd, n_unit=n_unit, d_unit=d_unit, flops_unit=flops_unit
    )
    rows = opt.ladder_of(source, wanted, opt.rules(where, drop_highest, unique_rows, final, per_pair), home)
    groups = answer(rows, group or (), budget or (), opt.counts_embeddings(embeddings))
    records = [found.record() for found in groups]

    def draw() -> "list[Picture]":
        from analysis.lr_figures import isoflop_pictures

        return isoflop_pictures(groups)

    asked = opt.Asked(source, home, plots, section, as_json)
    _say(asked, records[0] if not group else {"groups": records}, isoflop_blocks(groups), draw)


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
    section: opt.SectionTitle = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The same fit under every defensible choice, as a specification curve."""
    from analysis.multiverse import Choices, multiverse_record
    from analysis.multiverse import multiverse as study
    from analysis.told_study import multiverse_blocks

    wanted = opt.columns(
        n=n, d=d, flops=flops, loss=loss, run=run, lr=lr, n_unit=n_unit, d_unit=d_unit, flops_unit=flops_unit
    )
    frame, meant = opt.table_of(source, wanted, home)
    choices = Choices(tuple(n_alt or ()), final=True, tokens_from_flops=True, best_lr=True)
    rules = opt.rules(where, drop_highest, unique_rows, False, per_pair)
    axes, found, target = study(frame, meant, rules, choices, budget, resamples)
    record = multiverse_record(axes, found, target)

    def draw() -> "list[Picture]":
        from analysis.lr_figures import multiverse_picture

        return [multiverse_picture(axes, found, name) for name in ("a", "E")]

    asked = opt.Asked(source, home, plots, section, as_json)
    _say(asked, record, multiverse_blocks(record["quantities"], found, target), draw)


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
    check: Annotated[
        str | None, typer.Option(metavar="TABLE|NAME", help="Runs of the size of --at, which the law has not seen.")
    ] = None,
    check_where: Annotated[str | None, typer.Option(help="--where for --check [default: the same].")] = None,
    seed: opt.SeedColumn = None,
    where: opt.Where = None,
    plots: opt.Plots = None,
    section: opt.SectionTitle = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The best learning rate with its interval, the LR sensitivity, and the law of the best LR over width, N and D."""
    from analysis.answer_lr import answer_lr, checked
    from analysis.ladder import Rules
    from analysis.told_study import lr_blocks

    wanted = opt.columns(lr=lr, loss=loss, n=n, d=d, width=width, seed=seed)

    def answer_of(what: str, where: str | None, sizes: dict[str, float]) -> "LrAnswer":
        frame, meant = opt.table_of(what, wanted, home)
        # A sweep knows its widths and its loss at initialisation.
        start = initial_loss or ("initial_loss" if "initial_loss" in frame.columns and meant is not wanted else None)
        return answer_lr(frame, meant, Rules(where=where), group or (), start, sizes)

    found = answer_of(source, where, opt.sizes(at or []))
    if check:
        found = checked(found, answer_of(check, check_where or where, {}))

    def draw() -> "list[Picture]":
        from analysis.lr_figures import lr_pictures

        return lr_pictures(found)

    _say(opt.Asked(source, home, plots, section, as_json), found.record(), lr_blocks(found), draw)


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
    from analysis.told import show

    wanted = opt.columns(n=n, d=d, flops=flops, loss=loss, unique=unique, run=run, seed=seed)
    found = answer_lint.lint(source, wanted, Rules(where=where), budget, opt.counts_embeddings(embeddings), home)
    if as_json:
        print_json({"warnings": [asdict(finding) for finding in found]})
    else:
        show(stdout(), found)


def _say(
    asked: opt.Asked, record: dict[str, Any], blocks: "Iterable[Block]", draw: "Callable[[], list[Picture]]"
) -> None:
    """The record as JSON, or its tables; and, where asked for, the pictures and the section of a report."""
    from analysis.told import show

    told, files = list(blocks), {}
    pictures = draw() if asked.plots or asked.section else []
    if asked.plots:
        files["images"] = [str(path) for picture in pictures for path in picture.save(asked.plots)]
    if asked.section:
        files |= _add_section(asked, told, pictures)
    if asked.as_json:
        print_json(_finite(record | files))
        return
    show(stdout(), told)
    for path in [*files.get("images", []), *files.get("report", [])]:
        print(path)


def _add_section(asked: opt.Asked, blocks: "list[Block]", pictures: "list[Picture]") -> dict[str, list[str]]:
    """To the report of the sweep, or to the page of the table, which is written anew."""
    import results
    from analysis.report import write_in_home, write_sections
    from analysis.sections import folder_of, keep, kept, slug
    from analysis.select import resolve_plan
    from analysis.sources import is_file

    home, command = home_at(asked.home), shlex.join(["lab", *sys.argv[1:]])
    if is_file(asked.source):
        path = Path(asked.source).resolve()
        folder = home.reports / slug(path.name, str(path))
        keep(folder, str(asked.section), command, None, blocks, pictures)
        return {"report": [str(write_sections(path, kept(folder), folder).page)]}
    with results.open(home) as con:
        plan = resolve_plan(con, asked.source)
        keep(folder_of(home, plan), str(asked.section), command, plan.plan_id, blocks, pictures)
        return {"report": [str(write_in_home(con, plan, home).page)]}


def _finite(value: Any) -> Any:
    """`value` with null for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
