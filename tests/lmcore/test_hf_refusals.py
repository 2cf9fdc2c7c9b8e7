"""What is not covered is refused by name, in both directions; published configs are read."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lmcore import count
from lmcore.config import replace
from lmcore.model import LM
from tests.lmcore.hf_cases import (
    CASES,
    FREE,
    GPT2,
    GQA,
    LINEAR,
    OURS,
    ROPE,
    SIZES,
    TOLERANCE,
    build,
    hf,
    pair,
    tokens,
    transformers,
)


def llama(**values: Any) -> Any:
    return transformers.LlamaConfig(**(FREE | ROPE | values))


def scaled_rope(**values: Any) -> Any:
    return llama(rope_parameters={"rope_theta": 50.0} | values)


# What is asked for, and the words that the refusal must contain.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another model type": (lambda: transformers.BloomConfig(), "'bloom'; covered are gpt2, "),
    "a model of pictures": (lambda: transformers.Gemma3Config(), "'gemma3'"),
    "an unknown key": (lambda: llama(depth_scale=0.5), "llama: depth_scale = 0.5"),
    "seeing both ways": (lambda: llama(is_causal=False), "is_causal = False"),
    "chunks": (lambda: llama(chunk_size_feed_forward=4), "chunk_size_feed_forward"),
    "layers of their own": (lambda: llama(per_layer_config={0: {"intermediate_size": 8}}), "per_layer_config"),
    "quantised": (lambda: llama(quantization_config={"bits": 4}), "quantization_config"),
    "activation": (lambda: llama(hidden_act="quick_gelu"), "hidden_act = 'quick_gelu'"),
    "dynamic rope": (lambda: scaled_rope(rope_type="dynamic", factor=2.0), "rope_type = 'dynamic'"),
    "llama3 rope": (
        lambda: scaled_rope(
            rope_type="llama3",
            factor=2.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
        "rope_type = 'llama3'",
    ),
    "yarn's temperature": (
        lambda: scaled_rope(rope_type="yarn", factor=2.0, attention_factor=1.0, original_max_position_embeddings=16),
        "attention_factor = 1.0",
    ),
    "ignored partial rope": (lambda: scaled_rope(rope_type="default", partial_rotary_factor=0.5), "partial_rotary"),
    "stretched windows": (
        lambda: transformers.MistralConfig(**(FREE | LINEAR | {"sliding_window": 5})),
        "rope scaling in layers with a sliding window",
    ),
    "layer kinds": (
        lambda: transformers.Qwen3Config(**(FREE | {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]})),
        "layer_types with chunked_attention",
    ),
    "windows without a size": (
        lambda: transformers.Qwen3Config(**(FREE | {"layer_types": ["sliding_attention"] * 4})),
        "sliding_window = None",
    ),
    "gpt2's scale by layer": (
        lambda: transformers.GPT2Config(**(GPT2 | {"scale_attn_by_inverse_layer_idx": True})),
        "gpt2: scale_attn_by_inverse_layer_idx = True",
    ),
    "opt's projections": (
        lambda: transformers.OPTConfig(**(SIZES | {"word_embed_proj_dim": 12})),
        "word_embed_proj_dim = 12",
    ),
    "opt without a final norm": (
        lambda: transformers.OPTConfig(**(SIZES | {"_remove_final_layer_norm": True})),
        "_remove_final_layer_norm = True",
    ),
    "olmo's clipping": (lambda: transformers.OlmoConfig(**(FREE | {"clip_qkv": 1.0})), "olmo: clip_qkv = 1.0"),
    "stablelm's QK-norm": (
        lambda: transformers.StableLmConfig(**(GQA | {"qk_layernorm": True})),
        "stablelm: qk_layernorm = True",
    ),
    "cohere's QK-norm": (lambda: transformers.CohereConfig(**(FREE | {"use_qk_norm": True})), "use_qk_norm = True"),
    "looking ahead": (
        lambda: transformers.Gemma2Config(**(FREE | {"use_bidirectional_attention": True})),
        "use_bidirectional_attention = True",
    ),
    "a cap that gemma3 ignores": (
        lambda: transformers.Gemma3TextConfig(**(FREE | {"attn_logit_softcapping": 2.0})),
        "attn_logit_softcapping = 2.0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_covered_is_refused_by_name(case: str) -> None:
    config, words = REFUSED[case]
    with pytest.raises(hf.NotCovered, match=re.escape(words)):
        hf.config_from_hf(config())


def other_values(key: str, value: Any) -> list[Any]:
    """What else an option might be; for sizes this is in the parity tests."""
    if key in ("hidden_act", "activation_function", "hidden_activation", "afn"):
        return ["relu", "gelu", "gelu_new", "silu", "quick_gelu", "sigmoid", "relu2"]
    if isinstance(value, bool):
        return [not value]
    if key == "sliding_window":
        return [None, 3]
    if isinstance(value, float) and "drop" not in key:
        return [2 * value]
    return [2, True] if value is None else []


@pytest.mark.parametrize("name", CASES)
def test_any_other_value_of_an_option_is_refused_or_exact(name: str) -> None:
    """Never loaded approximately, whatever that library's class does with the value."""
    values = vars(pair(name).theirs.config)
    options = set(type(pair(name).theirs.config).__dataclass_fields__) - set(
        transformers.PreTrainedConfig.__dataclass_fields__
    )
    exact = 0
    for key, value in [(k, v) for k in sorted(options) for v in other_values(k, values[k])]:
        try:
            theirs = build(name, **{key: value})
            with torch.no_grad():
                logits = theirs(tokens()).logits
        except Exception:  # not a value for that class
            continue
        try:
            ours = hf.from_hf(theirs)
        except hf.NotCovered:
            continue
        exact += 1
        with torch.no_grad():
            assert (ours(tokens()) - logits).abs().max() < TOLERANCE * logits.std(), (key, value)
    assert exact > 2


