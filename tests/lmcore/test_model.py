"""The decoder: every switch changes the function, both attention paths agree, counts are exact."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmcore import count
from lmcore.attention import fused, plain
from lmcore.config import ModelConfig, replace
from lmcore.model import LM
from lmcore.position import rotate, rotation, sinusoids

SMALL = ModelConfig(vocab=31, d_model=24, n_layer=2, n_head=4, n_kv_head=2, d_head=8, d_ff=40, context=16)

# Every switch with a value other than SMALL's. A new field of ModelConfig must be added here.
CHANGES: dict[str, Any] = {
    "vocab": 30,
    "d_model": 32,
    "n_layer": 3,
    "n_head": 2,
    "n_kv_head": 4,
    "d_head": 6,
    "d_ff": 32,
    "context": None,  # the length of training sequences; a learned table grows with it (tested below)
    "ffn": ["relu", "gelu", "gelu_tanh", "silu", "relu2", "glu", "reglu", "geglu", "geglu_tanh"],
    "norm": "layernorm",
    "norm_position": ["post", "sandwich", "branch"],
    "norm_affine": False,
    "norm_bias": True,
    "norm_eps": 0.1,
    "bias": ["all", "qkv"],
    "position": ["learned", "sinusoidal", "none"],
    "rope_base": 100.0,
    "rope_layout": "pairs",
    "rope_fraction": 0.5,
    "tied": True,
    "init": ["xavier", "gpt2"],
    "init_scale": 2.0,
    "embedding_std": 0.5,
}


def noisy(config: ModelConfig, seed: int = 0) -> LM:
    """A model in which every parameter matters: with zero biases and unit gains a test would not see them."""
    model = LM(config, seed=seed, path="plain")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.dim() == 1 else 0.05
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def ids(batch: int = 2, tokens: int = 12, vocab: int = 30) -> Tensor:
    return torch.randint(0, vocab, (batch, tokens), generator=torch.Generator().manual_seed(2))


def cases() -> list[tuple[str, Any]]:
    listed = [(name, value if isinstance(value, list) else [value]) for name, value in CHANGES.items()]
    return [(name, value) for name, values in listed for value in values if value is not None]


def test_every_switch_is_in_the_list() -> None:
    assert set(CHANGES) == set(ModelConfig.model_fields)


@pytest.mark.parametrize(("name", "value"), cases())
def test_every_switch_changes_the_function(name: str, value: Any) -> None:
    tokens = ids()
    before, after = noisy(SMALL)(tokens), noisy(replace(SMALL, {name: value}))(tokens)
    changed = before.shape != after.shape or (before - after).abs().max() > 1e-4
    assert changed, f"{name}={value} computes the same function"


@pytest.mark.parametrize(("a", "b"), [*itertools.combinations(["gelu", "gelu_tanh", "silu", "relu", "relu2"], 2)])
def test_all_activations_differ(a: str, b: str) -> None:
    one, two = (noisy(replace(SMALL, {"ffn": kind}))(ids()) for kind in (a, b))
    assert (one - two).abs().max() > 1e-5


@pytest.mark.parametrize("name", ["n_kv_head", "position", "bias", "norm_position"])
@pytest.mark.parametrize("real", [None, "left", "right"])
def test_fused_and_plain_attention_agree_forward_and_backward(name: str, real: str | None) -> None:
    value = CHANGES[name][0] if isinstance(CHANGES[name], list) else CHANGES[name]
    config = replace(SMALL, {name: value})
    tokens, mask = ids(), padding(real)
    results = []
    for path in (fused, plain):
        model = noisy(config)
        for block in model.blocks:
            block.attention.sublayer.attend = path  # type: ignore[union-attr]
        logits = model(tokens, mask)
        keep = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask
        logits[keep].square().mean().backward()
        results.append((logits[keep], [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-3)


def padding(side: str | None) -> Tensor | None:
    """Row 0 is whole, row 1 has four tokens of padding."""
    if side is None:
        return None
    real = torch.ones(2, 12, dtype=torch.bool)
    real[1, :4] = side == "right"
    real[1, 8:] = side == "left"
    return real


@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_what_real_tokens_give(position: str, side: str) -> None:
    model, tokens = noisy(replace(SMALL, {"position": position})), ids()
    real = padding(side)
    assert real is not None
    padded = model(tokens, real)
    alone = model(tokens[1:, real[1]])
    torch.testing.assert_close(padded[1, real[1]], alone[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(padded[0], model(tokens[:1])[0], atol=1e-5, rtol=1e-4)
    assert padded.isfinite().all()


@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal", "none"])
def test_no_token_sees_the_future(position: str) -> None:
    model, tokens = noisy(replace(SMALL, {"position": position})), ids()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 30
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] - after[:, 7:]).abs().amin(dim=(0, 2)).min() > 1e-6


def test_only_rope_and_none_go_beyond_a_learned_table() -> None:
    with pytest.raises(ValueError, match="only 16 learned positions"):
        LM(replace(SMALL, {"position": "learned"}))(ids(tokens=17))
    assert LM(SMALL)(ids(tokens=17)).shape == (2, 17, 31)


def test_rotation_depends_on_distance_only_and_keeps_norms() -> None:
    for layout in ("half", "pairs"):
        config = replace(SMALL, {"rope_layout": layout})
        q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
        dots = []
        for shift in (0, 7, 1000):
            at = rotation(torch.tensor([shift + 3]), config), rotation(torch.tensor([shift + 1]), config)
            turned_q, turned_k = rotate(q, at[0]), rotate(k, at[1])
            dots.append(float((turned_q * turned_k).sum()))
            torch.testing.assert_close(turned_q.norm(), q.norm())
        assert max(dots) - min(dots) < 1e-3


def test_partial_rotation_leaves_the_other_channels() -> None:
    config = replace(SMALL, {"rope_fraction": 0.5})
    x = torch.randn(1, 1, 5, 8)
    turned = rotate(x, rotation(torch.arange(5), config))
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.allclose(turned[..., :4], x[..., :4])


def test_positions_stay_distinct_in_bf16() -> None:
    by = rotation(torch.arange(4096), ModelConfig(d_model=64, n_head=1))
    assert by.cos.dtype == torch.float32
    assert len(torch.unique(torch.cat((by.cos, by.sin), dim=-1), dim=0)) == 4096


def test_sinusoids_have_the_published_form() -> None:
    table = sinusoids(torch.arange(3), 4)
    assert table[0].tolist() == [0, 1, 0, 1]
    torch.testing.assert_close(table[2, 2], torch.tensor(2 / 10000 ** (2 / 4)).sin())


def test_post_norm_ends_on_a_norm_and_has_no_final_one() -> None:
    model = LM(replace(SMALL, {"norm_position": "post"}))
    assert model.norm is None
    inside = model.blocks[1](torch.randn(2, 5, 24), rotation(torch.arange(5), SMALL), None)
    torch.testing.assert_close(inside.square().mean(-1), torch.ones(2, 5), atol=1e-3, rtol=0)


def test_same_seed_same_weights_and_shared_names_share_weights_across_arms() -> None:
    one, same, other = LM(SMALL, seed=1), LM(SMALL, seed=1), LM(SMALL, seed=2)
    for (name, a), (_, b), (_, c) in zip(
        one.named_parameters(), same.named_parameters(), other.named_parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c), name
    relu = dict(LM(replace(SMALL, {"ffn": "relu"}), seed=1).named_parameters())
    name = "blocks.0.attention.sublayer.qkv.weight"
    assert torch.equal(relu[name], dict(one.named_parameters())[name])


@pytest.mark.parametrize(
    ("init", "std_qkv", "std_down"),
    [("fan_in", 128**-0.5, 512**-0.5), ("xavier", (2 / 256) ** 0.5, (2 / 640) ** 0.5), ("gpt2", 0.02, 0.02 / 8**0.5)],
)
def test_init_has_the_stated_spread(init: str, std_qkv: float, std_down: float) -> None:
    weights = dict(LM(ModelConfig(ffn="relu", init=init)).named_parameters())  # type: ignore[arg-type]
    for name, std in (("attention.sublayer.qkv", std_qkv), ("ffn.sublayer.down", std_down)):
        weight = weights[f"blocks.0.{name}.weight"].detach()
        assert float(weight.std()) == pytest.approx(std, rel=0.05)  # truncation at 3 std takes 1.4 %
        assert float(weight.abs().max()) <= 3 * std + 1e-6


def random_configs() -> st.SearchStrategy[ModelConfig]:
    def build(**switches: Any) -> ModelConfig:
        groups = switches.pop("groups")
        switches["n_head"] = groups * switches["n_kv_head"]
        return ModelConfig.model_validate(switches)

    return st.builds(
        build,
        vocab=st.integers(2, 50),
        d_model=st.integers(1, 24),
        n_layer=st.integers(1, 3),
        groups=st.integers(1, 3),
        n_kv_head=st.integers(1, 3),
        d_head=st.integers(1, 6).map(lambda n: 2 * n),
        d_ff=st.integers(1, 40),
        context=st.integers(1, 16),
        ffn=st.sampled_from(["relu", "gelu", "swiglu", "glu"]),
        norm=st.sampled_from(["rmsnorm", "layernorm"]),
        norm_position=st.sampled_from(["pre", "post", "sandwich", "branch"]),
        norm_affine=st.booleans(),
        bias=st.sampled_from(["none", "all", "qkv"]),
        position=st.sampled_from(["rope", "learned", "sinusoidal", "none"]),
        tied=st.booleans(),
    )


@settings(max_examples=300, deadline=None)
@given(random_configs())
def test_counted_parameters_are_the_models(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = LM(config)
    assert count.params(config) == sum(p.numel() for p in model.parameters())
    inner = sum(p.numel() for name, p in model.named_parameters() if "blocks" in name or name.startswith("norm"))
    assert count.params_non_embedding(config) == inner


@settings(max_examples=100, deadline=None)
@given(random_configs())
def test_counted_flops_are_what_an_operator_counter_sees(config: ModelConfig) -> None:
    """torch's counter does not know causality, so the full count is compared, on the plain path, on no device."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model, tokens = LM(config, path="plain"), torch.zeros(1, config.context, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens)
    assert counter.get_total_flops() == count.forward_flops(config, config.context, causal=False)
