"""That the parity tests can fail: every known way to get a decoder wrong moves the logits of some family."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lmcore.config import FULL, LOCAL, ConfigError, ModelConfig, replace
from lmcore.model import LM
from lmcore.norm import Norm
from tests.lmcore.hf_cases import CASES, CONTEXT, TOLERANCE, hf, pair

# A wrong model of a right one, or None where the fault does not apply.
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
    "activation": switched("ffn", {"relu": "silu", "gelu": "relu", "gelu_tanh": "relu"}),
    "squared ReLU": switched("ffn", {"relu2": "relu"}),
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
    "RoPE in part": config_fault(lambda c: {"rope_fraction": 2 / c.d_head} if c.position == "rope" else None),
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


def test_a_copy_without_a_fault_is_not_noticed() -> None:
    """Both ways of making wrong models, here with no fault in it."""
    for name in CASES:
        both = pair(name)
        for copied in (
            weight_fault("", lambda weight, config: weight)(both.ours),
            with_config(both.ours, {"context": both.ours.config.context + (both.ours.positions is None)}),
        ):
            assert copied is None or both.error(copied) < TOLERANCE
