"""Exact parameters and FLOPs of a model, from its config alone; no torch. Bytes of training are in `lmcore.memory`.

A multiply-add is 2 FLOPs. Only matrix multiplications are counted; norms, activations, softmax and lookups are
left out, as in every published convention but Chinchilla's softmax term. The backward pass of a matrix
multiplication costs twice its forward pass (one product for the input's gradient, one for the weight's),
so training is 3 x forward. A tied matrix is one group of parameters but still one multiplication.
"""

from collections import Counter
from dataclasses import dataclass

from lmcore.config import ModelConfig, RunConfig

BACKWARD_OVER_FORWARD = 2
# Fewest and most queries at once on the plain path: small blocks skip more scores, but their products are slower.
QUERY_BLOCKS = (64, 256)
TRAIN_OVER_FORWARD = 1 + BACKWARD_OVER_FORWARD


def params_by_group(m: ModelConfig) -> dict[str, int]:
    """Parameters of each part of the model; the values sum to the model's total."""
    d_q, d_kv = m.n_head * m.d_head, m.n_kv_head * m.d_head
    qkv_bias = d_q + 2 * d_kv if m.bias in ("all", "qkv", "attention") else 0
    out_bias = m.d_model if m.bias in ("all", "attention") else 0
    ffn_bias = (2 if m.gated else 1) * m.d_ff + m.d_model if m.bias in ("all", "ffn") else 0
    return {
        "embedding": m.vocab * m.d_model,
        "positions": (m.context + m.position_offset) * m.d_model if m.position == "learned" else 0,
        "attention": m.n_layer * (m.d_model * (d_q + 2 * d_kv) + qkv_bias + d_q * m.d_model + out_bias),
        "ffn": m.n_layer * ((3 if m.gated else 2) * m.d_model * m.d_ff + ffn_bias),
        "norms": _normed_channels(m) * (int(m.norm_affine) + int(m.norm_bias)),
        "head": 0 if m.tied else m.vocab * m.d_model,
    }


def _normed_channels(m: ModelConfig) -> int:
    """Channels of all norms together: of the stream, and of queries and keys."""
    per_layer = 4 if m.norm_position == "sandwich" else 1 if m.residual == "parallel_shared" else 2
    final = 0 if m.norm_position == "post" else 1  # post-norm already ends on a norm
    of_qk = {"none": 0, "head": 2 * m.d_head, "full": (m.n_head + m.n_kv_head) * m.d_head}[m.qk_norm]
    return (per_layer * m.n_layer + final) * m.d_model + m.n_layer * of_qk


def params(m: ModelConfig) -> int:
    """All parameters; a tied matrix counts once."""
    return sum(params_by_group(m).values())


def params_non_embedding(m: ModelConfig) -> int:
    """Without input embedding, learned positions and untied head (Kaplan et al. 2020, section 2.1)."""
    groups = params_by_group(m)
    return sum(n for group, n in groups.items() if group not in ("embedding", "positions", "head"))


def attended_pairs(tokens: int, causal: bool = True, window: int | None = None) -> int:
    """(query, key) pairs of one sequence that one layer has to compute; a window counts the query itself."""
    if not causal:
        return tokens * tokens
    full = min(tokens, window or tokens)  # the first queries see everything before them, the others a window
    return full * (full + 1) // 2 + (tokens - full) * full


