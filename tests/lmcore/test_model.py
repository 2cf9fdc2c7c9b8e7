"""The decoder: every switch changes the function, both attention paths agree, counts are exact."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lmcore import count, mask
from lmcore.attention import Attention, Sight
from lmcore.cache import Cache
from lmcore.config import ModelConfig, replace
from lmcore.model import LM
from lmcore.position import rotate, rotation, sinusoids

SMALL = ModelConfig(vocab=31, d_model=24, n_layer=2, n_head=4, n_kv_head=2, d_head=8, d_ff=40, context=16)

# Every switch with values other than SMALL's, each with what it needs to have an effect. A new field must be added.
WINDOW = {"window": 3, "window_pattern": "LF"}
STRETCHED = {"rope_scaling": "yarn", "rope_factor": 4.0}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "vocab": [{"vocab": 30}],
    "d_model": [{"d_model": 32}],
    "n_layer": [{"n_layer": 3}],
    "n_head": [{"n_head": 2}],
    "n_kv_head": [{"n_kv_head": 4}, {"n_kv_head": 1}],
    "d_head": [{"d_head": 6}],
    "d_ff": [{"d_ff": 32}],
    "context": [],  # the length of training sequences; a learned table and yarn's trained length follow it
    "tied": [{"tied": True}],
    "ffn": [
        {"ffn": kind} for kind in ("relu", "gelu", "gelu_tanh", "silu", "relu2", "glu", "reglu", "geglu", "geglu_tanh")
    ],
    "bias": [{"bias": kind} for kind in ("all", "qkv", "attention", "ffn")],
    "residual": [{"residual": "parallel"}, {"residual": "parallel_shared"}],
    "dropout": [],  # acts in training only (tested below)
    "norm": [{"norm": "layernorm"}],
    "norm_position": [{"norm_position": place} for place in ("post", "sandwich", "branch")],
    "norm_affine": [{"norm_affine": False}],
    "norm_bias": [{"norm_bias": True}],
    "norm_unit_offset": [],  # another meaning of the same stored gain (tested below)
    "norm_eps": [{"norm_eps": 0.1}],
    "qk_norm": [{"qk_norm": "head"}, {"qk_norm": "full"}],
    "qk_norm_place": [{"qk_norm": "head", "qk_norm_place": "after_rope"}],
    "attention_scale": [{"attention_scale": 1.0}],
    "attention_softcap": [{"attention_softcap": 0.5}],
    "logit_softcap": [{"logit_softcap": 1.0}],
    "window": [{"window": 3}, {"window": 1}],
    "window_pattern": [WINDOW, {"window": 3, "window_pattern": "FL"}],
    "position": [{"position": kind} for kind in ("learned", "sinusoidal", "alibi", "none")],
    "position_offset": [{"position": "learned", "position_offset": 2}],
    "rope_base": [{"rope_base": 100.0}],
    "rope_base_local": [WINDOW | {"rope_base_local": 100.0}],
    "rope_layers": [WINDOW | {"rope_layers": "local"}],
    "rope_layout": [{"rope_layout": "pairs"}],
    "rope_fraction": [{"rope_fraction": 0.5}],
    "rope_scaling": [{"rope_scaling": kind, "rope_factor": 4.0} for kind in ("linear", "ntk", "yarn")],
    "rope_factor": [STRETCHED | {"rope_factor": 8.0}],
    "rope_original_context": [STRETCHED | {"rope_original_context": 400}],
    "embedding_scale": [{"embedding_scale": 2.0}],
    "residual_scale": [{"residual_scale": 0.5}],
    "logit_scale": [{"logit_scale": 0.5}],
    "init": [{"init": "xavier"}, {"init": "gpt2"}],
    "init_scale": [{"init_scale": 2.0}],
    "embedding_std": [{"embedding_std": 0.5}],
    "base_width": [{"base_width": 4}],
    "base_d_head": [{"base_width": 4, "base_d_head": 1}],
}
# What a switch needs beside it is the base it is compared with.
BESIDE: dict[str, dict[str, Any]] = {
    "qk_norm_place": {"qk_norm": "head"},
    "window_pattern": {"window": 3},
    "position_offset": {"position": "learned"},
    "rope_base_local": WINDOW,
    "rope_layers": WINDOW,
    "rope_factor": STRETCHED,
    "rope_original_context": STRETCHED,
    "base_d_head": {"base_width": 4},
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


def cases() -> list[Any]:
    return [
        pytest.param(name, changes, id=f"{name}-{'-'.join(str(v) for v in changes.values())}")
        for name, alternatives in CHANGES.items()
        for changes in alternatives
    ]


def test_every_switch_is_in_the_list() -> None:
    assert set(CHANGES) == set(ModelConfig.model_fields)


@pytest.mark.parametrize(("name", "changes"), cases())
def test_every_switch_changes_the_function(name: str, changes: dict[str, Any]) -> None:
    base = noisy(replace(SMALL, BESIDE.get(name, {})))(ids())
    changed = noisy(replace(SMALL, changes))(ids())
    differs = base.shape != changed.shape or (base - changed).abs().max() > 1e-4
    assert differs, f"{changes} computes the same function"


@pytest.mark.parametrize(("a", "b"), [*itertools.combinations(["gelu", "gelu_tanh", "silu", "relu", "relu2"], 2)])
def test_all_activations_differ(a: str, b: str) -> None:
    one, two = (noisy(replace(SMALL, {"ffn": kind}))(ids()) for kind in (a, b))
    assert (one - two).abs().max() > 1e-5


SEEING: list[dict[str, Any]] = [
    {},
    {"n_kv_head": 1},
    {"window": 3},
    WINDOW,
    {"position": "alibi"},
    {"position": "alibi", "window": 5},
    {"position": "none", "bias": "all"},
    {"qk_norm": "head"},
    {"norm_position": "post"},
]


@pytest.mark.parametrize("changes", SEEING, ids=str)
@pytest.mark.parametrize("real", [None, "left", "right"])
@pytest.mark.parametrize("block", [256, 5])
def test_fused_and_plain_attention_agree_forward_and_backward(
    changes: dict[str, Any], real: str | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plain path goes block by block."""
    monkeypatch.setattr(count, "QUERY_BLOCKS", (block, block))
    config, tokens, shown = replace(SMALL, changes), ids(), padding(real)
    results = []
    for path in ("fused", "plain"):
        model = noisy(config)
        for module in model.modules():
            if isinstance(module, Attention):
                module.path = path
        logits = model(tokens, shown)
        keep = torch.ones(2, 12, dtype=torch.bool) if shown is None else shown
        logits[keep].square().mean().backward()
        results.append((logits[keep], [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_kv_head": 1},
        {"rope_layout": "pairs", "rope_fraction": 0.5},
        {"qk_norm": "head", "attention_softcap": 2.0},
        {"position": "alibi", "window": 2},
        {"ffn": "geglu", "bias": "all", "norm": "layernorm"},
        {"ffn": "relu2", "norm_position": "sandwich"},
        {"residual": "parallel", "logit_softcap": 3.0},
    ],
    ids=str,
)
def test_gradients_are_those_of_finite_differences(changes: dict[str, Any]) -> None:
    """In float64, through norm, rotation, attention and FFN of a whole small model."""
    sizes = {
        "vocab": 7,
        "d_model": 8,
        "n_layer": 1,
        "n_head": 2,
        "n_kv_head": 2,
        "d_head": 4,
        "d_ff": 6,
        "norm_eps": 0.01,
    }
    model = noisy(ModelConfig.model_validate(sizes | changes)).double()
    names, tokens = [name for name, _ in model.named_parameters()], ids(1, 4, 7)

    def logits(*values: Tensor) -> Tensor:
        result = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (tokens,))
        assert isinstance(result, Tensor)
        return result.square().mean()

    assert torch.autograd.gradcheck(logits, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


def test_a_soft_cap_takes_the_plain_path_and_says_so() -> None:
    model = LM(replace(SMALL, {"attention_softcap": 3.0}), path="fused")
    assert {m.path for m in model.modules() if isinstance(m, Attention)} == {"plain"}
    assert model.attention_path == "plain"
    assert LM(SMALL).attention_path == "fused"


CACHED = [*SEEING, {"position": "learned"}, {"position": "sinusoidal"}, {"attention_softcap": 1.0}, {"window": 1}]


@pytest.mark.parametrize("changes", CACHED, ids=str)
@pytest.mark.parametrize("side", [None, "left"])
def test_the_cache_gives_what_the_full_forward_gives(changes: dict[str, Any], side: str | None) -> None:
    """A prompt, token by token, then several at once; beyond the window, and with padding in front."""
    model, tokens, real = noisy(replace(SMALL, changes)), ids(tokens=16), None
    if side is not None:
        real = torch.ones(2, 16, dtype=torch.bool)
        real[1, :3] = False
    cache, parts = Cache(model.config), []
    for piece in (slice(0, 6), *(slice(i, i + 1) for i in range(6, 12)), slice(12, 16)):
        parts.append(model(tokens[:, piece], None if real is None else real[:, piece], cache))
    keep = torch.ones(2, 16, dtype=torch.bool) if real is None else real
    torch.testing.assert_close(torch.cat(parts, dim=1)[keep], model(tokens, real)[keep], atol=1e-5, rtol=1e-5)
    if real is not None:
        torch.testing.assert_close(model(tokens, real)[1, 3:], model(tokens[1:, 3:])[0], atol=1e-5, rtol=1e-4)


def test_padding_behind_real_tokens_cannot_be_continued() -> None:
    model, cache, real = LM(SMALL), Cache(SMALL), torch.ones(2, 6, dtype=torch.bool)
    real[1, 4:] = False
    model(ids(tokens=6), real, cache)
    with pytest.raises(ValueError, match="move padding to the front"):
        model(ids(tokens=1), cache=cache)


def test_the_cache_holds_unrepeated_heads_and_only_the_window() -> None:
    config = replace(SMALL, WINDOW)
    cache, model = Cache(config), LM(config)
    model(ids(tokens=12), cache=cache)
    local, full = cache.layers
    assert local.keys is not None
    assert full.keys is not None
    assert (local.keys.shape, full.keys.shape) == ((2, 2, 2, 8), (2, 2, 12, 8))
    assert full.bytes * 2 == 2 * 12 * count.kv_bytes_per_token(config, 4)
    assert cache.bytes == full.bytes + local.bytes


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


def test_gains_with_unit_offset_read_the_same_weights_differently() -> None:
    offset = LM(replace(SMALL, {"norm_unit_offset": True}))
    torch.testing.assert_close(offset(ids()), LM(SMALL)(ids()))  # both start at an effective gain of 1
    base = noisy(SMALL)
    offset.load_state_dict(base.state_dict())
    assert (offset(ids()) - base(ids())).abs().max() > 0.1


def test_alibi_slopes() -> None:
    assert mask.alibi_slopes(8) == [2.0**-h for h in range(1, 9)]
    assert mask.alibi_slopes(12)[:8] == mask.alibi_slopes(8)
    assert mask.alibi_slopes(12)[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_scaled_rope_has_the_published_frequencies() -> None:
    config = ModelConfig(d_model=128, n_head=1, context=2048, rope_scaling="ntk", rope_factor=4.0)
    plain_rope = ModelConfig(d_model=128, n_head=1, context=2048)
    position = torch.tensor([1000])

    def angle(c: ModelConfig, pair: int) -> float:
        by = rotation(position, c)
        assert (by.cos[0, pair], by.sin[0, pair]) == (by.cos[0, 64 + pair], -by.sin[0, 64 + pair])
        return math.atan2(float(by.sin[0, 64 + pair]), float(by.cos[0, pair]))

    assert angle(config, 0) == pytest.approx(angle(plain_rope, 0), abs=1e-3)  # the fastest pair is not stretched
    assert angle(config, 63) == pytest.approx(angle(plain_rope, 63) / 4, rel=1e-3)  # the slowest one by the factor
    yarn = rotation(position, replace(config, {"rope_scaling": "yarn"}))
    factor = 0.1 * math.log(4) + 1
    assert (yarn.cos.square() + yarn.sin.square()).sqrt().tolist() == [pytest.approx([factor] * 128)]
    assert float(yarn.cos[0, 0]) == pytest.approx(factor * math.cos(1000), abs=1e-3)
    slow = 1000 * 10000 ** (-126 / 128)
    assert float(yarn.sin[0, 127]) == pytest.approx(factor * math.sin(slow / 4), rel=1e-4)


def test_local_layers_are_not_stretched_and_may_have_their_own_base() -> None:
    config = replace(SMALL, WINDOW | STRETCHED | {"rope_base_local": 100.0})
    local, full = (rotation(torch.arange(5), config, kind) for kind in "LF")
    torch.testing.assert_close(local.cos, rotation(torch.arange(5), replace(SMALL, {"rope_base": 100.0})).cos)
    assert not torch.allclose(local.cos, full.cos)


def test_dropout_acts_in_training_only() -> None:
    model = noisy(replace(SMALL, {"dropout": 0.5}))
    torch.testing.assert_close(model(ids()), noisy(SMALL)(ids()))
    model.train()
    torch.manual_seed(0)
    first = model(ids())
    assert (first - model(ids())).abs().max() > 0.1
    torch.manual_seed(0)
    torch.testing.assert_close(model(ids()), first)


def test_post_norm_ends_on_a_norm_and_has_no_final_one() -> None:
    model = LM(replace(SMALL, {"norm_position": "post"}))
    assert model.norm is None
    inside = model.blocks[1](torch.randn(2, 5, 24), Sight(rotation(torch.arange(5), SMALL), None), None)
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
