"""Small exact numbers that any correct implementation gives (float64, tolerance 1e-6)."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from lmcore import count
from lmcore.attention import Attention, Sight, fused, plain
from lmcore.config import ModelConfig
from lmcore.ffn import FFN
from lmcore.mask import visible
from lmcore.model import LM
from lmcore.norm import Norm, stream_norm
from lmcore.position import Rotation, rotate, rotation
from lmcore.schedule import cosine
from tests.shared import case


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_near(got: Tensor, wanted: object) -> None:
    torch.testing.assert_close(got, torch.tensor(wanted), atol=1e-6, rtol=0)


def turn(x: list[float], position: int, base: float = 10000.0) -> Tensor:
    """Rotate one head's vector, adjacent channels paired."""
    d = len(x)
    angles = torch.tensor([position * base ** (-2 * i / d) for i in range(d // 2)])[None]
    return rotate(torch.tensor(x)[None, None, None], Rotation.of(angles, pairs=True)).flatten()


def test_rope_in_two_dimensions() -> None:
    quarter = torch.tensor([[math.pi / 2]])

    def at(x: list[float], m: int) -> Tensor:
        return rotate(torch.tensor(x)[None, None, None], Rotation.of(m * quarter, pairs=True)).flatten()

    assert_near(at([1.0, 2.0], 1), [-2.0, 1.0])
    assert_near(at([2.0, 1.0], 2), [-2.0, -1.0])
    assert float(at([1.0, 2.0], 1) @ at([2.0, 1.0], 2)) == pytest.approx(3.0)
    assert float(at([1.0, 2.0], 4) @ at([2.0, 1.0], 5)) == pytest.approx(3.0)


def test_rope_in_four_dimensions() -> None:
    q, k = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 0.0, 1.0]
    assert_near(turn(q, 1), [-1.1426396637476532, 1.922075596544176, 2.9598506679133294, 4.029799501669161])
    assert_near(turn(k, 3), [-2.121105001260758, -0.7077524804807109, -0.02999550020249566, 0.9995500337489875])
    dot = float(turn(q, 1) @ turn(k, 3))
    assert dot == pytest.approx(5.0025089608747875)
    assert dot == pytest.approx(float(torch.tensor(q) @ turn(k, 2)))
    for m, n in ((3, 1), (10, 8), (1002, 1000)):
        assert float(turn(q, m) @ turn(k, n)) == pytest.approx(float(turn(q, 3) @ turn(k, 1)), abs=1e-9)
        assert float(turn(q, m).norm()) == pytest.approx(float(torch.tensor(q).norm()))


def test_the_models_own_rotation_has_these_angles() -> None:
    config = ModelConfig(d_model=4, n_head=1, rope_layout="pairs")
    q = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, 4, 4)
    turned = rotate(q, rotation(torch.arange(4), config))
    assert_near(turned[0, 0, 1], [-1.1426396637476532, 1.922075596544176, 2.9598506679133294, 4.029799501669161])


def test_half_split_is_adjacent_pairs_with_channels_reordered() -> None:
    pairs, half = (ModelConfig(d_model=8, n_head=1, rope_layout=layout) for layout in ("pairs", "half"))
    x = torch.randn(1, 1, 5, 8)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    by_pairs = rotate(x, rotation(torch.arange(5), pairs))[..., order]
    by_half = rotate(x[..., order], rotation(torch.arange(5), half))
    torch.testing.assert_close(by_pairs, by_half)


def norm(kind: str, d_model: int, **changes: object) -> Norm:
    return stream_norm(
        ModelConfig.model_validate({"d_model": d_model, "n_head": 1, "norm": kind, "norm_eps": 1e-12} | changes)
    )


def test_norms() -> None:
    assert_near(norm("rmsnorm", 2)(torch.tensor([1.0, 3.0])), [0.4472135955, 1.3416407865])
    assert_near(norm("rmsnorm", 2)(torch.tensor([2.0, 4.0])), [0.6324555320, 1.2649110641])
    assert_near(norm("rmsnorm", 2)(torch.tensor([3.0, 4.0])), [3 / 3.5355339059, 4 / 3.5355339059])
    assert_near(norm("layernorm", 2, norm_affine=False)(torch.tensor([1.0, 3.0])), [-1.0, 1.0])


def test_rmsnorm_is_invariant_to_scale_and_not_to_shift() -> None:
    x, rms, layer = torch.randn(7, 8), norm("rmsnorm", 8), norm("layernorm", 8)
    torch.testing.assert_close(rms(5 * x), rms(x))
    assert (rms(x + 1) - rms(x)).abs().max() > 0.1
    torch.testing.assert_close(layer(x + 1), layer(x))


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_norm_statistics_are_float32_under_half_precision(kind: str) -> None:
    x = (300 * torch.randn(4, 64, dtype=torch.float32)).half()  # squares overflow half precision
    y = norm(kind, 64).float()(x)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), norm(kind, 64).float()(x.float()), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("changes", [{"norm": "rmsnorm"}, {"norm": "layernorm"}, {"norm": "layernorm", "bias": "all"}])
