"""Bytes of training: counted, and allocated by a real training step on the CPU."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lmcore import count, memory, optim
from lmcore.config import ModelConfig, TrainConfig, replace
from lmcore.model import LM
from lmcore.presets import PRESETS
from tests.lmcore.models import models

Result = TypeVar("Result")

BASE = ModelConfig(vocab=500, d_model=96, n_layer=2, n_head=6, n_kv_head=2, d_head=10, d_ff=200, context=64)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"n_kv_head": 6},
    {"rope_fraction": 0.4},
    {"position": "none"},
    {"position": "alibi"},
    {"position": "learned", "tied": True, "ffn": "silu"},
    {"window": 8},
    {"window": 8, "window_pattern": "LF", "rope_layers": "local"},
    {"norm": "layernorm", "bias": "all", "ffn": "gelu"},
    {"norm_affine": False, "ffn": "relu2"},
    {"qk_norm": "head"},
    {"qk_norm": "full"},
    {"qk_norm": "head", "qk_norm_place": "after_rope"},
    {"norm_position": "post"},
    {"norm_position": "sandwich", "attention_softcap": 3.0, "logit_softcap": 3.0},
    {"norm_position": "branch"},
    {"residual": "parallel"},
    {"residual": "parallel_shared", "ffn": "relu"},
    {"dropout": 0.1},
]


def allocated(work: Callable[[], Result]) -> tuple[Result, int]:
    """What `work` gives, and the bytes that the allocator handed out during it and did not get back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = work()
    return result, sum(event.self_cpu_memory_usage for event in record.key_averages())


def loss_of(model: LM, batch: int, precision: memory.Precision) -> Tensor:
    """As `lmcore.train` computes it."""
    ids = torch.zeros(batch, model.config.context, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
        logits = model(ids)
    return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


def error(config: ModelConfig, batch: int, path: Any, precision: Any) -> float:
    """Relative error of the counted activations and logits."""
    counted, model = memory.training_bytes(config, batch, None, precision, path), LM(config, path=path)
    _, held = allocated(lambda: loss_of(model, batch, precision))
    return (counted["activations"] + counted["logits"]) / held - 1


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_a_training_step_holds_the_counted_bytes(changes: dict[str, Any]) -> None:
    """Far more closely than the 25 % asked for: a forgotten tensor of width d_model in one layer is 1.5 % here."""
    for path in ("fused", "plain"):
        for precision in ("float32", "bf16"):
            assert abs(error(replace(BASE, changes), 3, path, precision)) < 0.005, (path, precision)


@pytest.mark.parametrize("changes", [{}, {"window": 40, "window_pattern": "LF"}], ids=str)
def test_so_do_long_sequences_in_blocks(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "QUERY_BLOCKS", (24, 24))
    assert abs(error(replace(BASE, changes), 3, "plain", "float32")) < 0.005


def wide(m: ModelConfig) -> ModelConfig:
    """As wide beside its heads and tokens as models are; otherwise what is left out as small would not be."""
    more = {"context": 16, "d_model": 40, "d_ff": 80, "d_head": 4, "vocab": 100}
    return replace(m, {name: getattr(m, name) + n for name, n in more.items()})


@settings(max_examples=50, deadline=None)
@given(models().map(wide), st.integers(2, 4), st.sampled_from(["fused", "plain"]), st.sampled_from(["float32", "bf16"]))
def test_so_do_random_models(config: ModelConfig, batch: int, path: str, precision: str) -> None:
    assert (
        abs(error(config, batch, path, precision)) < 0.1
    )  # 0.25 is asked for; tiny models exaggerate what is left out


@pytest.mark.parametrize("changes", SETTINGS[:6], ids=str)
def test_states_of_an_update_take_the_counted_bytes(changes: dict[str, Any]) -> None:
    """Within 10 % asked for, 1 % here: the optimizer also keeps a step counter for each tensor."""
    config = replace(BASE, changes)
    model, weights = allocated(lambda: LM(config))
    optimizers = optim.build(model.named_parameters(), TrainConfig())
    loss, activations = allocated(lambda: loss_of(model, 3, "float32"))
    _, backward = allocated(loss.backward)
    _, moments = allocated(lambda: optim.step(optimizers))
    held = {"weights": weights, "gradients": backward + activations, "optimizer": moments}  # backward frees activations
    counted = memory.training_bytes(config, 3)
    assert {name: counted[name] for name in held} == pytest.approx(held, rel=0.01)


def test_components_sum_and_grow_as_they_should() -> None:
    one, two = (memory.activation_bytes_by_component(BASE, 2, tokens, path="plain") for tokens in (32, 64))
    assert two["scores"] == 4 * one["scores"]
    assert all(two[name] == 2 * one[name] for name in ("norms", "attention", "ffn", "head", "logits"))
    assert "scores" not in memory.activation_bytes_by_component(BASE, 2, 64)
    whole = memory.training_bytes(BASE, 2, 64, path="plain")
    assert whole["activations"] + whole["logits"] == sum(two.values())


def test_seven_billion_parameters_in_the_numbers_one_knows() -> None:
    """16 bytes per parameter of states (Rajbhandari et al. 2020, section 3.1, counts the same for other parts)."""
    held = memory.training_bytes(PRESETS["llama-2-7b"], 1, 4096, "bf16")
    assert held["weights"] + held["gradients"] + held["optimizer"] == 16 * 6_738_415_616
    assert held["logits"] == 4096 * 32000 * 4
