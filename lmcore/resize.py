"""A model with one of its sizes changed, and what has to follow. No count of `lmcore.count` falls when one grows."""

from collections.abc import Callable, Mapping
from typing import Literal

from lmcore.config import ModelConfig, replace

SizeName = Literal["d_ff", "n_layer", "d_model", "n_head"]


def with_d_ff(m: ModelConfig, d_ff: int) -> ModelConfig:
    """Nothing follows."""
    return replace(m, {"d_ff": d_ff})


def with_n_layer(m: ModelConfig, n_layer: int) -> ModelConfig:
    """Kinds of layers go on in their pattern. Raises ConfigError for fewer layers than a switch needs."""
    return replace(m, {"n_layer": n_layer})


def with_d_model(m: ModelConfig, d_model: int) -> ModelConfig:
    """d_head stays; heads and d_ff keep their proportion to d_model, heads rounded to whole groups."""
    grown = d_model / m.d_model
    changes = {"d_model": d_model, "d_head": m.d_head}
    if "d_ff" in m.model_fields_set:
        changes["d_ff"] = max(1, round(m.d_ff * grown))
    groups = m.n_head if m.n_kv_head == 1 else m.n_kv_head
    return replace(m, changes | _heads(m, max(1, round(groups * grown))))


def with_n_head(m: ModelConfig, groups: int) -> ModelConfig:
    """`groups` kv heads, each shared by as many query heads as before; in MQA as many query heads. d_head stays."""
    return replace(m, {"d_head": m.d_head} | _heads(m, groups))


def _heads(m: ModelConfig, groups: int) -> dict[str, int]:
    shared = m.n_head // m.n_kv_head
    if m.n_kv_head == 1 and shared > 1:
        return {"n_head": groups, "n_kv_head": 1}
    return {"n_head": groups * shared, "n_kv_head": groups}


RESIZE: Mapping[SizeName, Callable[[ModelConfig, int], ModelConfig]] = {
    "d_ff": with_d_ff,
    "n_layer": with_n_layer,
    "d_model": with_d_model,
    "n_head": with_n_head,
}
