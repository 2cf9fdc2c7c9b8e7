"""The table of decoders of Hugging Face `transformers` that are settings of ours: `FAMILIES`.

A further family is an entry here: its rules, and where its weights are.
"""

import math
from typing import Any

from lmcore.hf_rules import (
    ACTIVATIONS,
    GATED_ACTIVATIONS,
    GPT2_ACTIVATIONS,
    OPENAI_ACTIVATIONS,
    Family,
    NotCovered,
    Rule,
    always,
    bias,
    choice,
    head_width,
    inverse,
    layer_types,
    rope,
    rope_by_kind,
    rope_in_local_layers,
    same,
    window_everywhere,
)

FREE_HEAD = Rule(("head_dim",), lambda c: {"d_head": head_width(c)}, lambda m: {"head_dim": m.d_head})
MULTI_QUERY = Rule(
    ("multi_query", "num_key_value_heads"),
    lambda c: {"n_kv_head": 1 if c.multi_query else c.n_head},
    lambda m: {"multi_query": m.n_kv_head == 1},
)
INNER_OR_4X = Rule(
    ("n_inner",),
    lambda c: {"d_ff": 4 * c.n_embd if c.n_inner is None else c.n_inner},
    lambda m: {"n_inner": None if m.d_ff == 4 * m.d_model else m.d_ff},
)
INNER_4X = Rule((), lambda c: {"d_ff": 4 * c.n_embd}, lambda m: {})
SCALED_BY_WIDTH_OR_1 = Rule(
    ("scale_attn_weights",),
    lambda c: {} if c.scale_attn_weights else {"attention_scale": 1.0},
    lambda m: {"scale_attn_weights": m.attention_scale != 1},
)
SCALED_BY_SCALAR = Rule(
    ("query_pre_attn_scalar",),
    lambda c: {"attention_scale": 1 / math.sqrt(c.query_pre_attn_scalar)},
    lambda m: {"query_pre_attn_scalar": max(1, round(m.attention_scale**-2))},
)
EMBEDDING_BY_WIDTH = Rule((), lambda c: {"embedding_scale": math.sqrt(c.hidden_size)}, lambda m: {})
LOGITS_DIVIDED = Rule(
    ("logits_scaling",),
    lambda c: {"logit_scale": inverse(c.logits_scaling)},
    lambda m: {"logits_scaling": inverse(m.logit_scale)},
)


def _as_wide(c: Any) -> dict[str, Any]:
    if c.word_embed_proj_dim != c.hidden_size:
        raise NotCovered(f"word_embed_proj_dim = {c.word_embed_proj_dim}, hidden_size = {c.hidden_size}")
    return {}


EMBEDDING_AS_WIDE = Rule(("word_embed_proj_dim",), _as_wide, lambda m: {"word_embed_proj_dim": m.d_model})
YES = {True: True, False: False}

