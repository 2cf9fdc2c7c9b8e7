"""What a family of Hugging Face decoders is made of: rules that translate its config both ways, names of its weights.

Nothing of transformers is imported: its configs are plain attributes to us, and anything unknown in them is refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from lmcore.config import FULL, LOCAL, ModelConfig
from lmcore.typed import explain


class NotCovered(ValueError):
    """A model that has no exact counterpart on the other side; the message names the option."""


class Rule(NamedTuple):
    """Part of a family's config: the keys it accounts for, what they say in our fields, and the way back.

    Writing may be too generous: what was written is read again and compared with what was meant.
    """

    keys: tuple[str, ...]
    read: Callable[[Any], dict[str, Any]]
    write: Callable[[ModelConfig], dict[str, Any]]


DROPOUTS = frozenset(
    {"attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout", "layerdrop", "hidden_dropout"}
    | {"residual_dropout", "embedding_dropout"}
)
# Not part of the function computed: bookkeeping, text generation, training, heads of other tasks.
HARMLESS = DROPOUTS | {
    *(
        "transformers_version",
        "architectures",
        "model_type",
        "task_specific_params",
        "dtype",
        "problem_type",
        "id2label",
        "label2id",
    ),
    *(
        "use_cache",
        "cache_implementation",
        "output_hidden_states",
        "return_dict",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    ),
    *("initializer_range", "init_std", "gradient_checkpointing", "ignore_keys_at_rope_validation", "n_ctx"),
    *("classifier_dropout", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
    "summary_first_dropout",
}


@dataclass(frozen=True)
class Family:
    """One model type: the class of its language model, its config, its weights.

    `weights` maps our module names (inside a block without its number) to theirs; several names, separated by blanks,
    are stacked by rows. `transposed`: matrices are stored (in, out). `fused_by_head`: rows of the fused q, k, v are
    q, k, v of head 0, then of head 1, ... `one_rope`: all layers share the rotation.
    """

    model_type: str
    model_class: str
    rules: tuple[Rule, ...]
    weights: Mapping[str, str]
    transposed: bool = False
    fused_by_head: Callable[[ModelConfig], bool] = field(default=lambda m: False)
    one_rope: bool = True
    ignored: frozenset[str] = frozenset()

    def read(self, theirs: Any) -> ModelConfig:
        """Our config of theirs. Raises NotCovered."""
        self._refuse_unknown(theirs)
        values: dict[str, Any] = {}
        for rule in self.rules:
            values |= rule.read(theirs)
        if self.one_rope and "rope_scaling" in values and LOCAL in values.get("window_pattern", ""):
            raise NotCovered(f"{self.model_type}: rope scaling in layers with a sliding window")
        try:
            return ModelConfig.model_validate(values)
        except ValidationError as error:
            raise NotCovered(f"{self.model_type}: {explain(error)}") from None

    def write(self, ours: ModelConfig) -> dict[str, Any]:
        """Keys of their config; special tokens are none, because our models have none."""
        values: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        for rule in self.rules:
            values |= rule.write(ours)
        return values

    def _refuse_unknown(self, theirs: Any) -> None:
        """Any value that is not this family's default must be one that a rule reads or that changes nothing."""
        if getattr(theirs, "is_heterogeneous", False):
            raise NotCovered(f"{self.model_type}: per_layer_config")
        covered = HARMLESS | self.ignored | {key for rule in self.rules for key in rule.keys}
        default = _defaults(cast(Callable[[], Any], type(theirs)))
        for key, value in vars(theirs).items():
            private = key.startswith("_") and key not in type(theirs).__dataclass_fields__
            if key in covered or private or value == default.get(key):
                continue
            # Off where off is the default; but a key that the class does not declare may be read with another default.
            if value is not None and (key not in default or value is not False or default[key] not in (None, False)):
                raise NotCovered(f"{self.model_type}: {key} = {value!r}")


@cache
def _defaults(config_class: Callable[[], Any]) -> dict[str, Any]:
    return dict(vars(config_class()))


def same(**names: str) -> Rule:
    """Fields that differ in name only: ours="theirs"."""
    return Rule(
        tuple(names.values()),
        lambda c: {ours: getattr(c, theirs) for ours, theirs in names.items()},
        lambda m: {theirs: getattr(m, ours) for ours, theirs in names.items()},
    )


def always(**values: Any) -> Rule:
    """What this family cannot choose."""
    return Rule((), lambda c: dict(values), lambda m: {})


