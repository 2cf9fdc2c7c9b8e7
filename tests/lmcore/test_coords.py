"""Width transfer: the rules are what the table says, and activations change alike at every width."""

from typing import Any

import pytest
import torch

from lmcore import optim
from lmcore.config import ConfigError, ModelConfig, RunConfig, TrainConfig, replace
from lmcore.coords import Coordinates, check
from lmcore.init import lr_factor
from lmcore.model import LM

MODEL = ModelConfig(vocab=64, d_model=64, n_layer=2, n_head=4, context=16)
CASES: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post"},
    "qk_norm": {"qk_norm": "head"},
    "gqa": {"n_kv_head": 2},
    "relu": {"ffn": "relu"},
    "swiglu, layernorm, biases": {"norm": "layernorm", "bias": "all"},
    "tied": {"tied": True},
    "gpt2 init": {"init": "gpt2"},
}
WIDTHS = (64, 128, 256, 512)


def slopes(name: str, transfer: bool) -> dict[str, float]:
    return check(replace(MODEL, CASES[name]), WIDTHS, transfer, lr=3e-3, seeds=2).slopes()


@pytest.mark.parametrize("name", CASES)
def test_activations_change_alike_at_every_width_in_the_transfer_parametrisation(name: str) -> None:
    found = slopes(name, transfer=True)
    logits = found.pop("logits")
    assert all(abs(slope) < 0.12 for slope in found.values()), found
    # At the start the head is random: its logits are of size m^-1/2, and only what is learnt is flat.
    assert -0.45 < logits < 0.15


@pytest.mark.parametrize("name", CASES)
def test_and_more_and_more_with_width_in_the_standard_one(name: str) -> None:
    found = slopes(name, transfer=False)
    assert max(found.values()) > 0.4
    assert found["stream 1"] > 0.2


def test_the_slope_is_that_of_a_power_law() -> None:
    powers = Coordinates((64, 128, 512), {"x": tuple(3 * w**0.5 for w in (64, 128, 512)), "y": (2.0, 2.0, 2.0)})
    assert powers.slopes() == pytest.approx({"x": 0.5, "y": 0.0}, abs=1e-12)


def test_at_the_base_width_both_parametrisations_are_one() -> None:
    ours = replace(MODEL, {"base_width": MODEL.d_model})
    tokens = torch.arange(32).view(2, 16)
    assert torch.equal(LM(ours)(tokens), LM(MODEL)(tokens))
    assert all(lr_factor(name, p.dim(), ours) == 1 for name, p in LM(ours).named_parameters())


def test_four_times_as_wide() -> None:
    """Hidden matrices: half the spread, a quarter of the step. The head: the same spread, a quarter of the logits."""
    wide = replace(MODEL, {"d_model": 256, "base_width": 64})
    standard = replace(wide, {"base_width": None})
    ours, theirs = (dict(LM(config).named_parameters()) for config in (wide, standard))
    torch.testing.assert_close(ours["head.weight"], 2 * theirs["head.weight"])
    for name in ("embedding.weight", "blocks.0.attention.sublayer.out.weight", "blocks.0.ffn.sublayer.up.weight"):
        assert torch.equal(ours[name], theirs[name])
    factors = {name: lr_factor(name, p.dim(), wide) for name, p in ours.items()}
    assert factors["blocks.0.ffn.sublayer.up.weight"] == 0.25
    assert {factors[n] for n in ("embedding.weight", "head.weight", "blocks.0.attention.norm_in.gain")} == {1.0}
    logits = [LM(config)(torch.arange(16)[None]) for config in (wide, standard)]
    torch.testing.assert_close(logits[0], logits[1] / 2)  # twice the head, a quarter of its product


def test_every_group_has_its_rate_and_the_product_with_the_decay_is_one() -> None:
    wide = replace(MODEL, {"d_model": 256, "base_width": 64})
    train = TrainConfig(lr=1e-2, weight_decay=0.1)
    optimizers = optim.build(LM(wide).named_parameters(), train, lambda name, dim: lr_factor(name, dim, wide))
    optim.set_lr(optimizers, 4e-3)
    groups = optimizers[0].param_groups
    assert sorted(group["lr"] for group in groups) == [1e-3, 4e-3, 4e-3]
    assert sorted(group["lr"] * group["weight_decay"] for group in groups) == pytest.approx([0.0, 4e-4, 4e-4])


def test_the_attention_scale_falls_as_one_over_d_head_from_its_base() -> None:
    wide = replace(MODEL, {"d_model": 256, "base_width": 64, "base_d_head": 16})
    assert (wide.d_head, wide.attention_scale) == (64, 4 / 64)
    assert replace(MODEL, {"base_width": 64}).attention_scale == 16**-0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.base_width": 32, "train.optimizer": "muon"}, "muon"),
        ({"model.base_d_head": 8}, "no effect without base_width"),
    ],
)
def test_what_goes_not_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(RunConfig(), changes)
