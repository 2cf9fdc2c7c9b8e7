"""Positions: rotary (RoPE), learned absolute, sinusoidal.

Shapes: B batch, T tokens, H heads, D d_model, E d_head, R rotated channels of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lmcore.config import ModelConfig


class Rotation(NamedTuple):
    """cos and sin of every rotation angle, (T, R/2) or (B, 1, T, R/2), and how channels pair up."""

    cos: Tensor
    sin: Tensor
    pairs: bool


def rotation(positions: Tensor, config: ModelConfig) -> Rotation:
    """Angles position * base^(-2i/R) for pair i (Su et al. 2021, eq. 15); positions (T) or (B, T).

    Computed in float32 whatever the model's dtype: bf16 cannot tell positions above 256 apart.
    """
    half = torch.arange(0, config.d_rope, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float().unsqueeze(-1) * config.rope_base ** (-half / config.d_rope)
    if positions.dim() == 2:
        angles = angles.unsqueeze(1)  # one row of angles per sequence, the same for all heads
    return Rotation(angles.cos(), angles.sin(), config.rope_layout == "pairs")


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate the first R channels of x (B, H, T, E); the rest passes unchanged.

    Channel i is paired with i + R/2 ("half") or 2i with 2i + 1 ("pairs").
    """
    cos, sin = by.cos.to(x.dtype), by.sin.to(x.dtype)
    d_rope = 2 * cos.shape[-1]
    turned, rest = x[..., :d_rope], x[..., d_rope:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if by.pairs else turned.chunk(2, dim=-1)
    out_a, out_b = a * cos - b * sin, a * sin + b * cos
    out = torch.stack((out_a, out_b), dim=-1).flatten(-2) if by.pairs else torch.cat((out_a, out_b), dim=-1)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """(..., D): sin in even channels, cos in odd ones, wavelengths 2 pi to 10000 * 2 pi (Vaswani et al. 2017, 3.5)."""
    even = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float().unsqueeze(-1) * 10000 ** (-even / d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :d_model]
