"""Tiny random models of transformers in which every tensor and every option matters, and ours of them."""

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lmcore.config import ModelConfig
from lmcore.model import LM

transformers = pytest.importorskip("transformers")

from lmcore import hf as hf  # noqa: E402  it imports transformers

VOCAB, CONTEXT, TOKENS, WINDOW = 61, 32, 19, 5
TOLERANCE = 5e-5  # of the logits' standard deviation; measured 6e-6, and exact for tanh GELU gives 1e-3

NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GPT2: dict[str, Any] = {"vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 3, "n_head": 4}
GPT2 |= NO_TOKENS | {"layer_norm_epsilon": 1e-2}
SIZES: dict[str, Any] = NO_TOKENS | {
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
}
WIDE = SIZES | {"intermediate_size": 40}
GQA = WIDE | {"num_key_value_heads": 3}
FREE = GQA | {"head_dim": 10}  # 24 / 6 would be 4
RMS, LAYERNORM = {"rms_norm_eps": 1e-2}, {"layer_norm_eps": 1e-2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 400.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    }
}
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}}
YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 50.0,
        "factor": 3.0,
        "original_max_position_embeddings": 300,
    }
}
MIXED = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
GEMMA = FREE | RMS | {"tie_word_embeddings": True}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}}

# Name -> class and config. A name is the model type, with a word for the variant.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": (
        "GPT2LMHeadModel",
        GPT2
        | {"tie_word_embeddings": False, "n_inner": 40, "scale_attn_weights": False, "activation_function": "relu"},
    ),
    "opt": ("OPTForCausalLM", SIZES | {"ffn_dim": 40, "do_layer_norm_before": True, "word_embed_proj_dim": 24}),
    "opt post": ("OPTForCausalLM", SIZES | {"ffn_dim": 40, "do_layer_norm_before": False, "word_embed_proj_dim": 24}),
    "opt plain": (
        "OPTForCausalLM",
        SIZES | {"ffn_dim": 40, "enable_bias": False, "layer_norm_elementwise_affine": False},
    ),
    "llama": ("LlamaForCausalLM", FREE | RMS | ROPE),
    "llama biases": (
        "LlamaForCausalLM",
        FREE | RMS | ROPE | {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    ),
    "llama linear": ("LlamaForCausalLM", FREE | RMS | LINEAR | {"tie_word_embeddings": True}),
    "llama yarn": ("LlamaForCausalLM", FREE | RMS | YARN | {"mlp_bias": True, "max_position_embeddings": 900}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT2 | {"multi_query": True}),
    "gpt_bigcode heads": ("GPTBigCodeForCausalLM", GPT2 | {"multi_query": False}),
    "qwen3": ("Qwen3ForCausalLM", FREE | RMS | ROPE | MIXED | {"use_sliding_window": True}),
    "qwen3 full": ("Qwen3ForCausalLM", FREE | RMS | LINEAR | {"attention_bias": True}),
    "gemma2": (
        "Gemma2ForCausalLM",
        GEMMA
        | ROPE
        | MIXED
        | {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT2),
    "olmo2": ("Olmo2ForCausalLM", FREE | RMS | ROPE),
    "olmo3": ("Olmo3ForCausalLM", FREE | RMS | ROPES | MIXED | {"attention_bias": True}),
    "gpt_neox": ("GPTNeoXForCausalLM", WIDE | LAYERNORM | PARTIAL | {"use_parallel_residual": True}),
    "gpt_neox sequential": (
        "GPTNeoXForCausalLM",
        WIDE | LAYERNORM | PARTIAL | {"use_parallel_residual": False, "attention_bias": False},
    ),
    "cohere2": ("Cohere2ForCausalLM", FREE | LAYERNORM | ROPE | MIXED | {"logit_scale": 0.4}),
    "granite": (
        "GraniteForCausalLM",
        FREE
        | RMS
        | ROPE
        | {
            "embedding_multiplier": 3.0,
            "logits_scaling": 1.7,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        GEMMA | ROPES | MIXED | {"query_pre_attn_scalar": 7, "final_logit_softcapping": 3.0},
    ),
    "mistral": ("MistralForCausalLM", FREE | RMS | ROPE | {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2ForCausalLM", FREE | RMS | ROPE | MIXED | {"use_sliding_window": True}),
    "gemma": ("GemmaForCausalLM", GEMMA | ROPE),
    "olmo": ("OlmoForCausalLM", FREE | ROPE),
    "cohere": ("CohereForCausalLM", FREE | LAYERNORM | ROPE | {"logit_scale": 0.4, "attention_bias": True}),
    "starcoder2": ("Starcoder2ForCausalLM", FREE | ROPE | {"norm_epsilon": 1e-2, "sliding_window": WINDOW}),
    "stablelm": ("StableLmForCausalLM", GQA | LAYERNORM | PARTIAL | {"use_parallel_residual": True}),
    "stablelm sequential": ("StableLmForCausalLM", GQA | LAYERNORM | PARTIAL | {"use_qkv_bias": True}),
    "ministral": ("MinistralForCausalLM", FREE | RMS | ROPE | MIXED),
    "seed_oss": ("SeedOssForCausalLM", FREE | RMS | ROPE | {"attention_bias": True}),
    "arcee": ("ArceeForCausalLM", FREE | RMS | ROPE | {"mlp_bias": True}),
    "nemotron": ("NemotronForCausalLM", GQA | PARTIAL | {"head_dim": 8, "norm_eps": 1e-2, "attention_bias": True}),
    "glm": ("GlmForCausalLM", GQA | RMS | PARTIAL | {"head_dim": 8, "attention_bias": True, "eos_token_id": 1}),
    "glm4": ("Glm4ForCausalLM", GQA | RMS | PARTIAL | {"head_dim": 8, "attention_bias": False, "eos_token_id": 1}),
    "phi3": ("Phi3ForCausalLM", GQA | RMS | PARTIAL | {"sliding_window": WINDOW}),
}
EXTRA = {"head_dim"}  # a key that these classes read without declaring it; the shapes of the weights show it acts


class Pair(NamedTuple):
    """A model of theirs, ours of it, some tokens and their logits."""

    theirs: Any
    ours: LM
    ids: Tensor
    logits: Tensor

    def error(self, lm: LM) -> float:
        """Largest difference of logits, in standard deviations."""
        with torch.no_grad():
            return float((lm(self.ids) - self.logits).abs().max() / self.logits.std())


def build(name: str, attention: str = "eager", **changes: Any) -> Any:
    """A model of theirs with noise on every tensor; the same for any `attention`."""
    class_name, values = CASES[name]
    cls = getattr(transformers, class_name)
    with torch.random.fork_rng():
        model = cls(cls.config_class(**(values | changes), attn_implementation=attention)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            is_gain = p.dim() == 1 and key.endswith("weight")
            one = 1.0 if is_gain and not name.startswith(("gemma", "nemotron")) else 0.0  # theirs is 1 + w
            p.copy_(one + (0.25 if p.dim() == 2 else 0.3) * noise)
    return model


def tokens(count: int = TOKENS) -> Tensor:
    return torch.randint(0, VOCAB, (2, count), generator=torch.Generator().manual_seed(4))


@cache
def pair(name: str) -> Pair:
    theirs, ids = build(name), tokens()
    with torch.no_grad():
        return Pair(theirs, hf.from_hf(theirs), ids, theirs(ids).logits)


def assert_same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


OURS = ModelConfig(vocab=VOCAB, d_model=24, n_layer=4, n_head=6, n_kv_head=3, d_ff=40, context=CONTEXT)