def test_weights_that_do_not_fit_the_config_are_refused() -> None:
    tied = build("llama linear")
    tied.lm_head.weight = torch.nn.Parameter(tied.lm_head.weight.detach().clone())
    with pytest.raises(hf.NotCovered, match="tie_word_embeddings = True, but head and embedding are two"):
        hf.from_hf(tied)
    untied = build("llama")
    untied.lm_head.weight = untied.model.embed_tokens.weight
    with pytest.raises(hf.NotCovered, match="tie_word_embeddings = False, but head and embedding are one"):
        hf.from_hf(untied)
    extra = build("llama")
    extra.model.layers[0].mlp.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(hf.NotCovered, match=r"layers\.0\.mlp\.adapter"):
        hf.from_hf(extra)
    integer = build("llama")
    weight = integer.model.layers[0].mlp.up_proj.weight
    integer.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(hf.NotCovered, match=r"int8 weights such as .*up_proj"):
        hf.from_hf(integer)
    resized = build("llama")
    resized.config.intermediate_size = 44
    with pytest.raises(hf.NotCovered, match="another shape"):
        hf.from_hf(resized)
    with pytest.raises(hf.NotCovered, match="GPT2Model; of gpt2 only GPT2LMHeadModel"):
        hf.from_hf(transformers.GPT2Model(transformers.GPT2Config(**GPT2)))


# Published files as they are, and the number of parameters their authors' weights have.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        {
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-5,
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "summary_type": "cls_index",
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
        124_439_808,
    ),
    "pythia-70m": (
        {
            "model_type": "gpt_neox",
            "hidden_act": "gelu",
            "hidden_size": 512,
            "intermediate_size": 2048,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "num_attention_heads": 8,
            "num_hidden_layers": 6,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "use_cache": True,
            "use_parallel_residual": True,
            "vocab_size": 50304,
        },
        70_426_624,
    ),
    "llama-2-7b": (
        {
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-5,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "vocab_size": 32000,
        },
        6_738_415_616,
    ),
    "gemma-2-2b": (
        {
            "model_type": "gemma2",
            "attention_bias": False,
            "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "max_position_embeddings": 8192,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
        2_614_341_888,
    ),
    "qwen3-0.6b": (
        {
            "model_type": "qwen3",
            "attention_bias": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        596_049_920,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    values, published = PUBLISHED[name]
    config = transformers.AutoConfig.for_model(**values)
    ours = hf.config_from_hf(config)
    assert count.params(ours) == published
    if "rope_theta" in values:
        assert ours.rope_base == values["rope_theta"]
    assert ours.window == (4096 if "gemma" in name else None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": "alibi"}, "no family has position = 'alibi'"),
        ({"position": "sinusoidal"}, "no family has position = 'sinusoidal'"),
        ({"qk_norm": "head", "qk_norm_place": "after_rope"}, "no family has qk_norm_place = 'after_rope'"),
        ({"rope_scaling": "ntk", "rope_factor": 2.0}, "no family has rope_factor = 2.0, rope_scaling = 'ntk'"),
        ({"ffn": "relu2", "norm_position": "branch"}, "no family combines these; the nearest, "),
        ({"norm": "layernorm", "norm_position": "sandwich"}, "no family combines these; the nearest, "),
    ],
)
def test_what_no_family_expresses_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(hf.NotCovered, match=re.escape(words)):
        hf.to_hf(LM(replace(OURS, changes)))


def test_a_family_by_name_is_that_family_or_a_refusal() -> None:
    lm = LM(OURS)
    assert hf.to_hf(lm).config.model_type == "llama"
    assert hf.to_hf(lm, "mistral").config.model_type == "mistral"
    with pytest.raises(hf.NotCovered, match=r"gpt2 has no .*norm = 'rmsnorm'"):
        hf.to_hf(lm, "gpt2")
    with pytest.raises(hf.NotCovered, match="'gpt5'; covered are"):
        hf.to_hf(lm, "gpt5")