def query_blocks(tokens: int, reach: int | None = None) -> list[tuple[int, int, int]]:
    """(first query, end of queries, first key) of each block in which plain attention computes a whole sequence.

    A quarter of the sequence, within limits. Keys end where the queries do; `reach` is the window, if there is one.
    """
    fewest, most = QUERY_BLOCKS
    size = min(max(tokens // 4, fewest), most)
    starts = range(0, tokens, size)
    return [(at, min(at + size, tokens), 0 if reach is None else max(0, at - reach + 1)) for at in starts]


def matrix_sizes(m: ModelConfig) -> dict[str, int]:
    """Weights of each matrix that every token is multiplied with, all layers together; a tied head counts as one."""
    d_q, d_kv = m.n_head * m.d_head, m.n_kv_head * m.d_head
    per_layer = {
        "q": m.d_model * d_q,
        "k": m.d_model * d_kv,
        "v": m.d_model * d_kv,
        "output": d_q * m.d_model,
        "ffn_gate": m.d_model * m.d_ff if m.gated else 0,
        "ffn_up": m.d_model * m.d_ff,
        "ffn_down": m.d_ff * m.d_model,
    }
    return {name: m.n_layer * n for name, n in per_layer.items() if n} | {"head": m.d_model * m.vocab}


def forward_flops_by_component(
    m: ModelConfig, tokens: int, causal: bool = True, windows: bool = True
) -> dict[str, int]:
    """FLOPs of one forward pass over ONE sequence of `tokens` tokens, by component.

    2 x tokens x weights for each matrix; q . k and weights . v are 2 x d_head each for every pair and query head.
    With `windows` off, local layers count like full ones; without `causal` every token sees every token.
    """
    flops = {name: 2 * tokens * n for name, n in matrix_sizes(m).items()}
    head = flops.pop("head")
    layers = Counter(m.layer_kinds)
    pairs = sum(
        n * attended_pairs(tokens, causal, m.layer_window(kind) if windows else None) for kind, n in layers.items()
    )
    flops["scores"] = flops["values"] = 2 * m.n_head * m.d_head * pairs
    return flops | {"head": head}


def forward_flops(m: ModelConfig, tokens: int, causal: bool = True, windows: bool = True) -> int:
    """FLOPs of one forward pass over one sequence of `tokens` tokens."""
    return sum(forward_flops_by_component(m, tokens, causal, windows).values())


def backward_flops_by_component(m: ModelConfig, tokens: int, causal: bool = True) -> dict[str, int]:
    """FLOPs of the backward pass over one sequence: of each product y = a b the gradients of a and of b.

    A fused attention kernel that computes the scores once more spends 2.5 x forward; that is not counted here.
    """
    return {name: BACKWARD_OVER_FORWARD * n for name, n in forward_flops_by_component(m, tokens, causal).items()}


def decode_flops(m: ModelConfig, seen: int) -> int:
    """FLOPs of one new token whose query sees `seen` tokens (itself included), those before it being in the cache."""
    keys = sum(n * min(seen, m.layer_window(kind) or seen) for kind, n in Counter(m.layer_kinds).items())
    return 2 * sum(matrix_sizes(m).values()) + 4 * m.n_head * m.d_head * keys


def train_flops_per_token(m: ModelConfig, tokens: int | None = None) -> float:
    """FLOPs of forward and backward per token, exact causal count, averaged over a sequence."""
    tokens = tokens or m.context
    return TRAIN_OVER_FORWARD * forward_flops(m, tokens) / tokens


def forward_flops_per_token_by_convention(m: ModelConfig, tokens: int) -> dict[str, float]:
    """What the literature's formulas say for the same model, per token of a full sequence.

    2N, 2N_non_embedding     twice the parameters
    kaplan                   2N + 2 n_layer T d_attn, N without embeddings (Kaplan et al. 2020, table 1)
    palm                     2N + 4 n_layer d_attn T, N without the untied input embedding and positions
                             (Chowdhery et al. 2022, appendix B)
    chinchilla               the full count, a one-hot product for the embedding, 3 n_head T of softmax per layer and
                             token (Hoffmann et al. 2022, appendix F)
    chinchilla_table_a4      the same without embedding and head: what that paper's table A4 was computed with
    causal                   exact matrix products, only the pairs that the mask lets through
    causal_ignoring_windows  the same as if every layer saw everything before it
    full                     exact matrix products, the masked pairs too: what a plain implementation computes
    """
    groups, d_attn = params_by_group(m), m.n_head * m.d_head
    total, inner = params(m), params_non_embedding(m)
    # Tied, the one matrix is the head and does multiply; untied, the input embedding is only a lookup.
    n_palm = total - groups["positions"] - (0 if m.tied else groups["embedding"])
    full, one_hot = forward_flops(m, tokens, causal=False) / tokens, 2 * m.vocab * m.d_model
    softmax = 3 * m.n_layer * m.n_head * tokens
    return {
        "2N": 2 * total,
        "2N_non_embedding": 2 * inner,
        "kaplan": 2 * inner + 2 * m.n_layer * tokens * d_attn,
        "palm": 2 * n_palm + 4 * m.n_layer * d_attn * tokens,
        "chinchilla": full + softmax + one_hot,
        "chinchilla_table_a4": full + softmax - one_hot,  # the head costs what the one-hot product would
        "causal": forward_flops(m, tokens) / tokens,
        "causal_ignoring_windows": forward_flops(m, tokens, windows=False) / tokens,
        "full": full,
    }


def mfu(flops_per_token: float, tokens_per_s: float, peak_flops: float) -> float:
    """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): the share of the device's peak, in FLOP/s, that the
    model's own arithmetic uses. `flops_per_token` is forward and backward for training, by whatever convention.
    """
    return flops_per_token * tokens_per_s / peak_flops


def kv_bytes_per_token(m: ModelConfig, bytes_per_element: int = 2) -> int:
    """Bytes of keys and values that one more token adds when the unrepeated heads are stored and no window is full."""
    return 2 * m.n_layer * m.n_kv_head * m.d_head * bytes_per_element


def kv_bytes(m: ModelConfig, tokens: int, bytes_per_element: int = 2) -> int:
    """Bytes of keys and values that the newest of `tokens` tokens of one sequence sees, its own included.

    A local layer holds its window and no more (a rolling buffer, Jiang et al. 2023, section 2).
    """
    held = sum(n * min(tokens, m.layer_window(kind) or tokens) for kind, n in Counter(m.layer_kinds).items())
    return 2 * m.n_kv_head * m.d_head * bytes_per_element * held


def checkpoint_bytes(m: ModelConfig) -> int:
    """Bytes of one checkpoint: float32 weights and AdamW's two moments."""
    return 3 * 4 * params(m)


@dataclass(frozen=True)
class Account:
    """What a run costs, decided before it starts. FLOPs are floats: budgets exceed 64-bit integers."""

    params: int
    params_non_embedding: int
    params_by_group: dict[str, int]
    flops_per_token: float
    forward_flops_by_component: dict[str, float]
    train_flops: float
    tokens: int
    steps: int
    kv_bytes_per_token: int


def account(run: RunConfig) -> Account:
    """The account of one run. `flops_per_token` is training FLOPs; components are forward FLOPs per token."""
    m, per_token = run.model, train_flops_per_token(run.model)
    components = forward_flops_by_component(m, m.context)
    return Account(
        params=params(m),
        params_non_embedding=params_non_embedding(m),
        params_by_group=params_by_group(m),
        flops_per_token=per_token,
        forward_flops_by_component={name: n / m.context for name, n in components.items()},
        train_flops=per_token * run.tokens,
        tokens=run.tokens,
        steps=run.train.steps,
        kv_bytes_per_token=kv_bytes_per_token(m),
    )
