"""Causal self-attention with MHA, GQA and MQA by `n_kv_head`.

Shapes: B batch, T new tokens, S tokens that may be seen, D d_model, H n_head, K n_kv_head, G = H / K query heads of one
kv head, E d_head.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore.cache import LayerCache
from lmcore.config import AttentionPath, ModelConfig
from lmcore.count import query_blocks
from lmcore.norm import Norm
from lmcore.position import Rotation, rotate


class Sight(NamedTuple):
    """What all layers of one kind share in a forward pass.

    `mask` is boolean, True where a query may look, or float, added to the scores; broadcast to (B, H, T, S). None:
    causal, or a single query that sees everything. No query of a whole sequence (T = S) looks `reach` slots back or
    further, so a kernel need not compute what the mask would hide; None: no such bound is known.
    """

    rotation: Rotation | None
    mask: Tensor | None
    reach: int | None = None


def runs_path(config: ModelConfig, wanted: AttentionPath) -> AttentionPath:
    """The path that is taken: no fused kernel here knows a soft-cap on the scores."""
    return "plain" if config.attention_softcap is not None else wanted


class Attention(nn.Module):
    """(B, T, D) to (B, T, D). Query heads of one group are adjacent: head h reads kv head h // G."""

    def __init__(self, config: ModelConfig, path: AttentionPath = "fused") -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.d_head = config.n_head, config.n_kv_head, config.d_head
        self.path = runs_path(config, path)
        self.scale, self.softcap = config.attention_scale, config.attention_softcap
        # Rows: queries, keys, values; one large product is faster than three small ones.
        rows = (config.n_head + 2 * config.n_kv_head) * config.d_head
        self.qkv = nn.Linear(config.d_model, rows, bias=config.bias in ("all", "qkv", "attention"))
        self.out = nn.Linear(config.n_head * config.d_head, config.d_model, bias=config.bias in ("all", "attention"))
        self.qk_norm, self.norm_first = config.qk_norm, config.qk_norm_place == "before_rope"
        if self.qk_norm != "none":
            heads = (1, 1) if self.qk_norm == "head" else (self.n_head, self.n_kv_head)
            self.q_norm, self.k_norm = (Norm(config, n * self.d_head, config.norm_bias) for n in heads)

    def forward(self, x: Tensor, sight: Sight, cache: LayerCache | None = None) -> Tensor:
        q, k, v = self.placed(x, sight)
        if cache is not None:
            k, v = cache.append(k, v)
        if self.path == "fused":
            y = fused(q, k, v, sight.mask, self.scale)
        else:
            y = plain(q, k, v, sight.mask, self.scale, self.softcap, sight.reach)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def scores(self, x: Tensor, sight: Sight, cache: LayerCache | None = None) -> Tensor:
        """What the softmax sees of the tokens x alone, (B, H, T, T): -inf where a query may not look."""
        q, k, _ = self.placed(x, sight)
        return scores(q, k, sight.mask, self.scale, self.softcap)

    def placed(self, x: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, E), k and v (B, K, T, E), q and k with their norm and their rotation."""
        qk, v = self.heads(x)
        if self.norm_first:
            qk = self.normed(qk)
        if sight.rotation is not None:
            qk = rotate(qk, sight.rotation)  # of all heads at once: half the calls
        if not self.norm_first:
            qk = self.normed(qk)
        q, k = torch.split(qk, [self.n_head, self.n_kv_head], dim=1)
        return q, k, v

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """q and k (B, H + K, T, E), v (B, K, T, E)."""
        heads = self.qkv(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
        qk, v = torch.split(heads, [self.n_head + self.n_kv_head, self.n_kv_head], dim=1)
        return qk, v

    def normed(self, qk: Tensor) -> Tensor:
        """QK-norm (Henry et al. 2020) over each head's channels, or over all heads' together."""
        if self.qk_norm == "none":
            return qk
        q, k = torch.split(qk, [self.n_head, self.n_kv_head], dim=1)
        if self.qk_norm == "head":
            return torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        return torch.cat((_over_all_heads(self.q_norm, q), _over_all_heads(self.k_norm, k)), dim=1)


def _over_all_heads(norm: Norm, x: Tensor) -> Tensor:
    rows = norm(x.transpose(1, 2).flatten(2))
    return torch.unflatten(rows, -1, (x.shape[1], x.shape[3])).transpose(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """torch's own kernel. q (B, H, T, E), k and v (B, K, S, E); mask as in `Sight`."""
    causal = mask is None and q.shape[2] == k.shape[2]
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
    reach: int | None = None,
) -> Tensor:
    """The formula itself: softmax(scale q k^T + mask) v, softmax in float32.

    Shapes as in `fused`, mask and reach as in `Sight`. Long sequences go block by block of queries, so that nearly half
    of the scores, or all but a window, are never computed.
    """
    tokens = q.shape[2]
    blocks = query_blocks(tokens, reach)
    if tokens != k.shape[2] or len(blocks) == 1:
        return _attended(q, k, v, mask, scale, softcap)
    k, v, done = k.contiguous(), v.contiguous(), []  # once, not again for each block
    for start, end, first in blocks:
        allowed = _block_mask(mask, start, end, first, q.device)
        done.append(_attended(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], allowed, scale, softcap))
    return torch.cat(done, dim=2)


def _block_mask(mask: Tensor | None, start: int, end: int, first: int, device: torch.device) -> Tensor:
    """The mask of queries start..end on keys first..end, as in `Sight`."""
    if mask is not None:
        return mask[..., start:end, first:end]
    return torch.arange(start, end, device=device)[:, None] >= torch.arange(first, end, device=device)


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    logits = scores(q, k, mask, scale, softcap)
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    weights = _by_kv_head(logits.softmax(dim=-1, dtype=wide).to(v.dtype), k.shape[1])
    return torch.unflatten(weights @ v, 2, (-1, q.shape[2])).flatten(1, 2)


def _by_kv_head(x: Tensor, n_kv_head: int) -> Tensor:
    """(B, H, T, ...) to (B, K, G T, ...): the query heads of one group are one taller matrix, so no head is copied."""
    return torch.unflatten(x, 1, (n_kv_head, -1)).flatten(2, 3)


def scores(q: Tensor, k: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None) -> Tensor:
    """scale q k^T, capped, plus the mask: (B, H, T, S) of q (B, H, T, E) and k (B, K, S, E)."""
    tokens, seen = q.shape[2], k.shape[2]
    found = _by_kv_head(q * scale, k.shape[1]) @ k.transpose(-1, -2)
    found = torch.unflatten(found, 2, (-1, tokens)).flatten(1, 2)  # (B, H, T, S)
    if softcap is not None:
        found = softcap * torch.tanh(found / softcap)
    if mask is None and tokens == seen:
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril()
    if mask is None:
        return found
    return found + mask if mask.is_floating_point() else found.masked_fill(~mask, -math.inf)