def choice(key: str, **readings: dict[Any, Any]) -> Rule:
    """One key that selects values of our fields: ours={their value: our value, ...}."""

    def read(c: Any) -> dict[str, Any]:
        chosen = getattr(c, key)
        if any(chosen not in table for table in readings.values()):
            raise NotCovered(f"{key} = {chosen!r}")
        return {ours: table[chosen] for ours, table in readings.items()}

    def write(m: ModelConfig) -> dict[str, Any]:
        ours, table = next(iter(readings.items()))
        meant = [value for value, reading in table.items() if reading == getattr(m, ours)]
        return {key: meant[0]} if meant else {}

    return Rule((key,), read, write)


# Their name -> our ungated kind; where several names are one function, the first is written.
ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}
GATES = {"gelu_tanh": "geglu_tanh", "gelu": "geglu", "relu": "reglu", "silu": "swiglu"}
GPT2_ACTIVATIONS = {"gelu_new": "gelu_tanh"} | ACTIVATIONS
OPENAI_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
GATED_ACTIVATIONS = {name: GATES[kind] for name, kind in ACTIVATIONS.items() if kind in GATES} | {"sigmoid": "glu"}


def bias(attention: str | bool, ffn: str | bool, out: bool = True) -> Rule:
    """Which matrices have biases, by key or always. `out`: attention's biases include that of the output matrix."""
    with_attention = "attention" if out else "qkv"
    names = {(False, False): "none", (True, False): with_attention, (False, True): "ffn"}
    if out:
        names[True, True] = "all"

    def read(c: Any) -> dict[str, Any]:
        has = tuple(bool(getattr(c, part)) if isinstance(part, str) else part for part in (attention, ffn))
        if has not in names:
            raise NotCovered(f"biases of q, k, v and FFN ({attention}, {ffn}) without that of the output matrix")
        return {"bias": names[has]}

    def write(m: ModelConfig) -> dict[str, Any]:
        has = (m.bias in ("all", "attention", "qkv"), m.bias in ("all", "ffn"))
        return {part: value for part, value in zip((attention, ffn), has, strict=True) if isinstance(part, str)}

    return Rule(tuple(part for part in (attention, ffn) if isinstance(part, str)), read, write)


