"""Initial weights: one table, pure in (config, seed).

Every parameter draws from its own stream named after it, so two arms of a comparison start from the same weights
wherever their parameters have the same name and shape.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from lmcore.config import ModelConfig


def weight_std(name: str, fan_in: int, fan_out: int, config: ModelConfig) -> float:
    """Standard deviation of one matrix.

    fan_in  1 / sqrt(fan_in): keeps the variance of unit inputs (LeCun et al. 1998)
    xavier  sqrt(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)
    gpt2    0.02, projections back into the residual stream / sqrt(2 n_layer) (Radford et al. 2019, section 2.3)
    """
    if config.init == "fan_in":
        std = 1 / math.sqrt(fan_in)
    elif config.init == "xavier":
        std = math.sqrt(2 / (fan_in + fan_out))
    else:
        into_residual = name.endswith(("out.weight", "down.weight"))
        std = 0.02 / math.sqrt(2 * config.n_layer) if into_residual else 0.02
    return std * config.init_scale


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
