"""The table of every setting in docs/switches.md, written from the config classes themselves.

`python -m lmcore.switches > docs/switches.md` renews it; a test holds that it is up to date.
"""

from typing import Any, Literal, get_args, get_origin

from lmcore.config import HAS_EFFECT_WITH, Config, DataConfig, ModelConfig, TrainConfig

INTRODUCTION = """# Every switch

Written by `python -m lmcore.switches`; a test holds that it is what the code says. Set them in an arm
(`{"model.ffn": "relu"}`) or from the shell (`--set model.ffn=relu`). *derived* values follow from the others until they
are set.
"""


def document() -> str:
    """The whole page, as Markdown."""
    groups = (("model", ModelConfig), ("train", TrainConfig), ("data", DataConfig))
    return INTRODUCTION + "".join(f"\n## `{name}`\n\n{table(kind, name)}" for name, kind in groups)


def table(kind: type[Config], prefix: str) -> str:
    """One row per field: name, values, default, meaning."""
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        derived = name in kind().derived()
        default = "*derived*" if derived else f"`{field.get_default()}`"
        needs = f" (needs {HAS_EFFECT_WITH[name][0]})" if kind is ModelConfig and name in HAS_EFFECT_WITH else ""
        meaning = f"{field.description or ''}{needs}".replace("|", "\\|")
        rows.append(f"| `{prefix}.{name}` | {values(field.annotation)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def values(annotation: Any) -> str:
    """What a field takes: its choices, or its type."""
    if get_origin(annotation) is Literal:
        return " ".join(f"`{choice}`" for choice in get_args(annotation))
    if arguments := get_args(annotation):
        return " or ".join("none" if a is type(None) else values(a) for a in arguments)
    return {int: "whole number", float: "number", str: "text", bool: "true, false"}[annotation]


if __name__ == "__main__":
    print(document(), end="")
