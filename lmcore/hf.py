"""The bridge to Hugging Face `transformers`: its decoders as ours, and ours as its, exactly or not at all.

Which model types there are, and what of their options: `lmcore.hf_families`. What a config says about training
(dropout, initial spread) and about text (special tokens) does not travel.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
import transformers
from torch import Tensor

from lmcore.config import FULL, ModelConfig, replace
from lmcore.hf_families import FAMILIES
from lmcore.hf_rules import DROPOUTS, Family
from lmcore.hf_rules import NotCovered as NotCovered
from lmcore.model import LM
from lmcore.tokenizer import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer

TRAINING_ONLY = frozenset({"dropout", "init", "init_scale", "embedding_std"})

LINE_END = "\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]"  # of str.splitlines


def from_hf(model: transformers.PreTrainedModel) -> LM:
    """A copy of a language model of transformers, in the same dtype, ready for evaluation.

    Raises NotCovered naming the model type, option, class or weight that has no counterpart here.
    """
    family, config = _family(model.config.model_type), config_from_hf(model.config)
    if type(model) is not getattr(transformers, family.model_class):
        raise NotCovered(f"{type(model).__name__}; of {family.model_type} only {family.model_class} is covered")
    theirs = _untied(model, config.tied, f"{family.weights['head']}.weight")
    with torch.device("meta"):
        lm = LM(config)
    ours = {}
    for name in lm.state_dict():
        sources = _sources(family, name, config)
        if missing := [source for source in sources if source not in theirs]:
            raise NotCovered(f"{family.model_type} without {missing[0]}")
        ours[name] = _gathered(family, name, [theirs[source] for source in sources], config)
    used = {source for name in ours for source in _sources(family, name, config)}
    if extra := sorted(set(theirs) - used):
        raise NotCovered(f"{family.model_type} with {', '.join(extra[:5])}")
    if wrong := [name for name, meta in lm.state_dict().items() if meta.shape != ours[name].shape]:
        raise NotCovered(
            f"{family.model_type}: {_sources(family, wrong[0], config)[0]} has another shape than configured"
        )
    lm.load_state_dict(ours, assign=True)
    return lm.eval()


def config_from_hf(config: transformers.PreTrainedConfig) -> ModelConfig:
    """Our config of theirs. Raises NotCovered naming what we do not compute."""
    return _family(config.model_type).read(config)


def to_hf(lm: LM, family: str | None = None) -> transformers.PreTrainedModel:
    """A copy as a language model of transformers, in the same dtype, ready for evaluation.

    It is of the first family in `FAMILIES` that expresses the config, or of the one named. Raises NotCovered naming the
    switch that none has.
    """
    found, config = _written(lm.config, family)
    dtypes = {p.dtype for p in lm.parameters()}
    with torch.random.fork_rng(devices=[]):  # its random weights are replaced; they must not move our random state
        model = getattr(transformers, found.model_class)(config)
    state = dict(_scattered(found, lm))
    parameters = dict(model.named_parameters())
    if set(parameters) != set(state):
        raise NotCovered(f"{found.model_type} has other weights: {sorted(set(parameters) ^ set(state))[:5]}")
    for name, parameter in parameters.items():
        parameter.data = state[name].to(parameter.device, copy=True).contiguous()
    if len(dtypes) == 1:
        model.config.dtype = dtypes.pop()
    return cast(transformers.PreTrainedModel, model.eval())


def export(lm: LM, folder: Path, tokenizer: Tokenizer | None = None, family: str | None = None) -> None:
    """Write a folder that `AutoModelForCausalLM.from_pretrained` loads, and `AutoTokenizer` if there is a tokenizer.

    Weights are safetensors. Raises NotCovered as `to_hf` does, ValueError for a tokenizer with ids beyond the model's.
    """
    if tokenizer is not None and tokenizer.vocab > lm.config.vocab:
        raise ValueError(f"the tokenizer has {tokenizer.vocab} ids, the model {lm.config.vocab}")
    to_hf(lm, family).save_pretrained(folder)
    if tokenizer is not None:
        to_hf_tokenizer(tokenizer).save_pretrained(folder)


def load(folder: Path) -> transformers.PreTrainedModel:
    """The model that transformers itself makes of an exported folder, ready for evaluation."""
    return cast(transformers.PreTrainedModel, transformers.AutoModelForCausalLM.from_pretrained(folder).eval())


def quiet() -> None:
    """Have transformers keep to itself what it thinks of configs and files, and show no progress bars: for commands."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def to_hf_tokenizer(tokenizer: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    """The same ids from the same text. Raises NotCovered for a tokenizer that is not one of `lmcore.tokenizer`."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    if isinstance(tokenizer, BPETokenizer):
        fast = Fast.from_str(tokenizer.serialized)
        # Ours sees one line at a time, and what follows a blank decides how blanks are cut into pieces.
        by_line = pre_tokenizers.Split(Regex(LINE_END), "merged_with_previous")
        fast.pre_tokenizer = pre_tokenizers.Sequence([by_line, fast.pre_tokenizer])
    elif isinstance(tokenizer, ByteTokenizer):
        fast = Fast(models.BPE({letter: byte for byte, letter in enumerate(_byte_letters())}, []))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        fast.decoder = decoders.ByteLevel()
    elif isinstance(tokenizer, CharTokenizer):
        fast = Fast(models.BPE({letter: i for i, letter in enumerate(tokenizer.characters)}, []))
        fast.decoder = decoders.Fuse()
    else:
        raise NotCovered(f"tokenizer {type(tokenizer).__name__}")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, clean_up_tokenization_spaces=False)


