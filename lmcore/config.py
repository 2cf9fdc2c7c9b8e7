"""Typed, frozen description of one run: the model, its data, its training, its seed.

Everything is checked when it is constructed: an unknown key names its nearest neighbour, an impossible
combination is refused with the reason. Fields declared with `DERIVED` are filled from the others and
count as *not set*, so that `replace(config, {"model.d_model": 256})` derives them again.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

DERIVED: Any = Field(default=None)

GATED_FFN = ("glu", "reglu", "geglu", "geglu_tanh", "swiglu")
FfnKind = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "glu", "reglu", "geglu", "geglu_tanh", "swiglu"]


class ConfigError(ValueError):
    """A configuration that cannot be built; the message says which key, why, and what would be right."""


class Config(BaseModel):
    """Base of all configuration: frozen, strictly typed, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(f"unknown key {key!r} in {cls.__name__}{did_you_mean(key, cls.model_fields)}")
        return values

    @model_validator(mode="after")
    def _derive_and_check(self) -> Self:
        for name, value in self.derived().items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value  # not through setattr: frozen, and it must stay "not set"
        self.check()
        return self

    def derived(self) -> dict[str, Any]:
        """What each `DERIVED` field is when it is not set."""
        return {}

    def check(self) -> None:
        """Raise ValueError for a combination that is impossible or in which a switch has no effect."""

    def default(self, name: str) -> Any:
        """The declared default of a field."""
        return type(self).model_fields[name].get_default()

    def explicit(self) -> dict[str, Any]:
        """Only what was set, nested: the input that builds this config again."""
        values = {name: getattr(self, name) for name in sorted(self.model_fields_set)}
        return {k: v.explicit() if isinstance(v, Config) else v for k, v in values.items()}

    def identity(self) -> dict[str, Any]:
        """What makes two configs the same experiment: fields at their default, paths and logging left out."""
        derived = self.derived()
        out: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Config):
                if nested := value.identity():
                    out[name] = nested
            elif name not in self.NOT_IDENTITY and value != derived.get(name, self.default(name)):
                out[name] = value + 0.0 if isinstance(value, float) else value  # -0.0 and 0.0 are one value
        return out