GPT2_SIZES = (
    same(vocab="vocab_size", d_model="n_embd", n_layer="n_layer", n_head="n_head", context="n_positions"),
    same(tied="tie_word_embeddings", norm_eps="layer_norm_epsilon"),
)
SIZES = (
    same(vocab="vocab_size", d_model="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads"),
    same(context="max_position_embeddings", tied="tie_word_embeddings"),
)
GQA = (*SIZES, same(d_ff="intermediate_size", n_kv_head="num_key_value_heads"))
LEARNED = always(norm="layernorm", norm_bias=True, position="learned")
RMS = (same(norm_eps="rms_norm_eps"), always(norm="rmsnorm"))
LAYERNORM = (same(norm_eps="layer_norm_eps"), always(norm="layernorm", norm_bias=True))
BIASLESS_LAYERNORM = (same(norm_eps="layer_norm_eps"), always(norm="layernorm", norm_bias=False))
GATED = choice("hidden_act", ffn=GATED_ACTIVATIONS)
GEMMA_GATED = choice("hidden_activation", ffn=GATED_ACTIVATIONS)
ATTENTION_BIAS = bias("attention_bias", False)
BIASES = bias("attention_bias", "mlp_bias")
ALL_BIASES = bias(True, True)
NO_BIASES = bias(False, False)
ACTIVATION = choice("activation_function", ffn=ACTIVATIONS)
GPT2_ACTIVATION = choice("activation_function", ffn=GPT2_ACTIVATIONS)
POST_NORM = always(norm_position="post")
QK_NORM = always(qk_norm="head")
PLAIN_LAYERNORM = always(norm="layernorm", norm_affine=False, norm_bias=False, norm_eps=1e-5)
GEMMA = (*GQA, FREE_HEAD, *RMS, ATTENTION_BIAS, always(norm_unit_offset=True), EMBEDDING_BY_WIDTH)
SANDWICH = (always(norm_position="sandwich"), SCALED_BY_SCALAR, layer_types(), GEMMA_GATED)
COHERE = (GATED, ATTENTION_BIAS, always(residual="parallel_shared"), same(logit_scale="logit_scale"))
MULTIPLIERS = (
    same(attention_scale="attention_multiplier", residual_scale="residual_multiplier"),
    same(embedding_scale="embedding_multiplier"),
    LOGITS_DIVIDED,
)
OLMO2 = (*GQA, FREE_HEAD, *RMS, GATED, ATTENTION_BIAS, always(norm_position="branch", qk_norm="full"))

QKV_BIAS = bias("attention_bias", False, out=False)
GLM = (*GQA, FREE_HEAD, *RMS, GATED, QKV_BIAS, rope(partial=True), always(rope_layout="pairs"))

TOP = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "blocks": "model.layers"}
NAMES = TOP | {
    "attention.norm_in": "input_layernorm",
    "attention.sublayer.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.sublayer.out": "self_attn.o_proj",
    "attention.sublayer.q_norm": "self_attn.q_norm",
    "attention.sublayer.k_norm": "self_attn.k_norm",
    "ffn.norm_in": "post_attention_layernorm",
    "ffn.sublayer.up": "mlp.gate_proj mlp.up_proj",
    "ffn.sublayer.down": "mlp.down_proj",
}
OUT_NORMS = {"attention.norm_out": "post_attention_layernorm", "ffn.norm_out": "post_feedforward_layernorm"}
SANDWICH_NAMES = NAMES | OUT_NORMS | {"ffn.norm_in": "pre_feedforward_layernorm"}
FUSED_FFN = {"ffn.sublayer.up": "mlp.gate_up_proj"}
GLM4_OUT_NORMS = {"attention.norm_out": "post_self_attn_layernorm", "ffn.norm_out": "post_mlp_layernorm"}
PLAIN_FFN = {"ffn.sublayer.up": "mlp.c_fc", "ffn.sublayer.down": "mlp.c_proj"}
GPT2_NAMES = PLAIN_FFN | {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "blocks": "transformer.h",
    "attention.norm_in": "ln_1",
    "attention.sublayer.qkv": "attn.c_attn",
    "attention.sublayer.out": "attn.c_proj",
    "ffn.norm_in": "ln_2",
}
OPENAI_NAMES = GPT2_NAMES | {
    "embedding": "transformer.tokens_embed",
    "positions": "transformer.positions_embed",
    "attention.norm_sum": "ln_1",
    "ffn.norm_sum": "ln_2",
}
OPT_NAMES = {
    "embedding": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
    "blocks": "model.decoder.layers",
    "attention.norm_in": "self_attn_layer_norm",
    "attention.norm_sum": "self_attn_layer_norm",
    "attention.sublayer.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.sublayer.out": "self_attn.out_proj",
    "ffn.norm_in": "final_layer_norm",
    "ffn.norm_sum": "final_layer_norm",
    "ffn.sublayer.up": "fc1",
    "ffn.sublayer.down": "fc2",
}
NEOX_NAMES = {
    "embedding": "gpt_neox.embed_in",
    "norm": "gpt_neox.final_layer_norm",
    "head": "lm_head",
    "blocks": "gpt_neox.layers",
    "attention.norm_in": "input_layernorm",
    "attention.sublayer.qkv": "attention.query_key_value",
    "attention.sublayer.out": "attention.dense",
    "ffn.norm_in": "post_attention_layernorm",
    "ffn.sublayer.up": "mlp.dense_h_to_4h",
    "ffn.sublayer.down": "mlp.dense_4h_to_h",
}