def with_rope_layout(lm: LM, layout: Literal["half", "pairs"]) -> LM:
    """The same function with RoPE's channels paired the other way: rows of q and k, and their gains, change places.

    Raises ValueError for a model without RoPE.
    """
    config = replace(lm.config, {"rope_layout": layout})
    if config.rope_layout == lm.config.rope_layout:
        return lm
    pairs = torch.arange(config.d_rope).view(2, -1).T.flatten()  # the half-split channel at each place of a pair
    turned = pairs if layout == "pairs" else pairs.argsort()
    order = torch.cat((turned, torch.arange(config.d_rope, config.d_head)))
    heads, state = config.n_head + config.n_kv_head, dict(lm.state_dict())
    for name, weight in state.items():
        per_head = torch.unflatten(weight, 0, (-1, config.d_head)) if re.search(r"\.(qkv|[qk]_norm)\.", name) else None
        if per_head is not None and config.layer_rotates(config.layer_kinds[_block(name)]):
            n = heads if ".qkv." in name else len(per_head)
            state[name] = torch.cat((per_head[:n, order], per_head[n:])).flatten(0, 1)
    with torch.device("meta"):
        out = LM(config)
    out.load_state_dict({name: weight.clone() for name, weight in state.items()}, assign=True)
    return out.train(lm.training)


def differences(a: ModelConfig, b: ModelConfig) -> list[str]:
    """Names of switches in which two configs compute different functions; rounding of a factor is none."""
    one, two = _function(a), _function(b)
    return [name for name in one if not _equal(one[name], two[name])]


def _function(config: ModelConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in ModelConfig.model_fields if name not in TRAINING_ONLY}
    values["window_pattern"] = config.layer_kinds
    if FULL not in config.layer_kinds:
        values["rope_base"] = None  # acts in full layers only
    return values


def _equal(a: Any, b: Any) -> bool:
    return math.isclose(a, b, rel_tol=1e-14) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def _family(model_type: str) -> Family:
    for family in FAMILIES:
        if family.model_type == model_type:
            return family
    known = ", ".join(family.model_type for family in FAMILIES)
    raise NotCovered(f"model type {model_type!r}; covered are {known}")


def _written(ours: ModelConfig, name: str | None) -> tuple[Family, transformers.PreTrainedConfig]:
    """The family that expresses `ours` and its config: the one that is `ours` again when read."""
    misses: dict[str, list[str]] = {}
    refused = []
    for family in FAMILIES if name is None else (_family(name),):
        try:
            config = _their_config(family, ours)
            miss = differences(ours, family.read(config))
        except NotCovered as error:
            refused.append(f"{family.model_type}: {error}")
            continue
        if not miss:
            return family, config
        misses[family.model_type] = miss
    raise NotCovered(_why(ours, misses, refused))


