"""Well-known models as settings of our switches, for accounting and as starting points.

Sizes are the published ones of each model's own configuration file. A model that needs a switch we do not have is
not listed: an account of almost the right model would be wrong without saying so.
"""

from lmcore.config import ModelConfig


def _gpt2(n_layer: int, d_model: int, n_head: int) -> ModelConfig:
    return ModelConfig(
        vocab=50257,
        context=1024,
        n_layer=n_layer,
        d_model=d_model,
        n_head=n_head,
        ffn="gelu_tanh",
        norm="layernorm",
        bias="all",
        position="learned",
        tied=True,
        init="gpt2",
    )


PRESETS: dict[str, ModelConfig] = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "llama-2-7b": ModelConfig(vocab=32000, context=4096, n_layer=32, d_model=4096, n_head=32, d_ff=11008),
    "llama-2-13b": ModelConfig(vocab=32000, context=4096, n_layer=40, d_model=5120, n_head=40, d_ff=13824),
    "llama-2-70b": ModelConfig(vocab=32000, context=4096, n_layer=80, d_model=8192, n_head=64, n_kv_head=8, d_ff=28672),
    "llama-3-8b": ModelConfig(
        vocab=128256, context=8192, n_layer=32, d_model=4096, n_head=32, n_kv_head=8, d_ff=14336, rope_base=500000.0
    ),
    "tinyllama-1.1b": ModelConfig(
        vocab=32000, context=2048, n_layer=22, d_model=2048, n_head=32, n_kv_head=4, d_ff=5632
    ),
    "smollm2-135m": ModelConfig(
        vocab=49152,
        context=2048,
        n_layer=30,
        d_model=576,
        n_head=9,
        n_kv_head=3,
        d_ff=1536,
        rope_base=100000.0,
        tied=True,
    ),
    "qwen2.5-0.5b": ModelConfig(
        vocab=151936,
        context=4096,
        n_layer=24,
        d_model=896,
        n_head=14,
        n_kv_head=2,
        d_ff=4864,
        bias="qkv",
        rope_base=1000000.0,
        norm_eps=1e-6,
        tied=True,
    ),
    "stories-810k": ModelConfig(vocab=74, context=128, n_layer=4, d_model=128, n_head=4, d_ff=344),
}
