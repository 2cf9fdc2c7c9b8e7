"""Counts against the model itself, torch's operator counter, published models and published formulas."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lmcore import count, mask
from lmcore.cache import Cache
from lmcore.config import ModelConfig, replace
from lmcore.model import LM
from lmcore.presets import PRESETS
from tests.lmcore.models import SIZES, SWITCHES, models
from tests.shared import case

KNOWN = [name for name in PRESETS if name in {
    "gpt2", "gpt2-xl", "gpt3-small", "gpt3-175b", "pythia-70m", "pythia-1b", "llama-2-7b", "llama-2-70b", "llama-3-8b",
    "tinyllama-1.1b", "smollm2-135m", "mistral-7b-v0.1", "gemma-2b", "gemma-2-2b", "gemma-2-9b", "qwen2.5-0.5b",
    "qwen3-0.6b",
}]  # fmt: skip
# Our names for the conventions of the cases.
CONVENTIONS = {
    "2N": "2N_total",
    "2N_non_embedding": "2N_non_embedding",
    "kaplan": "kaplan_2N_plus_2LTd_attn",
    "palm": "palm_2N_plus_4LHQT (N=total minus input/pos embedding if untied)",
    "full": "matmul_incl_head_attn_full",
    "causal_ignoring_windows": "matmul_incl_head_attn_causal_exact",
}


def test_random_models_vary_every_switch() -> None:
    assert set(SIZES) | set(SWITCHES) | {"n_head", "rope_scaling", "rope_factor"} - {"rope_stretch"} >= set(
        ModelConfig.model_fields
    )


@settings(max_examples=300, deadline=None)
@given(models())
def test_counted_parameters_are_the_models(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = LM(config)
    assert count.params(config) == sum(p.numel() for p in model.parameters())
    inner = sum(p.numel() for name, p in model.named_parameters() if "blocks" in name or name.startswith("norm"))
    assert count.params_non_embedding(config) == inner


@given(st.integers(1, 40), st.one_of(st.none(), st.integers(1, 50)))
def test_counted_pairs_are_those_of_the_mask(tokens: int, window: int | None) -> None:
    slots = torch.arange(tokens)
    assert count.attended_pairs(tokens, True, window) == int(mask.visible(slots, slots, window).sum())


@settings(max_examples=300, deadline=None)
@given(models())
def test_counted_flops_are_what_an_operator_counter_sees_forward_and_backward(config: ModelConfig) -> None:
    """torch's counter does not know causality, so the full count is compared, on the plain path, on no device."""
    tokens = config.context
    with torch.device("meta"):
        model, ids = LM(config, path="plain"), torch.zeros(1, tokens, dtype=torch.long)
        with FlopCounterMode(display=False) as forward:
            logits = model(ids)
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
    assert forward.get_total_flops() == count.forward_flops(config, tokens, causal=False)
    counted = count.backward_flops_by_component(config, tokens, causal=False)
    assert backward.get_total_flops() == sum(counted.values())