def _their_config(family: Family, ours: ModelConfig) -> transformers.PreTrainedConfig:
    kind = getattr(transformers, family.model_class).config_class
    values = family.write(ours) | {key: 0.0 for key in DROPOUTS if key in kind.__dataclass_fields__}
    try:
        return cast(transformers.PreTrainedConfig, kind(**values))
    except Exception as error:  # each class checks its values and raises in its own way
        raise NotCovered(str(error)) from error


def _why(ours: ModelConfig, misses: Mapping[str, list[str]], refused: list[str]) -> str:
    if not misses:
        return refused[0] if refused else "no family"
    everywhere = set.intersection(*(set(miss) for miss in misses.values()))
    nearest = min(misses, key=lambda model_type: len(misses[model_type]))
    lacks = ", ".join(f"{name} = {getattr(ours, name)!r}" for name in sorted(everywhere or misses[nearest]))
    if len(misses) == 1:
        return f"{nearest} has no {lacks}"
    return (
        f"no family has {lacks}" if everywhere else f"no family combines these; the nearest, {nearest}, lacks {lacks}"
    )


def _block(name: str) -> int:
    return int(name.split(".")[1])


def _sources(family: Family, name: str, config: ModelConfig) -> list[str]:
    """Names of their tensors that make up our tensor `name`: at least one."""
    prefix = ""
    module, _, leaf = name.rpartition(".") if name != "positions" else (name, "", "weight")
    if found := re.match(r"blocks\.(\d+)\.(.*)", module):
        prefix, module = f"{family.weights['blocks']}.{found[1]}.", found[2]
    if module == "ffn.norm_in" and config.residual == "parallel_shared":
        module = "attention.norm_in"
    if module not in family.weights:
        raise NotCovered(f"{family.model_type} has no counterpart of {name}")
    leaf = "weight" if leaf == "gain" else leaf
    return [f"{prefix}{part}.{leaf}" for part in family.weights[module].split()]


def _is_transposed(family: Family, name: str) -> bool:
    return family.transposed and name.endswith(".weight") and ".sublayer." in name


def _gathered(family: Family, name: str, parts: list[Tensor], config: ModelConfig) -> Tensor:
    """Our tensor of theirs, a copy."""
    whole = torch.cat([part.T if _is_transposed(family, name) else part for part in parts])
    if ".qkv." in name and family.fused_by_head(config):
        whole = torch.unflatten(whole, 0, (config.n_head, 3, -1)).transpose(0, 1).flatten(0, 2)
    return whole.clone(memory_format=torch.contiguous_format)


def _scattered(family: Family, lm: LM) -> Iterator[tuple[str, Tensor]]:
    """Their tensors of ours."""
    config = lm.config
    for name, whole in lm.state_dict().items():
        sources = _sources(family, name, config)
        if ".qkv." in name and family.fused_by_head(config):
            whole = torch.unflatten(whole, 0, (3, config.n_head, -1)).transpose(0, 1).flatten(0, 2)
        sizes = [len(whole) // len(sources)] * len(sources)  # one matrix, or gate and up
        if len(sources) == 3:
            sizes = [n * config.d_head for n in (config.n_head, config.n_kv_head, config.n_kv_head)]
        for source, part in zip(sources, whole.split(sizes), strict=True):
            yield source, part.T if _is_transposed(family, name) else part


def _untied(model: transformers.PreTrainedModel, tied: bool, head: str) -> dict[str, Tensor]:
    """All weights, without the head where it is the embedding. Raises NotCovered where the flag says otherwise."""
    state = dict(model.state_dict())
    if strange := [name for name, weight in state.items() if not weight.is_floating_point()]:
        raise NotCovered(f"{state[strange[0]].dtype} weights such as {strange[0]}")
    shared = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    if shared != tied:
        raise NotCovered(f"tie_word_embeddings = {tied}, but head and embedding are {'one' if shared else 'two'}")
    if tied:
        state.pop(head)
    return state


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level BPE: itself, or the next free one above 255."""
    own = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    free = iter(range(256, 512))
    return [chr(byte if byte in own else next(free)) for byte in range(256)]