def test_norm_gradients(changes: dict[str, object]) -> None:
    module = stream_norm(ModelConfig.model_validate({"d_model": 4, "n_head": 1, **changes})).double()
    names = [name for name, _ in module.named_parameters()]
    inputs = [torch.randn(3, 4, requires_grad=True), *(torch.randn(4, requires_grad=True) for _ in names)]

    def function(x: Tensor, *values: Tensor) -> Tensor:
        result = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))
        assert isinstance(result, Tensor)
        return result

    assert torch.autograd.gradcheck(function, inputs)


def test_swiglu() -> None:
    ffn = FFN(ModelConfig(d_model=2, n_head=1, d_ff=2, ffn="swiglu"))
    gate, up = torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.tensor([[2.0, 1.0], [0.0, 1.0]])
    ffn.up.weight = nn.Parameter(torch.cat((gate.T, up.T)))  # the example writes row vectors times W
    ffn.down.weight = nn.Parameter(torch.eye(2))
    assert_near(ffn(torch.tensor([1.0, 2.0])), [1.4621171573, -0.8068242641])


def test_query_heads_of_a_group_are_adjacent() -> None:
    """With n_head 4 and n_kv_head 2 the heads read kv heads 0, 0, 1, 1, on both paths."""
    q, k = torch.zeros(1, 4, 1, 3), torch.zeros(1, 2, 1, 3)
    v = torch.tensor([0.0, 1.0])[None, :, None, None].expand(1, 2, 1, 3)
    for path in (fused, plain):
        assert path(q, k, v, None, 1.0)[0, :, 0, 0].tolist() == [0, 0, 1, 1]


def test_zero_scores_give_the_running_mean() -> None:
    v = torch.randn(1, 1, 6, 4)
    means = v.cumsum(dim=2) / torch.arange(1, 7)[:, None]
    for path in (fused, plain):
        torch.testing.assert_close(path(torch.zeros_like(v), torch.zeros_like(v), v, None, 1.0), means)


def test_attention_scale_keeps_the_variance_of_scores_at_one() -> None:
    torch.manual_seed(0)
    d = 64
    q, k = torch.randn(20000, d), torch.randn(20000, d)
    dots = (q * k).sum(-1)
    assert float(dots.var()) == pytest.approx(d, rel=0.05)
    assert float((dots / d**0.5).var()) == pytest.approx(1, rel=0.05)


def test_without_mask_and_positions_attention_is_permutation_equivariant() -> None:
    attention = Attention(ModelConfig(d_model=8, n_head=2, position="none"), "plain")
    x, order = torch.randn(1, 5, 8), torch.tensor([3, 1, 4, 0, 2])
    everywhere = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    sight = Sight(None, everywhere)
    torch.testing.assert_close(attention(x[:, order], sight), attention(x, sight)[:, order])
    causal = attention(x[:, order], Sight(None, None)) - attention(x, Sight(None, None))[:, order]
    assert causal.abs().max() > 1e-3


def test_a_window_counts_the_query_itself() -> None:
    slots = torch.arange(4)
    rows = visible(slots, slots, window=2).int().tolist()
    assert rows == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_position_interpolation() -> None:
    """L 2048 stretched to 4096: position 3000 is read as 1500."""
    config = ModelConfig(d_model=8, n_head=1, rope_scaling="linear", rope_factor=2.0)
    stretched = rotation(torch.tensor([3000]), config)
    inside = rotation(torch.tensor([1500]), ModelConfig(d_model=8, n_head=1))
    torch.testing.assert_close(stretched.cos, inside.cos)
    torch.testing.assert_close(stretched.sin, inside.sin)


def test_learning_rate_of_the_cosine_schedule() -> None:
    wanted = {0: 0.0, 7: 1.0, 14: 0.55, 21: 0.1, 30: 0.1}
    for step, value in wanted.items():
        assert cosine(step, 7, 21, 1.0, 0.1) == pytest.approx(value)


def test_clipping_is_global_and_leaves_small_gradients_alone() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    torch.nn.utils.clip_grad_norm_([a, b], 10.0)
    assert (a.grad.tolist(), b.grad.tolist()) == ([3.0, 0.0], [4.0])
    torch.nn.utils.clip_grad_norm_([a, b], 1.0)
    assert_near(torch.cat((a.grad, b.grad)), [0.6, 0.0, 0.8])


def test_parameter_counts_of_the_worked_examples() -> None:
    for example in case("worked_examples.json")["param_counts"]:
        if "total" not in example:
            continue
        sizes = {k: example[k] for k in ("vocab", "d_model", "n_layer", "n_head", "n_kv_head", "d_ff")}
        config = ModelConfig(**sizes, tied=example["tied"])
        with torch.device("meta"):
            model = LM(config)
        assert count.params(config) == example["total"] == sum(p.numel() for p in model.parameters())


def test_one_layer_has_656_parameters() -> None:
    groups = count.params_by_group(ModelConfig(d_model=8, n_head=2, d_ff=16, n_layer=1, vocab=5))
    assert (groups["attention"], groups["ffn"], groups["norms"] - 8) == (256, 384, 16)  # 8: the final norm


def test_ffn_budgets() -> None:
    assert ModelConfig(d_model=128).d_ff == 344
    plain_ffn = count.params_by_group(ModelConfig(d_model=8, n_head=2, ffn="relu", d_ff=24, n_layer=1))["ffn"]
    assert plain_ffn == count.params_by_group(ModelConfig(d_model=8, n_head=2, d_ff=16, n_layer=1))["ffn"] == 384
