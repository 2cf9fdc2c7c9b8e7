"""What telemetry says is what the formulas say, and training does not notice it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lmcore import checkpoint, telemetry
from lmcore.config import replace
from lmcore.data import TokenData
from lmcore.model import LM
from tests.lmcore.test_train import RUN, numbers, run, tokens

__all__ = ["tokens"]  # a fixture

LAYER_NAMES = ("activation_rms", "attention_max_logit", "attention_entropy")
GROUPS = ("embedding", "attention", "ffn", "head", "norms")


def readings_of(model: LM, token_ids: Tensor) -> dict[tuple[str, int], float]:
    found = telemetry.forward_readings(model.forward, list(model.blocks), token_ids)
    return {(reading.name, reading.layer): float(reading.value) for reading in found}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model.dropout": 0.2},
        {"train.precision": "bf16", "train.micro_batch": 3},
        {"train.precision": "bf16_weights"},
        {"model.attention_softcap": 5.0, "train.optimizer": "muon"},
        {"model.window": 8, "model.window_pattern": "LF", "model.qk_norm": "head", "model.n_kv_head": 2},
        {"model.position": "alibi", "train.attention": "plain", "model.tied": True},
    ],
    ids=str,
)
def test_training_is_the_same_to_the_last_bit(changes: dict[str, Any], tokens: TokenData) -> None:
    config = replace(RUN, {"train.steps": 9, **changes})
    observed = replace(config, {"train.telemetry_every": 2})
    (without, ended), (with_it, also) = run(config, tokens), run(observed, tokens)
    assert observed.run_id == config.run_id
    assert also.summary["weights_sha256"] == ended.summary["weights_sha256"]
    assert with_it.checkpoints[9]["optimizer.safetensors"] == without.checkpoints[9]["optimizer.safetensors"]
    assert (numbers(with_it.rows), with_it.evals) == (numbers(without.rows), without.evals)
    assert without.telemetry == []
    assert {row["step"] for row in with_it.telemetry} == {2, 4, 6, 8}
    assert all(math.isfinite(row["value"]) for row in with_it.telemetry)


def test_every_quantity_is_told_for_every_layer_and_group(tokens: TokenData) -> None:
    sink, _ = run(replace(RUN, {"train.steps": 6, "train.telemetry_every": 6}), tokens)
    told = [(row["name"], row["layer"]) for row in sink.telemetry]
    whole = [("log_normaliser", -1), *((f"update_ratio/{group}", -1) for group in GROUPS)]
    assert sorted(told) == sorted([*whole, *((name, layer) for name in LAYER_NAMES for layer in (0, 1))])


def test_rows_are_those_of_the_weights_after_the_step(tokens: TokenData) -> None:
    """And without dropout."""
    changes = {"train.steps": 8, "train.telemetry_every": 8, "train.checkpoint_every": 7, "model.dropout": 0.2}
    config = replace(RUN, changes)
    sink, _ = run(config, tokens)
    before, after = LM(config.model).eval(), LM(config.model).eval()
    checkpoint.load_weights(before, sink.checkpoints[7]["model.safetensors"])
    checkpoint.load_weights(after, sink.checkpoints[8]["model.safetensors"])
    told = {(row["name"], row["layer"]): row["value"] for row in sink.telemetry}
    inputs = torch.from_numpy(tokens.batch(0, 8, 8, 32)[0])
    for key, value in readings_of(after, inputs).items():
        assert told[key] == pytest.approx(value, rel=1e-6), key
    moved = after.head.weight - before.head.weight  # type: ignore[union-attr]
    ratio = float((moved.norm() / before.head.weight.norm()).detach())  # type: ignore[union-attr]
    assert told["update_ratio/head", -1] == pytest.approx(ratio, rel=1e-5)


def test_a_resumed_run_tells_the_same(tokens: TokenData) -> None:
    config = replace(RUN, {"train.telemetry_every": 3})
    whole, _ = run(config, tokens)
    first, stopped = run(config, tokens, stop_at=10)
    rest, _ = run(config, tokens, resume=first.checkpoints[stopped.step])
    assert first.telemetry + rest.telemetry == whole.telemetry


def test_a_step_that_diverges_tells_nothing(tokens: TokenData) -> None:
    changes = {"train.lr": 1e30, "train.clip": None, "train.warmup": 0, "train.telemetry_every": 1}
    sink, outcome = run(replace(RUN, changes), tokens)
    assert outcome.ending == "diverged"
    assert {row["step"] for row in sink.telemetry} == set(range(1, outcome.step))


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("window", [None, 5])
def test_scores_are_those_of_the_attention(path: Any, window: int | None) -> None:
    """With zero queries every visible token has the same weight: entropy is the mean log of how many there are."""
    model = LM(replace(RUN, {"model.window": window}).model, path=path)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.sublayer.qkv.weight[:32] = 0  # type: ignore[union-attr, operator]
    found = readings_of(model, torch.arange(24).reshape(2, 12))
    visible = [min(t + 1, window or 12) for t in range(12)]
    assert found["attention_entropy", 0] == pytest.approx(sum(map(math.log, visible)) / 12, rel=1e-6)
    assert found["attention_max_logit", 1] == 0


def test_rms_entropy_and_normaliser_are_their_formulas() -> None:
    assert float(telemetry.rms(torch.tensor([3.0, -4.0]))) == pytest.approx(math.sqrt(12.5))
    sure = torch.tensor([[0.0, -math.inf], [1e4, 0.0]])
    assert float(telemetry.entropy(sure)) == 0
    assert float(telemetry.entropy(torch.zeros(2, 3, 8))) == pytest.approx(math.log(8))
    model = LM(RUN.model)
    ids = torch.arange(10)[None]
    wanted = model(ids).exp().sum(dim=-1).log().mean()
    assert readings_of(model, ids)["log_normaliser", -1] == pytest.approx(float(wanted.detach()), rel=1e-5)


def test_the_stream_after_a_block_is_measured() -> None:
    model = LM(RUN.model)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        x = model.embed(ids, torch.arange(10), None, 10)
        x = model.blocks[0](x, model.sight("F", torch.arange(10), 0, 10, None), None)
    assert readings_of(model, ids)["activation_rms", 0] == pytest.approx(float(x.square().mean().sqrt()), rel=1e-6)


def test_update_ratio_is_over_all_weights_of_a_group_and_undefined_at_zero() -> None:
    before = {"ffn": [torch.tensor([3.0]), torch.tensor([[4.0]])], "norms": [torch.zeros(2)]}
    after = {"ffn": [torch.tensor([3.3]), torch.tensor([[4.4]])], "norms": [torch.ones(2)]}
    (reading,) = telemetry.update_ratios(before, after)
    assert reading.name == "update_ratio/ffn"
    assert float(reading.value) == pytest.approx(0.1)


@pytest.mark.parametrize("bias", ["none", "all"])
def test_every_parameter_has_its_group(bias: str) -> None:
    changes = {"model.bias": bias, "model.position": "learned", "model.norm": "layernorm", "model.qk_norm": "full"}
    groups: dict[str, set[str]] = {}
    for name, _ in LM(replace(RUN, changes).model).named_parameters():
        groups.setdefault(telemetry.group_of(name), set()).add(name)
    assert set(groups) == set(GROUPS)
    assert groups["embedding"] == {"embedding.weight", "positions"}
    assert groups["head"] == {"head.weight"}
    assert {"norm.gain", "blocks.0.attention.sublayer.q_norm.gain", "blocks.1.ffn.norm_in.gain"} <= groups["norms"]


def test_hooks_are_gone_afterwards_also_after_an_error() -> None:
    model = LM(RUN.model)
    with pytest.raises(IndexError):
        telemetry.forward_readings(model.forward, list(model.blocks), torch.tensor([[9999]]))
    telemetry.forward_readings(model.forward, list(model.blocks), torch.tensor([[1]]))
    assert not any(module._forward_hooks for module in model.modules())


def test_compiled_code_of_the_step_is_neither_used_nor_compiled_anew() -> None:
    model, compilations = LM(RUN.model), []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        compilations.append(graph)
        return graph.forward

    ids = torch.arange(32)[None]
    plain = readings_of(model, ids)
    model.compile(backend=counting)
    first = model(ids).sum()
    first.backward()
    count = len(compilations)
    assert readings_of(model, ids) == plain
    assert torch.equal(model(ids).sum(), first)
    assert count == len(compilations) > 0
    torch._dynamo.reset()
