"""What a person sees of an account: parameters, FLOPs and bytes of models side by side; the device's peak."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from sweeps.show import quantity

Account = Mapping[str, Any]
Numbers = Mapping[str, float]


def account_table(found: Mapping[str, Account]) -> Table:
    """A column per model: parameters, FLOPs per token by component and convention, bytes of cache and training."""
    table = Table(title="FLOPs are per token of a full sequence; a multiply-add is 2", title_justify="left")
    table.add_column("")
    for name, account in found.items():
        table.add_column(f"{name} @ {account['context']}", justify="right")
    columns = list(found.values())

    def section(title: str, pick: Callable[[Account], Numbers], write: Callable[[float], str]) -> None:
        table.add_section()
        for key in dict.fromkeys(key for account in columns for key in pick(account)):
            table.add_row(f"{title}{key}", *(write(pick(account).get(key, 0)) for account in columns))

    section("parameters: ", lambda a: a["params"]["by_group"], _whole)
    section("parameters: ", lambda a: {k: v for k, v in a["params"].items() if k != "by_group"}, _whole)
    section("forward FLOPs: ", lambda a: a["forward_flops_per_token_by_component"], _whole)
    section("forward FLOPs, convention ", lambda a: a["forward_flops_per_token"], _whole)
    section("", _other_flops, _whole)
    section("", _cache, _whole)
    section("training holds: ", lambda a: a["memory_bytes"], _bytes)
    section("of the activations: ", lambda a: a["activation_bytes_by_component"], _bytes)
    table.caption = "; ".join(dict.fromkeys(_setting(account) for account in columns))
    table.caption_justify = "left"
    return table


def _other_flops(account: Account) -> Numbers:
    return {
        "backward FLOPs": sum(account["backward_flops_per_token_by_component"].values()),
        "training FLOPs": account["train_flops_per_token"],
        "decode FLOPs of the last token": account["decode_flops_per_token"],
    }


def _cache(account: Account) -> Numbers:
    return {"KV bytes per token (bf16)": account["kv_bytes_per_token"], "KV bytes of the context": account["kv_bytes"]}


def _setting(account: Account) -> str:
    return (
        f"training in {account['precision']} with a batch of {account['batch']} x {account['context']} tokens, "
        f"AdamW, {account['attention']} attention"
    )


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    return f"{quantity(value)}B"


def peak_lines(answer: Mapping[str, Any]) -> list[str]:
    """The measured peak, then one line per sweep and arm with the utilisation that its runs reached."""
    products = ", ".join(f"{quantity(speed)}FLOP/s in {name}" for name, speed in answer["flops_per_s"].items())
    lines = [
        f"measured peak of {answer['device']} with {answer['threads']} threads: {products}; "
        f"memory {quantity(answer['bytes_per_s'])}B/s"
    ]
    by_arm: dict[tuple[str, str, str], list[float]] = {}
    for run in answer["runs"]:
        by_arm.setdefault((run["sweep"] or "", run["arm"] or "", run["precision"]), []).append(run["mfu"])
    for (sweep, arm, precision), reached in by_arm.items():
        among = f"{min(reached):.1%} to {max(reached):.1%}" if len(reached) > 1 else f"{reached[0]:.1%}"
        lines.append(f"MFU of {sweep} {arm} in {precision}: {among} ({len(reached)} runs)")
    return lines if by_arm else [*lines, "no finished run was trained on this device with that many threads"]
