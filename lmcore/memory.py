"""Bytes that training one model holds, from its config alone; no torch.

Weights, gradients and AdamW's moments are float32 whatever the precision of the products. Activations are what torch
keeps for the backward pass of this implementation on a CPU, tensor by tensor; a kernel that fuses more keeps less.
With precision "bf16" (autocast) matrix products run on bf16 copies, norms and softmax stay float32.

Left out, because they are small: token ids, rotation tables, and what lives only within one operation.
"""

from typing import Literal

from lmcore.config import AttentionPath, ModelConfig
from lmcore.count import matrix_sizes, params, query_blocks

Precision = Literal["float32", "bf16"]
Kernel = Literal["plain", "math", "flash"]
WIDE = 4  # bytes of a float32
ADAMW_MOMENTS = 2
# Tensors of width d_ff that a plain FFN keeps: ReLU's result is also the input of the next product.
FFN_KEPT = {"relu": 1, "relu2": 2, "gelu": 2, "gelu_tanh": 2, "silu": 2}
GATED_FFN_KEPT = 4  # gate and up (stored as one), the activated gate, their product


def element_bytes(precision: Precision) -> int:
    """Bytes of an element that enters a matrix product."""
    return 2 if precision == "bf16" else WIDE


def training_bytes(
    m: ModelConfig,
    batch: int,
    tokens: int | None = None,
    precision: Precision = "float32",
    path: AttentionPath = "fused",
) -> dict[str, int]:
    """Bytes held at the end of a forward pass over (batch, tokens), by what they are for. Logits stand apart."""
    kept = activation_bytes_by_component(m, batch, tokens or m.context, precision, path)
    logits = kept.pop("logits")
    return {
        "weights": WIDE * params(m),
        "gradients": WIDE * params(m),
        "optimizer": ADAMW_MOMENTS * WIDE * params(m),
        "activations": sum(kept.values()),
        "logits": logits,
    }


def activation_bytes_by_component(
    m: ModelConfig, batch: int, tokens: int, precision: Precision = "float32", path: AttentionPath = "fused"
) -> dict[str, int]:
    """Bytes kept for the backward pass over (batch, tokens): what Korthikanti et al. (2022, section 4) count for one
    architecture, here for every switch.

    "scores" grows with tokens squared (plain attention only); "weight_copies" does not depend on the batch.
    """
    size, rows, kernel = element_bytes(precision), batch * tokens, kernel_of(m, path)
    stored = kernel != "flash"
    per_row: dict[str, int] = {
        "norms": WIDE * (_stream_norms(m) + m.n_layer * _qk_norms(m, stored, precision)),
        "attention": m.n_layer * m.d_model * size + sum(_attention(m, k, kernel, size) for k in m.layer_kinds),
        "scores": 0,
        "ffn": m.n_layer * size * (m.d_model + m.d_ff * (GATED_FFN_KEPT if m.gated else FFN_KEPT[m.ffn])),
        "dropout": m.d_model * (WIDE + 2 * m.n_layer * size) if m.dropout else 0,
        "head": m.d_model * size,
        "logits": m.vocab * (WIDE + (size if m.logit_softcap else 0)),
    }
    kept = {name: rows * n for name, n in per_row.items()}
    if stored:
        kept["scores"] = batch * sum(_scores(m, k, tokens, size, kernel == "plain") for k in m.layer_kinds)
    kept["masks"] = sum(_mask(m, kind, tokens, kernel == "plain", size) for kind in m.layer_kinds)
    kept["weight_copies"] = size * sum(matrix_sizes(m).values()) if precision == "bf16" else 0
    return {name: n for name, n in kept.items() if n}


def kernel_of(m: ModelConfig, path: AttentionPath) -> Kernel:
    """What computes attention. No fused kernel has a soft-cap; a bias of each head makes torch store the scores."""
    if path == "plain" or m.attention_softcap is not None:
        return "plain"
    return "math" if m.position == "alibi" else "flash"


def _norm_kept(m: ModelConfig, channels: int, rows: int) -> int:
    """Numbers that norms over `rows` rows of together `channels` channels keep beside their input.

    LayerNorm keeps mean and deviation. RMSNorm is made of small operations: its gain's gradient needs the
    normalised input, kept as a tensor of its own.
    """
    return 2 * rows if m.norm == "layernorm" else rows + (channels if m.norm_affine else 0)


def _stream_norms(m: ModelConfig) -> int:
    """float32 numbers per token of all norms of the residual stream; their outputs belong to whoever reads them."""
    per_layer = 4 if m.norm_position == "sandwich" else 2
    norms = per_layer * m.n_layer + (m.norm_position != "post")
    shared = 0 if m.residual == "sequential" else m.n_layer  # side by side, both read one input
    return (norms - shared) * m.d_model + norms * _norm_kept(m, m.d_model, 1)


def _qk_norms(m: ModelConfig, stored: bool, precision: Precision) -> int:
    """float32 numbers per token and layer of the norms of queries and keys."""
    if m.qk_norm == "none":
        return 0
    heads = m.n_head + m.n_kv_head
    kept = _norm_kept(m, heads * m.d_head, heads if m.qk_norm == "head" else 2)
    reads_views = m.qk_norm_place == "before_rope" and precision == "float32"
    if not reads_views:
        return kept + heads * m.d_head
    # A view keeps all of what q, k and v were cut from; fused attention keeps that for v anyway.
    return kept + ((heads + m.n_kv_head) * m.d_head if stored else 0)


def _attention(m: ModelConfig, kind: str, kernel: str, size: int) -> int:
    """Bytes per token of q, k, v and the output of one layer, without the scores."""
    d_q, d_kv = m.n_head * m.d_head, m.n_kv_head * m.d_head
    if kernel == "plain":  # scaled q, k, v, the input of the output matrix
        return (d_q + 2 * d_kv + d_q) * size
    if kernel == "math":  # the same, k and v copied for every query head
        return d_q * (3 * WIDE + size)
    rotates, joined = m.layer_rotates(kind), m.qk_norm != "none" or m.d_rope < m.d_head
    copies = d_q + d_kv if rotates or m.qk_norm != "none" else 0  # q and k are a tensor of their own, else views
    copies += d_q if copies and joined else 0  # pieces were put together head by head, so the output is laid out anew
    return (d_q + 2 * d_kv + d_q + copies) * size + m.n_head * WIDE  # + logarithms of the softmax's sums


def _scores(m: ModelConfig, kind: str, tokens: int, size: int, plain: bool) -> int:
    """Bytes of one layer and sequence: softmax weights in float32, their bf16 copy, what the soft-cap's tanh keeps."""
    blocks = query_blocks(tokens, m.layer_window(kind)) if plain else [(0, tokens, 0)]
    pairs = sum((end - start) * (end - first) for start, end, first in blocks)
    copy = size if plain and size < WIDE else 0
    return m.n_head * pairs * (WIDE + copy + (size if m.attention_softcap is not None else 0))


def _mask(m: ModelConfig, kind: str, tokens: int, plain: bool, size: int) -> int:
    """Bytes of one layer's mask: one for all sequences. Fused attention knows the causal one without a tensor."""
    if m.position == "alibi":
        return 0
    window = m.layer_window(kind)
    if plain:
        return sum((end - start) * (end - first) for start, end, first in query_blocks(tokens, window))
    return tokens * tokens * size if window is not None and window < tokens else 0
