"""Random models over all switches."""

from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from lmcore.config import FfnKind, ModelConfig

# The sizes every model has, and every other switch with values that differ from its default.
SIZES: dict[str, st.SearchStrategy[Any]] = {
    "vocab": st.integers(2, 50),
    "d_model": st.integers(1, 24),
    "n_layer": st.integers(1, 3),
    "n_kv_head": st.integers(1, 3),
    "d_head": st.integers(1, 6).map(lambda n: 2 * n),
    "d_ff": st.integers(1, 40),
    "context": st.integers(1, 16),
}
SWITCHES: dict[str, st.SearchStrategy[Any]] = {
    "tied": st.booleans(),
    "ffn": st.sampled_from(FfnKind.__args__),  # type: ignore[attr-defined]
    "bias": st.sampled_from(["none", "all", "qkv", "attention", "ffn"]),
    "norm": st.sampled_from(["rmsnorm", "layernorm"]),
    "norm_position": st.sampled_from(["pre", "pre", "post", "sandwich", "branch"]),
    "residual": st.sampled_from(["sequential", "parallel", "parallel_shared"]),
    "dropout": st.sampled_from([0.0, 0.1]),
    "norm_affine": st.booleans(),
    "norm_bias": st.booleans(),
    "norm_unit_offset": st.booleans(),
    "norm_eps": st.just(1e-3),
    "position": st.sampled_from(["rope", "rope", "learned", "sinusoidal", "alibi", "none"]),
    "position_offset": st.integers(1, 3),
    "qk_norm": st.sampled_from(["none", "head", "full"]),
    "qk_norm_place": st.sampled_from(["before_rope", "after_rope"]),
    "attention_scale": st.just(0.3),
    "attention_softcap": st.sampled_from([None, 3.0]),
    "logit_softcap": st.sampled_from([None, 3.0]),
    "window": st.sampled_from([None, 1, 2, 5]),
    "window_pattern": st.sampled_from(["L", "LF", "FL", "LLF"]),
    "rope_layers": st.sampled_from(["all", "local"]),
    "rope_base": st.just(500.0),
    "rope_base_local": st.just(100.0),
    "rope_layout": st.sampled_from(["half", "pairs"]),
    "rope_fraction": st.sampled_from([1.0, 0.5]),
    "rope_stretch": st.sampled_from(["none", "linear", "ntk", "yarn"]),
    "rope_original_context": st.just(64),
    "embedding_scale": st.just(2.0),
    "residual_scale": st.just(0.5),
    "logit_scale": st.just(0.5),
    "init": st.sampled_from(["fan_in", "xavier", "gpt2"]),
    "init_scale": st.just(0.5),
    "embedding_std": st.just(0.1),
    "base_width": st.just(8),
    "base_d_head": st.just(2),
}


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """A small model; each switch is taken where the config does not refuse it beside those before it."""
    chosen = {name: draw(values) for name, values in SIZES.items()}
    chosen["n_head"] = chosen["n_kv_head"] * draw(st.integers(1, 3))
    model = ModelConfig.model_validate(chosen)
    for name, values in SWITCHES.items():
        value = draw(values)
        change = {"rope_scaling": value, "rope_factor": 4.0} if name == "rope_stretch" else {name: value}
        if name == "window" and value is not None and draw(st.booleans()):
            change["window_pattern"] = "LF"
        try:
            model = ModelConfig.model_validate(chosen | change)
        except ValidationError:
            continue
        chosen |= change
    return model
