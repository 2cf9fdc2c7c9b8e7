"""What a person sees of one run: what it is, what came out, and its attempts. Everything else is in --json."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from lmcore.config import ConfigError, read_config
from results.home import Home
from results.planned import at_scale
from results.shapes import misfit
from results.state import State
from sweeps import stored
from sweeps.show import STYLES, duration, empty_table, quantity, several

Facts = Mapping[str, Any]  # of `results.views.run`, or a part of it; files may say anything


def run_view(home: Home, told: Facts) -> RenderableType:
    """`told` by `results.views.run`, for eyes."""
    run_id, spec, state = told["run_id"], told["spec"], State(told["state"])
    lines = [
        Text(f"run {run_id}: {', '.join(_stands_for(home, run_id)) or 'in no plan'}", style="bold"),
        Text.assemble((state.value, STYLES.get(state, "")), f" at step {told['step']}", _why(told)),
        *map(Text, [*_result(told["done"] or {}), *_model(spec), *_settings(spec)]),
    ]
    steps = ", ".join(map(str, told["checkpoints"])) or "none"
    after = [Text(f"checkpoints: {steps}"), Text(f"folder: {told['folder']}")]
    return Group(*lines, *([_attempts(told["attempts"])] if told["attempts"] else []), *after)


def _stands_for(home: Home, run_id: str) -> Iterator[str]:
    """'arm seed 0 of sweep@scale' for each plan that has the run, the newest of a name alone."""
    names: dict[str, None] = {}
    for plan in stored.all_plans(home):
        for run in plan.runs:
            if run["run_id"] == run_id:
                names[
                    f"{run['arm']} seed {run['seed']} of {at_scale(plan.content['sweep'], plan.content['scale'])}"
                ] = None
    yield from names


def _why(told: Facts) -> str:
    return f": {' '.join(str(told['detail']).split())}" if told["detail"] else ""


def _result(done: Facts) -> Iterator[str]:
    losses = [f"{name} {_number(done, key, '.4f')}" for name, key in LOSSES.items() if _number(done, key)]
    if losses:
        yield ", ".join(losses)
    if all(_number(done, key) for key in ("wall_s", "tokens_per_s")):
        memory = _number(done, "peak_memory_bytes")
        most = f", {quantity(float(done['peak_memory_bytes']))}B of memory at most" if memory else ""
        yield f"trained for {duration(done['wall_s'])} at {quantity(done['tokens_per_s'])} tokens/s{most}"


LOSSES = {
    "validation loss": "val_loss",
    "perplexity": "val_perplexity",
    "bits per byte": "val_bits_per_byte",
    "training loss": "train_loss",
}


def _model(spec: Facts) -> Iterator[str]:
    account, data = spec.get("account"), spec.get("data")
    if misfit(account, ACCOUNT) is None and account:
        yield (
            f"{account['params']:,} parameters ({account['params_non_embedding']:,} non-embedding), "
            f"{quantity(account['flops_per_token'])} training FLOPs per token; {several(account['steps'], 'step')}, "
            f"{quantity(account['tokens'])} tokens, {quantity(account['train_flops'])} FLOPs"
        )
    if isinstance(data, dict):
        yield f"data: {data.get('name')}, tokenizer {data.get('tokenizer')}"


ACCOUNT = {
    **dict.fromkeys(("params", "params_non_embedding", "steps", "tokens"), int),
    **dict.fromkeys(("flops_per_token", "train_flops"), float),
}


def _settings(spec: Facts) -> Iterator[str]:
    """What the run sets to other values than the defaults."""
    try:
        identity = read_config(spec).identity()
    except (ConfigError, KeyError, TypeError) as error:
        yield f"its configuration cannot be read: {error}"
        return
    for section in ("model", "train"):
        words = ", ".join(f"{key} {value}" for key, value in identity.get(section, {}).items())
        yield f"{section}, where not default: {words or 'nothing'}"


def _attempts(attempts: Sequence[Facts]) -> RenderableType:
    rows = empty_table("", "attempt>", "host", "job", "code", "claimed", "from step>", "ended", "how")
    for attempt in attempts:
        claim, start, ended = (attempt[part] or {} for part in ("claim", "start", "exit"))
        how = ": ".join(str(ended[key]).splitlines()[0] for key in ("reason", "error") if ended.get(key))
        rows.add_row(
            str(attempt["attempt"]),
            *(_text(claim, key) for key in ("host", "job", "code_hash")),
            _text(claim, "claimed_at")[:19],
            _text(start, "resume_step"),
            _text(ended, "ended_at")[:19],
            Text(how[:80]),
        )
    return rows


def _text(facts: Facts, key: str) -> str:
    value = facts.get(key)
    return "" if value is None else " ".join(str(value).split())


def _number(facts: Facts, key: str, form: str = "") -> str:
    """A number that a file gives, "" for anything else."""
    value: Any = facts.get(key)
    return format(float(value), form) if misfit(value, float) is None else ""
