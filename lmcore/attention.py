"""Causal self-attention with MHA, GQA and MQA by `n_kv_head`.

Shapes: B batch, T tokens, D d_model, H n_head, K n_kv_head, G = H / K query heads of one kv head, E d_head.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore.config import ModelConfig
from lmcore.position import Rotation, rotate

AttentionPath = Literal["fused", "plain"]


class Attention(nn.Module):
    """(B, T, D) to (B, T, D). Query heads of one group are adjacent: head h reads kv head h // G."""

    def __init__(self, config: ModelConfig, path: AttentionPath = "fused") -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.d_head = config.n_head, config.n_kv_head, config.d_head
        self.attend = fused if path == "fused" else plain
        # Rows: queries, keys, values; one large product is faster than three small ones.
        rows = (config.n_head + 2 * config.n_kv_head) * config.d_head
        self.qkv = nn.Linear(config.d_model, rows, bias=config.bias in ("all", "qkv"))
        self.out = nn.Linear(config.n_head * config.d_head, config.d_model, bias=config.bias == "all")

    def forward(self, x: Tensor, by: Rotation | None, mask: Tensor | None) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (B, H + 2K, T, E)
        q, k, v = heads.split((self.n_head, self.n_kv_head, self.n_kv_head), dim=1)
        if by is not None:
            q, k = rotate(q, by), rotate(k, by)
        y = self.attend(q, k, v, mask)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """torch's own kernel. q (B, H, T, E), k and v (B, K, T, E), mask (B, 1, T, T) True = may look, None = causal."""
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The formula itself: softmax(q k^T / sqrt(E)) v, softmax in float32. Shapes as in `fused`."""
    n_kv_head, d_head = k.shape[1], k.shape[3]
    q = torch.unflatten(q, 1, (n_kv_head, -1)) * d_head**-0.5  # (B, K, G, T, E)
    scores = q @ k.unsqueeze(2).transpose(-1, -2)  # (B, K, G, T, T)
    allowed = causal_mask(q.shape[-2], q.device) if mask is None else mask.unsqueeze(2)
    scores = scores.masked_fill(~allowed, float("-inf"))
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    weights = scores.softmax(dim=-1, dtype=wide).to(v.dtype)
    return (weights @ v.unsqueeze(2)).flatten(1, 2)


def causal_mask(tokens: int, device: torch.device) -> Tensor:
    """(T, T), True where query i may look at key j <= i."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


def padded_causal_mask(real: Tensor) -> Tensor:
    """(B, 1, T, T) from `real` (B, T), True for tokens that are not padding. A padding query sees only itself.

    Without that exception a row of the softmax would have nothing to look at and become NaN.
    """
    tokens = real.shape[1]
    allowed = causal_mask(tokens, real.device) & real[:, None, None, :]
    return allowed | torch.eye(tokens, dtype=torch.bool, device=real.device)
