"""Well-known models as settings of our switches, for accounting and as starting points.

Sizes and settings are those of each model's own published configuration file; `context` is the length of its training
sequences. A model that needs a switch we do not have is not listed: an account of almost the right model would be wrong
without saying so. Left out for that reason are, among others, Llama 3.1 and later (their own scaling of RoPE), GPT-J
(bias on the head), OPT 350M (embedding narrower than the model), BLOOM (norm on the embedding), DeepSeek (MLA).
"""

from math import sqrt
from typing import Any

from lmcore.config import ModelConfig


def _sizes(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int) -> dict[str, Any]:
    return {"n_layer": n_layer, "d_model": d_model, "n_head": n_head, "n_kv_head": n_kv_head, "d_ff": d_ff}


def _gpt2(n_layer: int, d_model: int, n_head: int, **other: Any) -> ModelConfig:
    """Radford et al. 2019; GPT-3 (Brown et al. 2020) has its shape, were every layer of it dense."""
    shape: dict[str, Any] = {"vocab": 50257, "context": 1024, "ffn": "gelu_tanh", "norm": "layernorm", "bias": "all"}
    shape |= {"position": "learned", "tied": True, "init": "gpt2"}
    return ModelConfig(n_layer=n_layer, d_model=d_model, n_head=n_head, **(shape | other))


def _opt(n_layer: int, d_model: int, n_head: int) -> ModelConfig:
    """Zhang et al. 2022; the table of positions starts with two rows that no token uses."""
    return _gpt2(n_layer, d_model, n_head, vocab=50272, context=2048, ffn="relu", position_offset=2)


def _pythia(n_layer: int, d_model: int, n_head: int, vocab: int = 50304) -> ModelConfig:
    """Biderman et al. 2023, on GPT-NeoX."""
    return ModelConfig(
        vocab=vocab,
        context=2048,
        n_layer=n_layer,
        d_model=d_model,
        n_head=n_head,
        ffn="gelu",
        norm="layernorm",
        bias="all",
        residual="parallel",
        rope_fraction=0.25,
        init="gpt2",
    )


def _llama(
    n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int, vocab: int = 32000, **other: Any
) -> ModelConfig:
    """Touvron et al. 2023; our defaults are its switches."""
    return ModelConfig(vocab=vocab, **_sizes(n_layer, d_model, n_head, n_kv_head, d_ff), **({"context": 4096} | other))


def _smollm2(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int, rope_base: float) -> ModelConfig:
    sizes = (n_layer, d_model, n_head, n_kv_head, d_ff)
    return _llama(*sizes, vocab=49152, context=2048, rope_base=rope_base, tied=True)


def _qwen2(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int, **other: Any) -> ModelConfig:
    """Qwen2.5: Llama with biases on q, k and v."""
    switches: dict[str, Any] = {"vocab": 152064, "bias": "qkv", "rope_base": 1e6, "norm_eps": 1e-5}
    return _llama(n_layer, d_model, n_head, n_kv_head, d_ff, **(switches | other))


def _qwen3(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int, tied: bool = False) -> ModelConfig:
    """Norm of each head's queries and keys; heads of 128 channels whatever the width."""
    switches: dict[str, Any] = {"vocab": 151936, "d_head": 128, "qk_norm": "head", "rope_base": 1e6, "norm_eps": 1e-6}
    return _llama(n_layer, d_model, n_head, n_kv_head, d_ff, tied=tied, **switches)


def _gemma(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int, **other: Any) -> ModelConfig:
    """Gemma Team 2024: gains 1 + w, embedding times sqrt(d_model)."""
    switches: dict[str, Any] = {"context": 8192, "d_head": 256, "ffn": "geglu_tanh", "norm_eps": 1e-6, "tied": True}
    switches |= {"vocab": 256000, "norm_unit_offset": True, "embedding_scale": sqrt(d_model)}
    return ModelConfig(**_sizes(n_layer, d_model, n_head, n_kv_head, d_ff), **(switches | other))


def _gemma2(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_ff: int, **other: Any) -> ModelConfig:
    """Gemma Team 2024 (second report): norms on both sides, soft-caps, every other layer local."""
    switches: dict[str, Any] = {"norm_position": "sandwich", "attention_softcap": 50.0, "logit_softcap": 30.0}
    switches |= {"window": 4096, "window_pattern": "LF"}
    return _gemma(n_layer, d_model, n_head, n_kv_head, d_ff, **(switches | other))


