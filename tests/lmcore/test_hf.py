"""Parity with transformers, logit for logit, on tiny random models in which every tensor and every option matters."""

import copy
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lmcore import tokenizer
from lmcore.cache import Cache
from lmcore.config import FULL, LOCAL, ConfigError, ModelConfig, replace
from lmcore.model import LM
from lmcore.norm import Norm

transformers = pytest.importorskip("transformers")

from lmcore import hf  # noqa: E402  it imports transformers

VOCAB, CONTEXT, TOKENS, WINDOW = 61, 32, 19, 5
TOLERANCE = 1e-4  # of the logits' standard deviation

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


def build(name: str, attention: str = "eager") -> Any:
    """A model of theirs with noise on every tensor; the same for any `attention`."""
    class_name, values = CASES[name]
    cls = getattr(transformers, class_name)
    with torch.random.fork_rng():
        model = cls(cls.config_class(**values, attn_implementation=attention)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            is_gain = p.dim() == 1 and key.endswith("weight")
            one = 1.0 if is_gain and not name.startswith("gemma") else 0.0  # theirs is 1 + w
            p.copy_(one + (0.25 if p.dim() == 2 else 0.3) * noise)
    return model


def tokens(count: int = TOKENS) -> Tensor:
    return torch.randint(0, VOCAB, (2, count), generator=torch.Generator().manual_seed(4))


@cache
def pair(name: str) -> Pair:
    theirs, ids = build(name), tokens()
    with torch.no_grad():
        return Pair(theirs, hf.from_hf(theirs), ids, theirs(ids).logits)


every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_every_keyword_took_effect(name: str) -> None:
    """That library accepts unknown keywords in silence."""
    values = CASES[name][1]
    config = pair(name).theirs.config
    declared = set(type(config).__dataclass_fields__) | set(type(config).attribute_map)
    assert set(values) - EXTRA <= declared
    assert {key: getattr(config, key) for key in values} == values
    assert config._attn_implementation == "eager"


@every_case
def test_logits_are_theirs(name: str, record_property: Callable[[str, object], None]) -> None:
    both = pair(name)
    error = both.error(both.ours)
    record_property("error", error)
    assert 0.3 < both.logits.std() < 6
    assert error < TOLERANCE


@pytest.mark.parametrize("name", [n for n in CASES if n != "openai-gpt" and not n.startswith("gemma2")])
def test_their_two_attention_paths_agree(name: str) -> None:
    """Otherwise it would be open which of them a model of ours is equal to."""
    both, other = pair(name), build(name, "sdpa")
    assert other.config._attn_implementation == "sdpa"
    with torch.no_grad():
        error = (other(both.ids).logits - both.logits).abs().max() / both.logits.std()
    assert error < TOLERANCE


@every_case
def test_cached_decoding_is_the_full_forward(name: str) -> None:
    """A prefill longer than the window, then one token at a time; in float64, where rounding hides nothing."""
    lm, ids = copy.deepcopy(pair(name).ours).double(), tokens(CONTEXT)
    memory, logits = Cache(lm.config), []
    with torch.no_grad():
        for start, end in [(0, 7), *((i, i + 1) for i in range(7, CONTEXT))]:
            logits.append(lm(ids[:, start:end], cache=memory))
        error = (torch.cat(logits, dim=1) - lm(ids)).abs().max()
    assert error < 1e-10


@every_case
def test_round_trips_are_exact(name: str) -> None:
    theirs, ours, ids, logits = pair(name)
    again = hf.to_hf(ours, family=theirs.config.model_type)
    assert type(again) is type(theirs)
    for key, value in CASES[name][1].items():
        assert getattr(again.config, key) == value, key
    assert_same_tensors(again.state_dict(), theirs.state_dict())
    again.set_attn_implementation("eager")
    with torch.no_grad():
        assert torch.equal(again(ids).logits, logits)

    anyhow = hf.from_hf(hf.to_hf(ours))  # as the first family that can
    assert anyhow.config == ours.config
    assert_same_tensors(anyhow.state_dict(), ours.state_dict())


def assert_same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert torch.equal(a[name], b[name]), name


@every_case
def test_an_exported_folder_loads_there(name: str, tmp_path: Path) -> None:
    _, ours, ids, logits = pair(name)
    hf.export(ours, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"config.json", "generation_config.json", "model.safetensors"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        assert float((loaded(ids).logits - logits).abs().max() / logits.std()) < TOLERANCE
    assert_same_tensors(hf.from_hf(loaded).state_dict(), ours.state_dict())


# Faults. Each gives a wrong model, or None where it does not apply.
Fault = Callable[[LM], LM | None]


def with_config(lm: LM, changes: dict[str, Any]) -> LM | None:
    """The same weights under another config; a norm in another place takes the weights of one that was there."""
    try:
        config = replace(lm.config, changes)
    except ConfigError:
        return None
    if not hf.differences(config, lm.config):
        return None
    out, state = LM(config), lm.state_dict()
    with torch.no_grad():
        for name, weight in out.state_dict().items():
            twins = [re.sub(r"norm_(in|out|sum)", f"norm_{place}", name) for place in ("in", "out", "sum")]
            found = next((n for n in [name, *twins, "norm." + name.rpartition(".")[2]] if n in state), None)
            if found is not None and state[found].shape == weight.shape:
                weight.copy_(state[found])
            elif weight.dim() == 2:
                return None
    return out.eval()


def config_fault(change: Callable[[ModelConfig], dict[str, Any] | None]) -> Fault:
    def fault(lm: LM) -> LM | None:
        changes = change(lm.config)
        return None if changes is None else with_config(lm, changes)

    return fault


def switched(name: str, swaps: dict[Any, Any]) -> Fault:
    """One field takes another value."""
    return config_fault(lambda c: {name: swaps[getattr(c, name)]} if getattr(c, name) in swaps else None)


def scaled(name: str, factor: float) -> Fault:
    return config_fault(lambda c: {name: getattr(c, name) * factor})


def forgotten(name: str) -> Fault:
    return config_fault(lambda c: {name: c.default(name)} if getattr(c, name) != c.default(name) else None)


def weight_fault(pattern: str, change: Callable[[Tensor, ModelConfig], Tensor | None]) -> Fault:
    """Weights whose names match are changed."""

    def fault(lm: LM) -> LM | None:
        out = LM(lm.config).eval()
        state, hits = dict(lm.state_dict()), 0
        for name, weight in state.items():
            if re.search(pattern, name) and (new := change(weight, lm.config)) is not None:
                state[name], hits = new, hits + 1
        out.load_state_dict(state)
        return out if hits else None

    return fault


def parts(weight: Tensor, config: ModelConfig) -> list[Tensor]:
    return list(torch.split(weight, [n * config.d_head for n in (config.n_head, config.n_kv_head, config.n_kv_head)]))


def swap_keys_and_values(weight: Tensor, config: ModelConfig) -> Tensor:
    q, k, v = parts(weight, config)
    return torch.cat((q, v, k))


def tile_groups(lm: LM) -> LM | None:
    """Query head h reads kv head h % K instead of h // G."""
    n, kv = lm.config.n_head, lm.config.n_kv_head
    if kv in (1, n):
        return None
    order = torch.tensor(sorted(range(n), key=lambda h: (h % kv, h // kv)))
    rows = (order[:, None] * lm.config.d_head + torch.arange(lm.config.d_head)).flatten()
    out, state = LM(lm.config).eval(), dict(lm.state_dict())
    for name, weight in state.items():
        if ".qkv." in name:
            q, k, v = parts(weight, lm.config)
            state[name] = torch.cat((q[rows], k, v))
        elif name.endswith("out.weight"):
            state[name] = weight[:, rows]
    out.load_state_dict(state)
    return out


def fuse_the_other_way(weight: Tensor, config: ModelConfig) -> Tensor | None:
    """Rows by head read as rows by kind."""
    if config.n_kv_head != config.n_head:
        return None
    return torch.unflatten(weight, 0, (3, config.n_head, -1)).transpose(0, 1).flatten(0, 2)


def other_direction(lm: LM) -> LM | None:
    if lm.config.position != "rope":
        return None
    out = LM(lm.config).eval()
    out.load_state_dict(lm.state_dict())
    sight = out.sight

    def turned(*args: Any) -> Any:
        seen = sight(*args)
        return seen if seen.rotation is None else seen._replace(rotation=seen.rotation._replace(sin=-seen.rotation.sin))

    out.sight = turned  # type: ignore[method-assign, assignment]
    return out


def other_final_norm(lm: LM) -> LM:
    """None where there is one, one where there is none."""
    out = LM(lm.config).eval()
    out.load_state_dict(lm.state_dict())
    out.norm = Norm(lm.config, lm.config.d_model, False) if out.norm is None else None
    return out


def swap_norms(lm: LM) -> LM | None:
    """Attention's and the FFN's."""
    if lm.config.residual == "parallel_shared" or not lm.config.norm_affine:
        return None
    out, state = LM(lm.config).eval(), dict(lm.state_dict())
    for name in list(state):
        if ".attention.norm_" in name:
            other = name.replace(".attention.", ".ffn.")
            state[name], state[other] = state[other], state[name]
    out.load_state_dict(state)
    return out


def inverted_pattern(c: ModelConfig) -> dict[str, Any]:
    return {"window_pattern": c.layer_kinds.translate(str.maketrans(LOCAL + FULL, FULL + LOCAL))}


NO_ROPE = {name: ModelConfig().default(name) for name in ModelConfig.model_fields if name.startswith("rope_")}
NO_ROPE |= {"position": "none", "rope_base_local": NO_ROPE["rope_base"], "rope_original_context": CONTEXT}


def zeros(weight: Tensor, config: ModelConfig) -> Tensor:
    return torch.zeros_like(weight)


def no_gain(weight: Tensor, config: ModelConfig) -> Tensor:
    return torch.full_like(weight, 0.0 if config.norm_unit_offset else 1.0)


def shifted_by(rows: int) -> Callable[[Tensor, ModelConfig], Tensor]:
    return lambda weight, config: weight.roll(rows, dims=0)


def transposed_square(weight: Tensor, config: ModelConfig) -> Tensor | None:
    return weight.T if weight.shape[0] == weight.shape[1] else None


FAULTS: dict[str, Fault] = {
    "pre-norm as post-norm": switched("norm_position", {"pre": "post"}),
    "pre-norm as branch norm": switched("norm_position", {"pre": "branch"}),
    "post-norm as pre-norm": switched("norm_position", {"post": "pre"}),
    "sandwich without the outer norms": switched("norm_position", {"sandwich": "pre"}),
    "sandwich without the inner norms": switched("norm_position", {"sandwich": "branch"}),
    "branch norm as pre-norm": switched("norm_position", {"branch": "pre"}),
    "final norm": lambda lm: other_final_norm(lm) if lm.norm is not None else None,
    "a final norm after post-norm": lambda lm: other_final_norm(lm) if lm.norm is None else None,
    "the two norms swapped": swap_norms,
    "LayerNorm as RMSNorm": switched("norm", {"layernorm": "rmsnorm"}),
    "RMSNorm as LayerNorm": switched("norm", {"rmsnorm": "layernorm"}),
    "eps x 10": scaled("norm_eps", 10),
    "gain is 1 + w": config_fault(lambda c: {"norm_unit_offset": not c.norm_unit_offset} if c.norm_affine else None),
    "activation": switched("ffn", {"relu": "silu", "gelu": "relu", "gelu_tanh": "relu", "relu2": "relu"}),
    "gate's activation": switched("ffn", {"swiglu": "geglu", "geglu_tanh": "swiglu", "geglu": "swiglu"}),
    "exact GELU for tanh": switched("ffn", {"gelu_tanh": "gelu"}),
    "tanh GELU for exact": switched("ffn", {"gelu": "gelu_tanh"}),
    "exact gate GELU for tanh": switched("ffn", {"geglu_tanh": "geglu"}),
    "tanh gate GELU for exact": switched("ffn", {"geglu": "geglu_tanh"}),
    "gate and up swapped": weight_fault(r"up\.", lambda w, c: torch.cat(w.chunk(2)[::-1]) if c.gated else None),
    "keys and values swapped": weight_fault(r"qkv\.", swap_keys_and_values),
    "kv groups tiled": tile_groups,
    "fused rows by head": weight_fault(r"qkv\.", fuse_the_other_way),
    "square matrix transposed": weight_fault(r"out\.weight", transposed_square),
    "RoPE half-split as pairs": switched("rope_layout", {"half": "pairs"}),
    "RoPE pairs as half-split": switched("rope_layout", {"pairs": "half"}),
    "RoPE sign": other_direction,
    "RoPE base": scaled("rope_base", 1.5),
    "RoPE base of local layers": scaled("rope_base_local", 1.5),
    "one RoPE base for all": config_fault(lambda c: {"rope_base_local": c.rope_base} if "F" in c.layer_kinds else None),
    "RoPE fraction": config_fault(lambda c: {"rope_fraction": 1.0} if c.rope_fraction < 1 else None),
    "RoPE in part": config_fault(lambda c: {"rope_fraction": 0.5} if c.position == "rope" else None),
    "RoPE in full layers": switched("rope_layers", {"local": "all"}),
    "no RoPE": config_fault(lambda c: NO_ROPE if c.position == "rope" else None),
    "RoPE not stretched": config_fault(lambda c: {"rope_scaling": "none", "rope_factor": 1.0}),
    "RoPE stretched linearly": config_fault(
        lambda c: {"rope_scaling": "linear", "rope_original_context": c.context} if c.rope_scaling == "yarn" else None
    ),
    "position offset": weight_fault("^positions$", shifted_by(1)),
    "no position offset": weight_fault("^positions$", lambda w, c: w.roll(-c.position_offset, 0)),
    "QK-norm off": switched("qk_norm", {"head": "none", "full": "none"}),
    "QK-norm after RoPE": config_fault(lambda c: {"qk_norm_place": "after_rope"} if c.qk_norm != "none" else None),
    "QK-norm's gains": weight_fault(r"[qk]_norm\.gain", no_gain),
    "attention soft-cap off": forgotten("attention_softcap"),
    "logit soft-cap off": forgotten("logit_softcap"),
    "window + 1": config_fault(lambda c: {"window": c.window + 1} if c.window else None),
    "window - 1": config_fault(lambda c: {"window": c.window - 1} if c.window else None),
    "window pattern inverted": config_fault(inverted_pattern),
    "no window": config_fault(lambda c: {"window": None, "window_pattern": FULL} if c.window else None),
    "attention scale": scaled("attention_scale", 1.1),
    "attention scale of the width": config_fault(lambda c: {"attention_scale": 1 / math.sqrt(c.d_head)}),
    "embedding scale": forgotten("embedding_scale"),
    "residual scale": forgotten("residual_scale"),
    "logit scale": forgotten("logit_scale"),
    "parallel as sequential": switched("residual", {"parallel": "sequential"}),
    "parallel with one norm": switched("residual", {"parallel": "parallel_shared"}),
    "shared norm as sequential": switched("residual", {"parallel_shared": "sequential"}),
    "sequential as parallel": switched("residual", {"sequential": "parallel"}),
    "biases of q, k, v": weight_fault(r"qkv\.bias", zeros),
    "biases of out": weight_fault(r"out\.bias", zeros),
    "biases of up": weight_fault(r"up\.bias", zeros),
    "biases of down": weight_fault(r"down\.bias", zeros),
    "biases of norms": weight_fault(r"norm_\w+\.bias", zeros),
    "bias of the final norm": weight_fault(r"^norm\.bias", zeros),
    "gains": weight_fault(r"norm_\w+\.gain", no_gain),
    "gain of the final norm": weight_fault(r"^norm\.gain", no_gain),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_noticed(fault: str, record_property: Callable[[str, object], None]) -> None:
    """By at least one family, with ten times the tolerance."""
    largest, by = max(errors_of(fault), default=(0.0, "no family"))
    record_property("error", f"{largest:.3g} by {by}")
    assert largest > 10 * TOLERANCE


def errors_of(fault: str) -> Iterator[tuple[float, str]]:
    """How much the fault changes each model it applies to."""
    for name in CASES:
        both = pair(name)
        wrong = FAULTS[fault](both.ours)
        if wrong is not None:
            yield both.error(wrong), name


def llama(**values: Any) -> Any:
    return transformers.LlamaConfig(**(FREE | ROPE | values))


def scaled_rope(**values: Any) -> Any:
    return llama(rope_parameters={"rope_theta": 50.0} | values)


# What is asked for, and the words that the refusal must contain.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another model type": (lambda: transformers.BloomConfig(), "'bloom'; covered are gpt2, "),
    "a model of pictures": (lambda: transformers.Gemma3Config(), "'gemma3'"),
    "an unknown key": (lambda: llama(depth_scale=0.5), "llama: depth_scale = 0.5"),
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


OURS = ModelConfig(vocab=VOCAB, d_model=24, n_layer=4, n_head=6, n_kv_head=3, d_ff=40, context=CONTEXT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": "alibi"}, "no family has position = 'alibi'"),
        ({"position": "sinusoidal"}, "no family has position = 'sinusoidal'"),
        ({"qk_norm": "head", "qk_norm_place": "after_rope"}, "no family has qk_norm_place = 'after_rope'"),
        ({"rope_scaling": "ntk", "rope_factor": 2.0}, "no family has rope_factor = 2.0, rope_scaling = 'ntk'"),
        ({"ffn": "relu2"}, "no family combines these; the nearest, "),
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


def test_what_belongs_to_training_does_not_travel_and_nothing_random_happens() -> None:
    lm = LM(replace(OURS, {"dropout": 0.2, "init": "gpt2", "init_scale": 2.0}))
    before = torch.get_rng_state()
    model = hf.to_hf(lm)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert model.config.attention_dropout == 0
    back = hf.from_hf(model).config
    assert (back.dropout, back.init) == (0.0, "fan_in")
    assert hf.differences(back, lm.config) == []


def test_copies_share_no_memory_and_keep_their_dtype() -> None:
    lm = hf.from_hf(build("qwen3").to(torch.bfloat16))
    assert {p.dtype for p in lm.parameters()} == {torch.bfloat16}
    model = hf.to_hf(lm)
    assert (model.dtype, model.config.dtype) == (torch.bfloat16, torch.bfloat16)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert all(bool(p.any()) for p in lm.parameters())


@pytest.mark.parametrize("name", ["llama biases", "qwen3", "olmo3", "gpt_neox sequential", "gemma3_text", "cohere2"])
def test_the_rope_layouts_are_one_function(name: str) -> None:
    """Rows of q and k and QK-norm's gains are permuted, and only channels that rotate."""
    both = pair(name)
    layout = both.ours.config.rope_layout
    other = hf.with_rope_layout(both.ours, "half" if layout == "pairs" else "pairs")
    assert other.config.rope_layout != layout
    assert both.error(other) < TOLERANCE
    assert_same_tensors(hf.with_rope_layout(other, layout).state_dict(), both.ours.state_dict())


TEXT = "Line one:  two  spaces\n\n  indented, caf\u00e9 \u2028 and \U0001f600.\n\ttab\r\nend \n"


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_an_exported_tokenizer_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    ours = tokenizer.build(kind, TEXT * 3, TEXT, bpe_vocab=300)
    lm = LM(replace(OURS, {"vocab": ours.vocab}))
    hf.export(lm, tmp_path, ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode(TEXT).tolist()
    assert theirs(TEXT)["input_ids"] == ids
    assert theirs.decode(ids) == TEXT
    assert len(theirs) == ours.vocab
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]
