"""Numbers behind the pictures of `lab flops --plots`: where FLOPs go as a size changes, and what limits inference."""

from collections.abc import Callable, Mapping
from math import gcd

import polars as pl

from lmcore import count
from lmcore.config import ModelConfig, replace
from lmcore.memory import Precision, element_bytes
from lmcore.resize import with_d_model

PARTS = {
    "attention matrices": ("q", "k", "v", "output"),
    "attention scores": ("scores", "values"),
    "FFN": ("ffn_gate", "ffn_up", "ffn_down"),
    "head": ("head",),
}
AXES: dict[str, Callable[[ModelConfig, int], ModelConfig]] = {
    "d_model": with_d_model,
    "context": lambda m, n: replace(m, {"context": n}),
    "vocab": lambda m, n: replace(m, {"vocab": n}),
}
POINTS, SPAN = 33, 16  # sizes on a logarithmic axis, from a SPANth of the model's own to SPAN times it
DECODE_BATCHES = (1, 8, 64, 512)
PREFILL_TOKENS = (16, 128, 1024, 8192)


def component_shares(model: ModelConfig, axis: str, context: int) -> pl.DataFrame:
    """One row per size and part: share (0 to 1) of the forward FLOPs of a sequence of `context` tokens.

    `axis` is one of `AXES`; the other sizes stay, heads and d_ff follow d_model (`lmcore.resize`). Along the axis
    "context" the sequence has that many tokens.
    """
    own = context if axis == "context" else getattr(model, axis)
    step = _whole_heads(model) if axis == "d_model" else 1
    sizes = [max(1, round(own / step * SPAN ** (2 * i / (POINTS - 1) - 1))) * step for i in range(POINTS)]
    rows = []
    for size in dict.fromkeys(sizes):
        changed = AXES[axis](model, size)
        flops = count.forward_flops_by_component(changed, size if axis == "context" else context)
        total = sum(flops.values())
        rows += [(size, part, sum(flops.get(n, 0) for n in names) / total) for part, names in PARTS.items()]
    return pl.DataFrame(rows, schema=["size", "part", "share"], orient="row")


def _whole_heads(m: ModelConfig) -> int:
    """The step of d_model at which heads need no rounding, which would show as jumps."""
    groups = m.n_head if m.n_kv_head == 1 else m.n_kv_head
    return m.d_model // gcd(m.d_model, groups)


def roofline(
    models: Mapping[str, ModelConfig], context: int | None, flops_per_s: float, bytes_per_s: float, precision: Precision
) -> pl.DataFrame:
    """One row per model, phase and amount of work: FLOPs per byte of memory traffic, and the FLOP/s that allows.

    prefill  `amount` tokens of one sequence, up to the context
    decode   one token for each of `amount` sequences, all at the context

    The least traffic possible is counted: every matrix read once, keys and values read (decode) or written (prefill)
    once. Attainable is min(peak, intensity x bandwidth) (Williams et al. 2009, "Roofline").
    """
    size, rows = element_bytes(precision), []
    for name, model in models.items():
        tokens = context or model.context
        weights = size * sum(count.matrix_sizes(model).values())
        for n in sorted({min(n, tokens) for n in (*PREFILL_TOKENS, tokens)}):
            rows.append((name, "prefill", n, count.forward_flops(model, n) / (weights + _written(model, n, size))))
        for n in DECODE_BATCHES:
            traffic = weights + n * count.kv_bytes(model, tokens, size)
            rows.append((name, "decode", n, n * count.decode_flops(model, tokens) / traffic))
    frame = pl.DataFrame(rows, schema=["model", "phase", "amount", "intensity"], orient="row")
    limit = pl.min_horizontal(pl.lit(flops_per_s), pl.col("intensity") * bytes_per_s)
    return frame.with_columns(limit.alias("flops_per_s"))


def _written(model: ModelConfig, tokens: int, size: int) -> int:
    """Bytes of keys and values of a prefill; a local layer writes those too that fall out of its window."""
    return tokens * count.kv_bytes_per_token(model, size)