def _rope_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields for one dictionary of RoPE parameters; anything in it that we do not know is refused."""
    left = {key: value for key, value in parameters.items() if value is not None}
    kind = left.pop("rope_type", "default")
    left.pop("type", None)
    values = {"rope_base": float(left.pop("rope_theta")), "rope_fraction": float(left.pop("partial_rotary_factor", 1))}
    if kind not in ("default", "linear", "yarn"):
        raise NotCovered(f"rope_type = {kind!r}")
    factor = 1.0 if kind == "default" else float(left.pop("factor"))
    if factor != 1:
        values |= {"rope_scaling": kind, "rope_factor": factor}
    if kind == "yarn":
        original = left.pop("original_max_position_embeddings")
        if original < 2 * math.pi:
            raise NotCovered(f"original_max_position_embeddings = {original}: no channel turns once in it")
        values |= {"rope_original_context": original} if factor != 1 else {}
        left = {
            k: v for k, v in left.items() if (k, v) not in (("beta_fast", 32), ("beta_slow", 1), ("truncate", True))
        }
    if left:
        raise NotCovered(f"rope_parameters {', '.join(f'{key} = {value!r}' for key, value in left.items())}")
    return values


def _rope_parameters(m: ModelConfig, base: float) -> dict[str, Any]:
    if m.rope_scaling in ("none", "ntk"):  # they know ntk only with a factor that grows with the text
        return {"rope_type": "default", "rope_theta": base}
    yarn = {"original_max_position_embeddings": m.rope_original_context} if m.rope_scaling == "yarn" else {}
    return {"rope_type": m.rope_scaling, "rope_theta": base, "factor": m.rope_factor, **yarn}


def rope(partial: bool = False) -> Rule:
    """One rotation for all layers. `partial`: some channels only; else that option is refused, since it is ignored."""

    def read(c: Any) -> dict[str, Any]:
        values = _rope_values(c.rope_parameters)
        fraction, d_head = values["rope_fraction"], head_width(c)
        if (fraction != 1 and not partial) or int(d_head * fraction) != 2 * round(d_head * fraction / 2):
            raise NotCovered(f"partial_rotary_factor = {fraction} of {d_head} channels")
        return {"position": "rope"} | values

    def write(m: ModelConfig) -> dict[str, Any]:
        base = m.rope_base if FULL in m.layer_kinds else m.rope_base_local
        fraction = {"partial_rotary_factor": m.rope_fraction} if partial else {}
        return {"rope_parameters": _rope_parameters(m, base) | fraction}

    return Rule(("rope_parameters",), read, write)


def rope_by_kind() -> Rule:
    """A base for full and one for local layers; only full layers are stretched."""

    def read(c: Any) -> dict[str, Any]:
        full, local = (_rope_values(c.rope_parameters[kind]) for kind in LAYER_TYPES.values())
        if full.pop("rope_fraction") != 1 or local.pop("rope_fraction") != 1:
            raise NotCovered("partial_rotary_factor")
        kinds = _kinds(c)
        if "rope_scaling" in local and LOCAL in kinds:
            raise NotCovered("rope scaling in layers with a sliding window")
        if FULL not in kinds:
            return {"position": "rope", "rope_base": local["rope_base"]}
        return {"position": "rope"} | full | ({"rope_base_local": local["rope_base"]} if LOCAL in kinds else {})

    def write(m: ModelConfig) -> dict[str, Any]:
        local = {"rope_type": "default", "rope_theta": m.rope_base_local}
        by_kind = {FULL: _rope_parameters(m, m.rope_base), LOCAL: local}
        return {"rope_parameters": {name: by_kind[kind] for kind, name in LAYER_TYPES.items()}}

    return Rule(("rope_parameters",), read, write)


def rope_in_local_layers() -> Rule:
    """Layers with a window rotate, full ones have no positions."""

    def read(c: Any) -> dict[str, Any]:
        values, kinds = rope().read(c), _kinds(c)
        if LOCAL not in kinds:
            return {"position": "none"}
        if "rope_scaling" in values:
            raise NotCovered("rope scaling in layers with a sliding window")
        if FULL not in kinds:
            return values | {"rope_layout": "pairs"}
        return {
            "position": "rope",
            "rope_layout": "pairs",
            "rope_layers": "local",
            "rope_base_local": values["rope_base"],
        }

    def write(m: ModelConfig) -> dict[str, Any]:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": m.rope_base_local}}

    return Rule(("rope_parameters",), read, write)


LAYER_TYPES = {FULL: "full_attention", LOCAL: "sliding_attention"}


def _kinds(c: Any) -> str:
    letters = {name: letter for letter, name in LAYER_TYPES.items()}
    if unknown := set(c.layer_types) - set(letters):
        raise NotCovered(f"layer_types with {', '.join(sorted(unknown))}")
    return "".join(letters[name] for name in c.layer_types)


def _period(kinds: str) -> str:
    """The shortest pattern that repeats to `kinds`."""
    return next(kinds[:n] for n in range(1, len(kinds) + 1) if (kinds[:n] * len(kinds))[: len(kinds)] == kinds)


def layer_types(switch: str | None = None) -> Rule:
    """A kind for each layer and one window; `switch` names a key that turns windows on."""

    def read(c: Any) -> dict[str, Any]:
        kinds = _kinds(c)
        if len(kinds) != c.num_hidden_layers:
            raise NotCovered(f"{len(kinds)} layer_types for {c.num_hidden_layers} layers")
        if LOCAL not in kinds:
            return {}
        if c.sliding_window is None:
            raise NotCovered("layer_types with sliding_attention, but sliding_window = None")
        return {"window": c.sliding_window, "window_pattern": _period(kinds)}

    def write(m: ModelConfig) -> dict[str, Any]:
        on = {switch: LOCAL in m.layer_kinds} if switch else {}
        # Some families build the mask of sliding layers even where there are none.
        return on | {"layer_types": [LAYER_TYPES[k] for k in m.layer_kinds], "sliding_window": m.window or m.context}

    return Rule(("layer_types", "sliding_window", *([switch] if switch else [])), read, write)


def window_everywhere() -> Rule:
    """One window for all layers, or none."""

    def read(c: Any) -> dict[str, Any]:
        return {} if c.sliding_window is None else {"window": c.sliding_window, "window_pattern": LOCAL}

    return Rule(("sliding_window",), read, lambda m: {"sliding_window": m.window})


def head_width(c: Any) -> int:
    """Channels of a head, by a key of its own or shared among the heads."""
    return int(getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads)


def inverse(value: float) -> float:
    """1 / value; of two floats whose inverse rounds to `value`, the one with the shorter decimals."""
    short = float(f"{1 / value:.15g}")
    return short if 1 / short == value else 1 / value