class ModelConfig(Config):
    """A decoder-only transformer. Sizes in the field's usual names; every switch changes the function computed."""

    vocab: int = Field(default=256, ge=1, description="number of token ids")
    d_model: int = Field(default=128, ge=1)
    n_layer: int = Field(default=4, ge=1)
    n_head: int = Field(default=4, ge=1)
    n_kv_head: int = DERIVED
    d_head: int = DERIVED
    d_ff: int = DERIVED
    context: int = Field(default=128, ge=1, description="tokens per training sequence")
    ffn: FfnKind = "swiglu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_position: Literal["pre", "post", "sandwich", "branch"] = "pre"
    norm_affine: bool = True
    norm_bias: bool = DERIVED
    norm_eps: float = Field(default=1e-5, gt=0)
    bias: Literal["none", "all", "qkv"] = "none"
    position: Literal["rope", "learned", "sinusoidal", "none"] = "rope"
    rope_base: float = Field(default=10000.0, gt=0)
    rope_layout: Literal["half", "pairs"] = "half"
    rope_fraction: float = Field(default=1.0, gt=0, le=1)
    tied: bool = False
    init: Literal["fan_in", "xavier", "gpt2"] = "fan_in"
    init_scale: float = Field(default=1.0, gt=0, description="multiplies the std of every matrix but the embedding")
    embedding_std: float = DERIVED

    @property
    def gated(self) -> bool:
        """Whether the FFN multiplies two projections (three matrices instead of two)."""
        return self.ffn in GATED_FFN

    @property
    def d_rope(self) -> int:
        """Channels of each head that RoPE rotates; 0 without RoPE."""
        return 2 * round(self.d_head * self.rope_fraction / 2) if self.position == "rope" else 0

    def derived(self) -> dict[str, Any]:
        # A gated FFN has three matrices: 8/3 d keeps the parameters of 4 d with two (Shazeer 2020, section 2).
        d_ff = 8 * math.ceil(8 * self.d_model / 3 / 8) if self.gated else 4 * self.d_model
        return {
            "n_kv_head": self.n_head,
            "d_head": self.d_model // self.n_head,
            "d_ff": d_ff,
            "norm_bias": self.norm == "layernorm" and self.bias == "all" and self.norm_affine,
            "embedding_std": self._embedding_std(),
        }

    def _embedding_std(self) -> float:
        if self.init == "gpt2":
            return 0.02
        # A tied matrix is also the head: unit rows would give logits of std sqrt(d_model).
        return self.d_model**-0.5 if self.tied else 1.0

    def check(self) -> None:
        for name in ("n_kv_head", "d_head", "d_ff"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if "d_head" not in self.model_fields_set and self.d_model % self.n_head:
            raise ValueError(
                f"d_model {self.d_model} is not divisible by n_head {self.n_head}; set d_head to choose it freely"
            )
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head {self.n_head} is not divisible by n_kv_head {self.n_kv_head}")
        if self.embedding_std <= 0:
            raise ValueError(f"embedding_std must be above 0, not {self.embedding_std}")
        if self.norm_bias and not self.norm_affine:
            raise ValueError("norm_bias needs norm_affine: a norm without gain has no bias here")
        self._check_rope()

    def _check_rope(self) -> None:
        if self.position == "rope" and self.d_head % 2:
            raise ValueError(f"RoPE rotates pairs of channels, but d_head is odd ({self.d_head})")
        if self.position == "rope" and self.d_rope < 2:
            raise ValueError(f"rope_fraction {self.rope_fraction} of d_head {self.d_head} rotates no pair of channels")
        for name in ("rope_base", "rope_layout", "rope_fraction"):
            if self.position != "rope" and getattr(self, name) != self.default(name):
                raise ValueError(f"{name} has no effect with position={self.position!r}; leave it out")


class DataConfig(Config):
    """What is read and how it becomes tokens."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset({"path", "source"})  # the fingerprint says what was read

    source: Literal["sotu", "pydoc", "text"] = DERIVED
    path: str | None = Field(default=None, description="a UTF-8 text file of one's own")
    tokenizer: Literal["char", "byte", "bpe"] = "char"
    bpe_vocab: int = Field(default=1024, ge=257, description="token ids of a BPE tokenizer")
    max_chars: int | None = Field(default=None, ge=1, description="use only the first this many characters")
    val_fraction: float = Field(default=0.1, gt=0, lt=1)
    fingerprint: str = Field(default="", description="hash of tokens and tokenizer; filled when a run is planned")

    def derived(self) -> dict[str, Any]:
        return {"source": "sotu" if self.path is None else "text"}

    def identity(self) -> dict[str, Any]:
        out = super().identity()
        if self.fingerprint:  # it covers what was cut off and where the text was split
            out.pop("max_chars", None)
            out.pop("val_fraction", None)
        return out

    def check(self) -> None:
        if (self.source == "text") != (self.path is not None):
            raise ValueError("data.path goes with data.source='text', and only with it")
        if self.tokenizer != "bpe" and self.bpe_vocab != self.default("bpe_vocab"):
            raise ValueError(f"bpe_vocab has no effect with tokenizer={self.tokenizer!r}; leave it out")


class TrainConfig(Config):
    """How one run is trained. Learning rates are per update, decay is decoupled (AdamW)."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset({"log_every", "checkpoint_every"})

    steps: int = Field(default=1000, ge=1, description="optimiser updates")
    batch: int = Field(default=32, ge=1, description="sequences per update")
    lr: float = Field(default=1e-3, gt=0)
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup: int = Field(default=0, ge=0, description="updates of linear warmup from 0")
    lr_min_ratio: float = Field(default=0.1, ge=0, le=1, description="cosine ends at lr * lr_min_ratio")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    decay_all: bool = Field(default=False, description="decay vectors and embeddings too, not only matrices")
    clip: float | None = Field(default=1.0, gt=0, description="global gradient norm limit; none: no clipping")
    precision: Literal["float32", "bf16"] = "float32"
    attention: Literal["fused", "plain"] = "fused"
    threads: int = Field(default=1, ge=1, description="CPU threads of this run; changes the last bits of a sum")
    eval_every: int = Field(default=100, ge=1)
    eval_sequences: int = Field(default=256, ge=1, description="fixed validation sequences, evenly spread")
    log_every: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=200, ge=1)

    def check(self) -> None:
        if self.decay_all and not self.weight_decay:
            raise ValueError("decay_all has no effect without weight_decay; leave it out")
        if self.warmup == 1:
            raise ValueError("one step of warmup is the full learning rate at step 1, as without; leave warmup out")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup {self.warmup} leaves nothing of {self.steps} steps")
        if self.schedule == "constant" and self.lr_min_ratio != self.default("lr_min_ratio"):
            raise ValueError("lr_min_ratio has no effect with schedule='constant'; leave it out")