# Where several families are the same function, a model of ours is written as the first of them.
FAMILIES = (
    Family(
        "gpt2",
        "GPT2LMHeadModel",
        (*GPT2_SIZES, LEARNED, ALL_BIASES, INNER_OR_4X, SCALED_BY_WIDTH_OR_1, GPT2_ACTIVATION),
        GPT2_NAMES,
        transposed=True,
    ),
    Family(
        "openai-gpt",
        "OpenAIGPTLMHeadModel",
        (*GPT2_SIZES, LEARNED, ALL_BIASES, INNER_4X, choice("afn", ffn=OPENAI_ACTIVATIONS), POST_NORM),
        OPENAI_NAMES,
        transposed=True,
    ),
    Family(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        (*GPT2_SIZES, LEARNED, ALL_BIASES, INNER_OR_4X, SCALED_BY_WIDTH_OR_1, MULTI_QUERY, ACTIVATION),
        GPT2_NAMES,
        fused_by_head=lambda m: m.n_kv_head == m.n_head,
        ignored=frozenset({"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"}),
    ),
    Family(
        "opt",
        "OPTForCausalLM",
        (
            *SIZES,
            same(d_ff="ffn_dim"),
            always(norm="layernorm", norm_eps=1e-5, position="learned", position_offset=2),
            choice("layer_norm_elementwise_affine", norm_affine=YES, norm_bias=YES),
            choice("do_layer_norm_before", norm_position={True: "pre", False: "post"}),
            bias("enable_bias", "enable_bias"),
            ACTIVATION,
            EMBEDDING_AS_WIDE,
        ),
        OPT_NAMES,
    ),
    Family("llama", "LlamaForCausalLM", (*GQA, FREE_HEAD, *RMS, GATED, BIASES, rope()), NAMES),
    Family(
        "mistral",
        "MistralForCausalLM",
        (*GQA, FREE_HEAD, *RMS, GATED, NO_BIASES, rope(), window_everywhere()),
        NAMES,
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        (*GQA, FREE_HEAD, *RMS, GATED, bias(True, False, out=False), rope(), layer_types("use_sliding_window")),
        NAMES,
        ignored=frozenset({"max_window_layers"}),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        (*GQA, FREE_HEAD, *RMS, GATED, ATTENTION_BIAS, rope(), layer_types("use_sliding_window"), QK_NORM),
        NAMES,
        ignored=frozenset({"max_window_layers"}),
    ),
    Family("gemma", "GemmaForCausalLM", (*GEMMA, rope(), GATED), NAMES),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        (
            *GEMMA,
            *SANDWICH,
            rope(),
            same(attention_softcap="attn_logit_softcapping", logit_softcap="final_logit_softcapping"),
        ),
        SANDWICH_NAMES,
        ignored=frozenset({"hidden_act"}),  # in published files beside hidden_activation, which is the one that acts
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        (*GEMMA, *SANDWICH, rope_by_kind(), QK_NORM, same(logit_softcap="final_logit_softcapping")),
        SANDWICH_NAMES,
        one_rope=False,
        ignored=frozenset({"sliding_window_pattern"}),  # layer_types holds what it means
    ),
    Family("olmo", "OlmoForCausalLM", (*GQA, FREE_HEAD, GATED, ATTENTION_BIAS, rope(), PLAIN_LAYERNORM), NAMES),
    Family("olmo2", "Olmo2ForCausalLM", (*OLMO2, rope()), NAMES | OUT_NORMS),
    Family("olmo3", "Olmo3ForCausalLM", (*OLMO2, rope_by_kind(), layer_types()), NAMES | OUT_NORMS, one_rope=False),
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        (
            *SIZES,
            same(d_ff="intermediate_size"),
            *LAYERNORM,
            choice("hidden_act", ffn=ACTIVATIONS),
            choice("use_parallel_residual", residual={True: "parallel", False: "sequential"}),
            bias("attention_bias", True),
            rope(partial=True),
        ),
        NEOX_NAMES,
        fused_by_head=lambda m: True,
    ),
    Family(
        "cohere",
        "CohereForCausalLM",
        (*GQA, FREE_HEAD, *BIASLESS_LAYERNORM, *COHERE, rope(), always(rope_layout="pairs")),
        NAMES,
    ),
    Family(
        "cohere2",
        "Cohere2ForCausalLM",
        (*GQA, FREE_HEAD, *BIASLESS_LAYERNORM, *COHERE, rope_in_local_layers(), layer_types()),
        NAMES,
    ),
    Family("granite", "GraniteForCausalLM", (*GQA, FREE_HEAD, *RMS, GATED, BIASES, rope(), *MULTIPLIERS), NAMES),
    Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        (
            *GQA,
            FREE_HEAD,
            same(norm_eps="norm_epsilon"),
            always(norm="layernorm", norm_bias=True),
            choice("hidden_act", ffn=ACTIVATIONS),
            bias("use_bias", "use_bias"),
            rope(),
            window_everywhere(),
        ),
        NAMES | PLAIN_FFN,
    ),
    Family(
        "stablelm",
        "StableLmForCausalLM",
        (
            *GQA,
            *LAYERNORM,
            GATED,
            choice("use_parallel_residual", residual={True: "parallel_shared", False: "sequential"}),
            choice("use_qkv_bias", bias={True: "qkv", False: "none"}),
            rope(partial=True),
        ),
        NAMES,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        (*GQA, FREE_HEAD, *RMS, GATED, NO_BIASES, rope(partial=True), window_everywhere()),
        NAMES | FUSED_FFN | {"attention.sublayer.qkv": "self_attn.qkv_proj"},
        ignored=frozenset({"original_max_position_embeddings"}),  # of a scaling that is refused
    ),
    Family(
        "ministral",
        "MinistralForCausalLM",
        (*GQA, FREE_HEAD, *RMS, GATED, NO_BIASES, rope(), layer_types()),
        NAMES,
    ),
    Family(
        "seed_oss",
        "SeedOssForCausalLM",
        (*GQA, FREE_HEAD, *RMS, GATED, bias("attention_bias", "mlp_bias", out=False), rope()),
        NAMES,
    ),
    Family(
        "arcee",
        "ArceeForCausalLM",
        (*GQA, FREE_HEAD, *RMS, choice("hidden_act", ffn=ACTIVATIONS), BIASES, rope()),
        NAMES | {"ffn.sublayer.up": "mlp.up_proj"},
    ),
    Family(
        "nemotron",
        "NemotronForCausalLM",
        (
            *GQA,
            FREE_HEAD,
            same(norm_eps="norm_eps"),
            always(norm="layernorm", norm_bias=True, norm_unit_offset=True),
            choice("hidden_act", ffn=ACTIVATIONS),
            BIASES,
            rope(partial=True),
        ),
        NAMES | {"ffn.sublayer.up": "mlp.up_proj"},
    ),
    Family("glm", "GlmForCausalLM", GLM, NAMES | FUSED_FFN),
    Family("glm4", "Glm4ForCausalLM", (*GLM, always(norm_position="sandwich")), NAMES | FUSED_FFN | GLM4_OUT_NORMS),
)
