"""Initial weights and what width does to them: pure in (config, seed).

Every parameter draws from its own stream named after it, so two arms of a comparison start from the same weights
wherever their parameters have the same name and shape.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmcore.config import ModelConfig


class WidthRule(NamedTuple):
    """Powers of m = d_model / base_width for one kind of parameter; at m = 1 nothing changes."""

    std: float  # of the initial weights, beside what they are at the base width
    lr: float  # of Adam's step
    output: float  # a factor on what the matrix gives


# The width-transfer parametrisation (muP) for Adam: Yang et al. 2022, "Tensor Programs V", table 8, whose output
# weights keep their spread and are multiplied by 1/m. The attention scale is in `ModelConfig._attention_scale`.
WIDTH_RULES: Mapping[str, WidthRule] = {
    "input": WidthRule(0.0, 0.0, 0.0),  # embedding, learned positions: fan_in does not grow ("input weights")
    "vector": WidthRule(0.0, 0.0, 0.0),  # gains, biases: like input weights ("all biases")
    "hidden": WidthRule(-0.5, -1.0, 0.0),  # both fans grow ("hidden weights": init 1/fan_in, Adam LR 1/fan_in)
    "output": WidthRule(0.0, 0.0, -1.0),  # the head ("output weights"); a tied one follows this and "input" at once
}


def role(name: str, dim: int) -> str:
    """Which line of `WIDTH_RULES` a parameter follows."""
    if name in ("embedding.weight", "positions"):
        return "input"
    if name == "head.weight":
        return "output"
    return "hidden" if dim == 2 else "vector"


def lr_factor(name: str, dim: int, config: ModelConfig) -> float:
    """The parameter's learning rate in units of the run's."""
    return float(config.width_factor ** WIDTH_RULES[role(name, dim)].lr)


def logit_factor(config: ModelConfig) -> float:
    """The factor on the logits: `logit_scale`, and what width asks for."""
    return float(config.logit_scale * config.width_factor ** WIDTH_RULES["output"].output)


def weight_std(name: str, fan_in: int, fan_out: int, config: ModelConfig) -> float:
    """Standard deviation of one matrix. In the width-transfer parametrisation: what it is at the base width, times the
    power of m in `WIDTH_RULES`.

    fan_in  1 / sqrt(fan_in): keeps the variance of unit inputs (LeCun et al. 1998)
    xavier  sqrt(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)
    gpt2    0.02, projections back into the residual stream / sqrt(2 n_layer) (Radford et al. 2019, section 2.3)
    """
    m, kind = config.width_factor, role(name, 2)
    base_in, base_out = fan_in / m, fan_out / m if kind == "hidden" else fan_out
    if config.init == "fan_in":
        std = 1 / math.sqrt(base_in)
    elif config.init == "xavier":
        std = math.sqrt(2 / (base_in + base_out))
    else:
        into_residual = name.endswith(("out.weight", "down.weight"))
        std = 0.02 / math.sqrt(2 * config.n_layer) if into_residual else 0.02
    return float(std * config.init_scale * m ** WIDTH_RULES[kind].std)


def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Fill every parameter in place: matrices and embeddings truncated normal at 3 std, effective gains 1, biases 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_meta:
                continue  # built for counting only
            if name in ("embedding.weight", "positions"):
                _normal_(parameter, config.embedding_std, name, seed)
            elif parameter.dim() == 2:
                for part, rows in _matrices(name, parameter, config):
                    _normal_(rows, weight_std(name, rows.shape[1], rows.shape[0], config), part, seed)
            else:
                is_gain = name.endswith("gain") and not config.norm_unit_offset
                parameter.fill_(1.0 if is_gain else 0.0)


def _matrices(name: str, weight: Tensor, config: ModelConfig) -> list[tuple[str, Tensor]]:
    """The mathematical matrices inside a stored one: q, k, v are stored as one, gate and up too."""
    if name.endswith("qkv.weight"):
        heads = (config.n_head, config.n_kv_head, config.n_kv_head)
        parts = torch.split(weight, [n * config.d_head for n in heads])
        return [(f"{name}.{part}", rows) for part, rows in zip("qkv", parts, strict=True)]
    if name.endswith("up.weight") and config.gated:
        gate, up = weight.chunk(2)
        return [(f"{name}.gate", gate), (name, up)]
    return [(name, weight)]


def _normal_(weight: Tensor, std: float, name: str, seed: int) -> None:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    drawn = torch.empty(weight.shape, dtype=torch.float32)
    nn.init.trunc_normal_(drawn, std=std, a=-3 * std, b=3 * std, generator=generator)
    weight.copy_(drawn)