def test_each_component_is_what_its_module_computes() -> None:
    config = ModelConfig(vocab=31, d_model=24, n_layer=2, n_head=4, n_kv_head=2, d_head=8, d_ff=40, context=16)
    with torch.device("meta"):
        model, ids = LM(config, path="plain"), torch.zeros(1, 16, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(ids)
    found: Counter[str] = Counter()
    for module, by_operator in counter.get_flop_counts().items():
        found[module.rpartition(".")[2]] += sum(by_operator.values())
    ours = count.forward_flops_by_component(config, 16, causal=False)
    assert found["qkv"] == ours["q"] + ours["k"] + ours["v"]
    assert found["out"] == ours["output"]
    assert (found["up"], found["down"]) == (ours["ffn_gate"] + ours["ffn_up"], ours["ffn_down"])
    of_blocks = sum(found[f"{n}"] for n in range(2))
    outside = sum(ours[name] for name in ("scores", "values"))
    assert of_blocks == found["qkv"] + found["out"] + found["up"] + found["down"] + outside
    assert found["LM"] == of_blocks + ours["head"]


@settings(max_examples=50, deadline=None)
@given(models(), st.integers(1, 16))
def test_a_decode_step_costs_what_the_counter_sees(config: ModelConfig, seen: int) -> None:
    """The last of `seen` tokens, the others lying in the cache."""
    seen = min(seen, config.context)
    with torch.no_grad():
        model, cache = LM(config, path="plain").eval(), Cache(config)
        if seen > 1:
            model(torch.zeros(1, seen - 1, dtype=torch.long), cache=cache)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    assert counter.get_total_flops() == count.decode_flops(config, seen)


@settings(max_examples=50, deadline=None)
@given(models(), st.integers(1, 16))
def test_kv_bytes_are_those_of_the_keys_and_values_that_attention_reads(config: ModelConfig, tokens: int) -> None:
    """A cache holds one token less in a full window: the oldest is dropped before the newest comes."""
    cache, tokens = Cache(config), min(tokens, config.context)
    with torch.no_grad():
        LM(config).eval()(torch.zeros(1, tokens, dtype=torch.long), cache=cache)
    full_windows = sum(tokens >= (config.layer_window(kind) or tokens + 1) for kind in config.layer_kinds)
    per_layer = count.kv_bytes_per_token(config, 4) // config.n_layer
    assert cache.bytes == count.kv_bytes(config, tokens, 4) - full_windows * per_layer


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_model_has_every_published_count(name: str) -> None:
    entry, model = case("known_models.json")[name], PRESETS[name]
    context = entry["config"]["ctx_train"]
    assert model.context == context
    _same_sizes(model, entry["config"])
    groups, params = count.params_by_group(model), entry["params"]
    assert count.params(model) == params["total"] == (params["published_total"] or params["total"])
    assert count.params_non_embedding(model) == params["non_embedding_kaplan"]
    assert (groups["embedding"], groups["positions"]) == (params["input_embedding"], params["position_embedding"])
    assert sum(count.matrix_sizes(model).values()) == params["matmul_weights_incl_head"]
    assert count.kv_bytes_per_token(model) == entry["kv_cache_bytes_per_token_bf16"]
    flops, published = count.forward_flops_per_token_by_convention(model, context), entry["fwd_flops_per_token"]
    assert {key: flops[key] for key in CONVENTIONS} == {key: published[name] for key, name in CONVENTIONS.items()}
    windowed = published.get("matmul_incl_head_attn_causal_windowed", flops["causal_ignoring_windows"])
    assert flops["causal"] == windowed
    assert model.layer_kinds.count("L") == published.get("local_layers", 0)
    check = entry["flop_counter_check"]
    assert count.forward_flops(model, check["T"], causal=False) == check["measured_eager_meta"]
    _same_training_flops(model, entry["train_flops_per_token"])


def _same_sizes(model: ModelConfig, published: dict[str, Any]) -> None:
    names = {"head_dim": "d_head", "tied_embeddings": "tied", "sliding_window": "window"}
    for key in set(published) - {"arch", "ctx_train"}:
        assert getattr(model, names.get(key, key)) == published[key], key


def _same_training_flops(model: ModelConfig, published: dict[str, float]) -> None:
    flops = count.forward_flops_per_token_by_convention(model, model.context)
    ours = {
        "6N_total": 3 * flops["2N"],
        "6N_non_embedding": 3 * flops["2N_non_embedding"],
        "exact_matmul_causal": 3 * flops["causal_ignoring_windows"],
        "exact_matmul_full_attn": 3 * flops["full"],
    }
    assert ours == published
    if model.window is None:
        assert count.train_flops_per_token(model) == published["exact_matmul_causal"]


def test_every_model_of_the_cases_is_a_preset() -> None:
    cases = case("known_models.json")
    assert {name for name in cases if not name.startswith("_")} == set(KNOWN)


def test_caches_with_windows_have_the_published_bytes() -> None:
    extra = case("known_models.json")["_kv_extra"]
    for name, key in (
        ("mistral-7b-v0.1", "mistral-7b sliding window 4096, rolling buffer, ctx 8192"),
        ("gemma-2-9b", "gemma-2-9b (21 local W=4096 + 21 global), ctx 8192"),
    ):
        model = PRESETS[name]
        assert count.kv_bytes(model, 8192) == extra[key]["total_bytes"]
        without = replace(model, {"window": None, "window_pattern": "F"})
        assert count.kv_bytes(without, 8192) == extra[key]["full_attention_bytes"]


def test_palm_reached_the_published_utilisation() -> None:
    check, palm = case("known_models.json")["_palm_mfu_check"], PRESETS["palm-540b"]
    assert (palm.n_layer, palm.n_head, palm.d_head, palm.context) == tuple(check[k] for k in "LHQT")
    n = count.params(palm)
    assert n == pytest.approx(check["N"], rel=2e-5)  # the case rounds it
    with_attention = 3 * count.forward_flops_per_token_by_convention(palm, palm.context)["palm"]
    speed, peak = check["tokens_per_s"], check["peak_flops"]
    reached = [count.mfu(flops, speed, peak) for flops in (with_attention, 6 * n)]
    assert reached == pytest.approx([check["mfu_with_attention"], check["mfu_without_attention"]], abs=1e-5)
    assert reached == pytest.approx(check["published"], abs=5e-4)


def test_gpt2_without_biases_is_what_nanogpt_counts() -> None:
    check, gpt2 = case("known_models.json")["_nanogpt_check"], PRESETS["gpt2"]
    assert count.params(replace(gpt2, {"bias": "none"})) == check["gpt2 bias=False params"]
    assert count.forward_flops(gpt2, 1024, causal=False) == check["gpt2 forward flops at T=1024"]
    backward = sum(count.backward_flops_by_component(gpt2, 1024, causal=False).values())
    assert check["gpt2 forward flops at T=1024"] + backward == check["train flops per sequence"]


def chinchilla_models() -> list[dict[str, Any]]:
    return [row for row in case("chinchilla_models.json") if isinstance(row, dict)]


def as_chinchilla(row: dict[str, Any]) -> tuple[ModelConfig, int]:
    """Our model of a row of table A9 and its parameters: theirs have Transformer-XL's relative positions besides."""
    sizes = {name: row[name] for name in ("d_model", "n_layer", "n_head")}
    switches = {"norm": "layernorm", "bias": "all", "ffn": "gelu", "position": "none", "tied": True}
    more = {"d_head": row["kv_size"], "d_ff": row["ffw"], "vocab": 32000, "context": 2048}
    model = ModelConfig.model_validate(sizes | switches | more)
    d_attn = model.n_head * model.d_head
    relative = model.n_layer * (model.d_model * d_attn + 2 * d_attn)  # a matrix on the distances, two bias vectors
    return model, count.params(model) + relative


def test_chinchillas_models_have_their_parameters() -> None:
    rows = chinchilla_models()
    assert len(rows) == 50
    for row in rows:
        _, params = as_chinchilla(row)
        assert params == row["recomputed_params_rel_pos"]
        assert params / row["published_params"] - 1 == pytest.approx(row["rel_err"], abs=1e-12)


def test_chinchillas_formula_gives_its_table_a4() -> None:
    rows = [row for row in chinchilla_models() if "table_A4_ratio" in row]
    assert len(rows) == 6
    for row in rows:
        model, params = as_chinchilla(row)
        flops = count.forward_flops_per_token_by_convention(model, 2048)
        ratio = {key: 3 * flops[key] / (6 * params) for key in ("chinchilla", "chinchilla_table_a4")}
        assert ratio["chinchilla_table_a4"] == pytest.approx(row["ratio_no_embed_no_logits"], rel=1e-12)
        assert ratio["chinchilla"] == pytest.approx(row["ratio_with_embed_and_logits_as_written"], rel=1e-12)
        assert round(ratio["chinchilla_table_a4"], 2) == row["table_A4_ratio"]
        head = 3 * 2 * model.vocab * model.d_model / (6 * params)
        assert ratio["chinchilla"] - head == pytest.approx(row["ratio_with_logits_only"], rel=1e-12)


def test_what_a_run_accounts_for_adds_up() -> None:
    model = PRESETS["gemma-2-2b"]
    assert sum(count.params_by_group(model).values()) == count.params(model)
    forward = count.forward_flops_by_component(model, 8192)
    assert 3 * sum(forward.values()) == count.train_flops_per_token(model) * 8192
