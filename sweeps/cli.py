"""The commands about sweeps and models: status, show, cancel, generate, lengths, decode, export, flops."""

from typing import Annotated

import typer

from results.console import HomeOption, JsonFlag, home_at, print_json, print_rows, stdout

app = typer.Typer()

Sets = Annotated[list[str] | None, typer.Option("--set", help="Override, such as train.lr=3e-3; may be repeated.")]
ScaleOption = Annotated[str | None, typer.Option(help="One of the sweep's scales [default: the sweep's own].")]


@app.command()
def status(
    name: str,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep it on the screen, live, until Ctrl-C.")] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """The state of every run of a sweep (NAME, NAME@SCALE or NAME/PLAN)."""
    from sweeps import commands

    if watch and not as_json:
        from sweeps.monitor import monitor

        monitor(name, home_at(home), stdout())
        return
    answer = commands.status(name, home_at(home))
    print_json(answer) if as_json else stdout().print(commands.status_table(answer))


@app.command()
def show(
    run: str,
    reproduce: Annotated[bool, typer.Option(help="Print the command that trains this run again.")] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """One run: what it is, its attempts and how it ended (RUN may be the beginning of an id)."""
    from results import views

    place = home_at(home)
    if not reproduce:
        from sweeps.show_run import run_view

        told = views.run(place, run)
        print_json(told) if as_json else stdout().print(run_view(place, told))
        return
    from sweeps.rerun import commands

    answer = commands(place, place.run(views.resolve(place, run)))
    print_json(answer) if as_json else print("\n".join([*(f"# {n}" for n in answer["notes"]), *answer["commands"]]))


@app.command()
def failures(name: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """What went wrong in a sweep, grouped, with the last log lines and the command that tries again."""
    from sweeps.show import failure_lines
    from sweeps.triage import failures as find_failures

    found = find_failures(home_at(home), name)
    print_json(found) if as_json else print("\n".join(failure_lines(found)))


@app.command()
def doctor(as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Check python, torch, devices, SLURM, write access, space and clock; exit 1 when something must be mended."""
    from sweeps.doctor import examine

    found = examine(home_at(home))
    ok = all(finding.level != "fail" for finding in found)
    if as_json:
        print_json({"ok": ok, "checks": [vars(finding) for finding in found]})
    else:
        for f in found:
            print(f"{f.level:<4}  {f.check:<8}  {f.seen}" + (f": {f.remedy}" if f.remedy else ""))
    raise typer.Exit(0 if ok else 1)


@app.command()
def cancel(name: str, as_json: JsonFlag = False, home: HomeOption = None) -> None:
    """Stop a sweep or one run; each saves first, and `lab sweep` goes on from there."""
    from sweeps import commands, show

    asked = commands.cancel(name, home_at(home))
    print_json({"cancelled": asked}) if as_json else print(f"asked {show.several(len(asked), 'run')} to save and stop")


@app.command()
def coords(
    model: Annotated[str | None, typer.Argument(help="A known model, an experiment, or nothing with --set.")] = None,
    width: Annotated[list[int], typer.Option(min=1, help="d_model to try; may be repeated.")] = [64, 128, 256, 512],  # noqa: B006
    lr: Annotated[float, typer.Option(help="Learning rate at every width.")] = 3e-3,
    steps: Annotated[int, typer.Option(min=1, help="Updates before looking.")] = 4,
    seeds: Annotated[int, typer.Option(min=1)] = 2,
    set_: Sets = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Coordinate check: how each activation's change in the first updates grows with width (slope 0 is flat)."""
    from sweeps import commands

    print_rows(commands.coords(model, set_ or (), home_at(home), width, lr, steps, seeds), as_json)


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

    new = continuations(home_at(home), run, prompt, tokens, Sampling(temperature, top_k, top_p, seed))
    if as_json:
        print_json([{"prompt": text, "continuation": more} for text, more in zip(prompt, new, strict=True)])
    else:
        print("\n---\n".join(text + more for text, more in zip(prompt, new, strict=True)))


@app.command()
def lengths(
    name: str,
    context: Annotated[int, typer.Option(min=2, help="Tokens of a sequence, more than in training.")],
    scaling: Annotated[
        list[str] | None, typer.Option(help="none, linear, ntk or yarn; may be repeated [default: all].")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Measure how the models of a sweep do beyond their training length, RoPE as trained or stretched."""
    from lmcore.lengths import SCALINGS
    from sweeps.lengths import losses_beyond

    if unknown := set(scaling or ()) - set(SCALINGS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: not one of {', '.join(SCALINGS)}")
    wanted = [one for one in SCALINGS if not scaling or one in scaling]
    print_rows(losses_beyond(home_at(home), name, context, wanted), as_json)


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

    print_rows(commands.decode(name, home_at(home), batch, prompt, tokens), as_json)
