"""Positions: rotary (RoPE), learned absolute, sinusoidal.

Shapes: B batch, T tokens, H heads, D d_model, E d_head, R rotated channels of a head.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lmcore.config import FULL, LOCAL, ModelConfig


class Rotation(NamedTuple):
    """For every rotated channel cos of its angle, and sin with the sign that its partner enters with: (T, R) or
    (B, 1, T, R); and how channels pair up."""

    cos: Tensor
    sin: Tensor
    pairs: bool

    @classmethod
    def of(cls, angles: Tensor, pairs: bool, scale: float = 1.0) -> "Rotation":
        """By `angles` (..., R/2), one for each pair of channels, with `scale` on cos and sin."""
        cos, sin = angles.cos() * scale, angles.sin() * scale
        return cls(_joined(cos, cos, pairs), _joined(-sin, sin, pairs), pairs)


def rotation(positions: Tensor, config: ModelConfig, kind: str = FULL) -> Rotation:
    """Angles position * base^(-2i/R) of pair i (Su et al. 2021, eq. 15) in layers of one kind; positions (T) or (B, T).

    Computed in float32 whatever the model's dtype: bf16 cannot tell positions above 256 apart.
    """
    frequencies, temperature = rope_frequencies(config, kind, positions.device)
    angles = positions.float().unsqueeze(-1) * frequencies
    if positions.dim() == 2:
        angles = angles.unsqueeze(1)  # one row of angles per sequence, the same for all heads
    return Rotation.of(angles, config.rope_layout == "pairs", temperature)


def rope_frequencies(config: ModelConfig, kind: str, device: torch.device) -> tuple[Tensor, float]:
    """(R/2) radians per position, and the factor on cos and sin. Local layers are never stretched: they see no further.

    linear  position / factor (Chen et al. 2023, "position interpolation")
    ntk     base * factor^(R / (R - 2)): the slowest pair is stretched by factor, the fastest not at all
    yarn    fast pairs stay, slow ones are interpolated, a ramp between; factor 0.1 ln(factor) + 1 (Peng et al. 2023)
    """
    d, factor = config.d_rope, config.rope_factor
    pair = torch.arange(0, d, 2, device=device, dtype=torch.float32)
    if kind == LOCAL:
        return config.rope_base_local ** (-pair / d), 1.0
    if config.rope_scaling == "ntk":
        return (config.rope_base * factor ** (d / max(1, d - 2))) ** (-pair / d), 1.0
    plain = config.rope_base ** (-pair / d)
    if config.rope_scaling == "linear":
        return plain / factor, 1.0
    if config.rope_scaling == "yarn":
        keep = yarn_kept(config, device)
        return plain * keep + plain / factor * (1 - keep), 0.1 * math.log(factor) + 1
    return plain, 1.0


def yarn_kept(config: ModelConfig, device: torch.device) -> Tensor:
    """(R/2) share of each pair that keeps its frequency: 1 for pairs that turn more than 32 times within the trained
    context, 0 for less than once, linear in the pair's number between, as in the paper's published code.
    """

    def pair_turning(times: float) -> float:
        turns = config.rope_original_context / (2 * math.pi * times)
        return config.d_rope * math.log(turns) / (2 * math.log(config.rope_base))

    low = max(math.floor(pair_turning(32)), 0)
    high = min(math.ceil(pair_turning(1)), config.d_rope - 1)
    index = torch.arange(config.d_rope // 2, device=device, dtype=torch.float32)
    return 1 - ((index - low) / max(high - low, 0.001)).clamp(0, 1)


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate the first R channels of x (B, H, T, E); the rest passes unchanged.

    Channel i is paired with i + R/2 ("half") or 2i with 2i + 1 ("pairs").
    """
    cos, sin = by.cos.to(x.dtype), by.sin.to(x.dtype)
    d_rope = cos.shape[-1]
    turned, rest = x[..., :d_rope], x[..., d_rope:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if by.pairs else turned.chunk(2, dim=-1)
    # (a cos - b sin, b cos + a sin) as two products over all channels: a third of the passes over memory that four
    # products over halves take.
    out = torch.addcmul(turned * cos, _joined(b, a, by.pairs), sin)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out


def _joined(a: Tensor, b: Tensor, pairs: bool) -> Tensor:
    """The channels of both halves where the layout has them."""
    return torch.stack((a, b), dim=-1).flatten(-2) if pairs else torch.cat((a, b), dim=-1)


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """(..., D): sin in even channels, cos in odd ones, wavelengths 2 pi to 10000 * 2 pi (Vaswani et al. 2017, 3.5)."""
    even = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float().unsqueeze(-1) * 10000 ** (-even / d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :d_model]