def _olmo2(n_layer: int, d_model: int, n_head: int, d_ff: int) -> ModelConfig:
    """OLMo Team 2025: norm on the branch's output, QK-norm over all heads."""
    switches: dict[str, Any] = {"norm_position": "branch", "qk_norm": "full", "rope_base": 500000.0, "norm_eps": 1e-6}
    return _llama(n_layer, d_model, n_head, n_head, d_ff, vocab=100352, **switches)


PRESETS: dict[str, ModelConfig] = {
    "openai-gpt": _gpt2(12, 768, 12, vocab=40478, context=512, norm_position="post"),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "gpt3-small": _gpt2(12, 768, 12, context=2048),
    "gpt3-175b": _gpt2(96, 12288, 96, context=2048),
    "starcoderbase-1b": _gpt2(24, 2048, 16, vocab=49152, context=8192, n_kv_head=1),
    "opt-125m": _opt(12, 768, 12),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-2.7b": _opt(32, 2560, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, vocab=50432),
    "pythia-12b": _pythia(36, 5120, 40, vocab=50688),
    "palm-540b": ModelConfig(
        **_sizes(118, 18432, 48, 1, 73728),
        vocab=256000,
        context=2048,
        d_head=256,
        norm="layernorm",
        residual="parallel_shared",
        logit_scale=18432**-0.5,
        tied=True,
    ),
    "mpt-7b": ModelConfig(
        **_sizes(32, 4096, 32, 32, 16384),
        vocab=50432,
        context=2048,
        ffn="gelu",
        norm="layernorm",
        position="alibi",
        tied=True,
    ),
    "llama-7b": _llama(32, 4096, 32, 32, 11008, context=2048, norm_eps=1e-6),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672),
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, vocab=128256, context=8192, rope_base=500000.0),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, vocab=128256, context=8192, rope_base=500000.0),
    "tinyllama-1.1b": _llama(22, 2048, 32, 4, 5632, context=2048),
    "smollm2-135m": _smollm2(30, 576, 9, 3, 1536, rope_base=100000.0),
    "smollm2-360m": _smollm2(32, 960, 15, 5, 2560, rope_base=100000.0),
    "smollm2-1.7b": _smollm2(24, 2048, 32, 32, 8192, rope_base=130000.0),
    "mistral-7b-v0.1": _llama(32, 4096, 32, 8, 14336, context=8192, window=4096),
    "gemma-2b": _gemma(18, 2048, 8, 1, 16384),
    "gemma-7b": _gemma(28, 3072, 16, 16, 24576),
    "gemma-2-2b": _gemma2(26, 2304, 8, 4, 9216),
    "gemma-2-9b": _gemma2(42, 3584, 16, 8, 14336),
    "gemma-2-27b": _gemma2(46, 4608, 32, 16, 36864, d_head=128, attention_scale=144**-0.5),
    "gemma-3-1b": _gemma(
        *(26, 1152, 4, 1, 6912),
        vocab=262144,
        context=32768,
        norm_position="sandwich",
        qk_norm="head",
        window=512,
        window_pattern="LLLLLF",
        rope_base=1e6,
        rope_base_local=10000.0,
    ),
    "qwen2.5-0.5b": _qwen2(24, 896, 14, 2, 4864, vocab=151936, tied=True, norm_eps=1e-6),
    "qwen2.5-1.5b": _qwen2(28, 1536, 12, 2, 8960, vocab=151936, tied=True, norm_eps=1e-6),
    "qwen2.5-3b": _qwen2(36, 2048, 16, 2, 11008, vocab=151936, tied=True, norm_eps=1e-6),
    "qwen2.5-7b": _qwen2(28, 3584, 28, 4, 18944, norm_eps=1e-6),
    "qwen2.5-14b": _qwen2(48, 5120, 40, 8, 13824),
    "qwen2.5-32b": _qwen2(64, 5120, 40, 8, 27648),
    "qwen2.5-72b": _qwen2(80, 8192, 64, 8, 29568),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 8, 3072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 8, 6144, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 8, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 8, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 8, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 8, 25600),
    "olmo-2-1b": _olmo2(16, 2048, 16, 8192),
    "olmo-2-7b": _olmo2(32, 4096, 32, 11008),
    "stories-810k": ModelConfig(vocab=74, context=128, n_layer=4, d_model=128, n_head=4, d_ff=344),
}