class RunConfig(Config):
    """One run: model, data, training, seed."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    seed: int = Field(default=0, ge=0, lt=2**63)

    @property
    def tokens(self) -> int:
        """Training tokens of the whole run."""
        return self.train.steps * self.train.batch * self.model.context

    @property
    def run_id(self) -> str:
        """12 hex digits naming this run."""
        return _short_hash(self.identity() | {"seed": self.seed})

    @property
    def group_id(self) -> str:
        """The same for all seeds of one configuration."""
        return _short_hash({k: v for k, v in self.identity().items() if k != "seed"})


AnyConfig = TypeVar("AnyConfig", bound=Config)


def _short_hash(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def did_you_mean(word: str, known: Any) -> str:
    """' (did you mean ...?)' or '' for error messages."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def from_dict(kind: type[AnyConfig], values: Mapping[str, Any]) -> AnyConfig:
    """Build a config from nested plain values, as stored in JSON. Raises ConfigError."""
    try:
        return kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def stored_form(run: RunConfig) -> dict[str, Any]:
    """Every field, defaults included, as plain values. Where the text lay is no part of a run; its fingerprint is."""
    values = run.model_dump(mode="json")
    for name in ("path", "source"):
        values["data"].pop(name)
    return values


def read_config(spec: Mapping[str, Any]) -> RunConfig:
    """The config in a run's spec.json. A field added since takes its default. Raises ConfigError for one removed."""
    return from_dict(RunConfig, spec["config"])


def flatten(config: Config) -> dict[str, Any]:
    """Every field that can matter to the result by its dotted name: paths and logging are left out."""
    out: dict[str, Any] = {}
    for name in set(type(config).model_fields) - config.NOT_IDENTITY:
        value = getattr(config, name)
        nested = flatten(value) if isinstance(value, Config) else None
        out |= {name: value} if nested is None else {f"{name}.{key}": v for key, v in nested.items()}
    return out


def replace(config: AnyConfig, changes: Mapping[str, Any]) -> AnyConfig:
    """A copy with dotted keys changed: `replace(run, {"model.ffn": "relu"})`. Raises ConfigError."""
    values = config.explicit()
    for key, value in changes.items():
        field_type(type(config), key)  # names the nearest key if this one does not exist
        *parents, leaf = key.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value.explicit() if isinstance(value, Config) else value
    return from_dict(type(config), values)


def field_type(kind: type[Config], key: str) -> Any:
    """The declared type of a dotted key. Raises ConfigError naming the nearest existing key."""
    annotation: Any = kind
    for name in key.split("."):
        if not _is_config(annotation):
            raise ConfigError(f"{key!r}: {key.partition('.' + name)[0]} is a value, it has no key {name!r}")
        if name not in annotation.model_fields:
            raise ConfigError(f"unknown key {key!r}{did_you_mean(key, _dotted(kind))}")
        annotation = annotation.model_fields[name].annotation
    return annotation


def _is_config(annotation: Any) -> TypeGuard[type[Config]]:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def _dotted(kind: type[Config]) -> list[str]:
    names: list[str] = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        names += [f"{name}.{rest}" for rest in _dotted(inner)] if _is_config(inner) else [name]
    return names


def parse_assignment(text: str, kind: type[Config] = RunConfig) -> tuple[str, Any]:
    """`"train.lr=3e-3"` to `("train.lr", 0.003)`, typed like the field. Raises ConfigError."""
    key, separator, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not separator:
        raise ConfigError(f"expected key=value, got {text!r}")
    annotation = field_type(kind, key)
    if isinstance(annotation, type) and issubclass(annotation, Config):
        raise ConfigError(
            f"{key!r} is a group; set one of its keys, such as {key}.{next(iter(annotation.model_fields))}"
        )
    if type(None) in get_args(annotation) and value.lower() in ("none", "null"):
        return key, None
    if annotation is int and "e" in value.lower() and _is_whole(value):
        value = str(int(float(value)))  # 1e4 steps
    try:
        return key, TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}={value}: {explain(error)}") from None


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:
        return False


def explain(error: ValidationError, positional: Sequence[str] = ()) -> str:
    """One line per problem: where, and what is wrong. `positional` names arguments that were given without a name."""
    lines = []
    for problem in error.errors():
        first, *inner = problem["loc"] or ("",)
        first = positional[first] if isinstance(first, int) and first < len(positional) else first
        where = ".".join(str(part) for part in (first, *inner) if part != "[key]")
        what = problem["msg"].removeprefix("Value error, ")
        given = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
        if problem["type"] == "value_error":
            given = ""
        lines.append(f"{where}: {what}{given}" if where else what + given)
    return "\n".join(lines)
