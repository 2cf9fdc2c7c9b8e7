"""Parity with transformers, logit for logit, in both directions, in files, and token by token."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lmcore import tokenizer
from lmcore.cache import Cache
from lmcore.config import replace
from lmcore.model import LM
from tests.lmcore.hf_cases import (
    CASES,
    CONTEXT,
    EXTRA,
    NO_TOKENS,
    OURS,
    TOLERANCE,
    assert_same_tensors,
    build,
    hf,
    pair,
    tokens,
    transformers,
)

every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_every_keyword_took_effect(name: str) -> None:
    """That library accepts unknown keywords in silence."""
    values = CASES[name][1]
    config = pair(name).theirs.config
    declared = set(type(config).__dataclass_fields__) | set(type(config).attribute_map)
    assert set(values) - EXTRA <= declared
    assert {key: getattr(config, key) for key in values} == values
    assert config._attn_implementation == "eager"


@every_case
def test_logits_are_theirs(name: str, record_property: Callable[[str, object], None]) -> None:
    both = pair(name)
    error = both.error(both.ours)
    record_property("error", error)
    assert 0.3 < both.logits.std() < 6
    assert error < TOLERANCE


@pytest.mark.parametrize("name", [n for n in CASES if n != "openai-gpt" and not n.startswith("gemma2")])
def test_their_two_attention_paths_agree(name: str) -> None:
    """Otherwise it would be open which of them a model of ours is equal to."""
    both, other = pair(name), build(name, "sdpa")
    assert other.config._attn_implementation == "sdpa"
    with torch.no_grad():
        error = (other(both.ids).logits - both.logits).abs().max() / both.logits.std()
    assert error < TOLERANCE


@every_case
def test_cached_decoding_is_the_full_forward(name: str) -> None:
    """A prefill longer than the window, then one token at a time; in float64, where rounding hides nothing."""
    lm, ids = copy.deepcopy(pair(name).ours).double(), tokens(CONTEXT)
    memory, logits = Cache(lm.config), []
    with torch.no_grad():
        for start, end in [(0, 7), *((i, i + 1) for i in range(7, CONTEXT))]:
            logits.append(lm(ids[:, start:end], cache=memory))
        error = (torch.cat(logits, dim=1) - lm(ids)).abs().max()
    assert error < 1e-10


@every_case
def test_round_trips_are_exact(name: str) -> None:
    theirs, ours, ids, logits = pair(name)
    again = hf.to_hf(ours, family=theirs.config.model_type)
    assert type(again) is type(theirs)
    for key, value in CASES[name][1].items():
        assert key in NO_TOKENS or getattr(again.config, key) == value, key
    assert_same_tensors(again.state_dict(), theirs.state_dict())
    again.set_attn_implementation("eager")
    with torch.no_grad():
        assert torch.equal(again(ids).logits, logits)

    anyhow = hf.from_hf(hf.to_hf(ours))  # as the first family that can
    assert anyhow.config == ours.config
    assert_same_tensors(anyhow.state_dict(), ours.state_dict())


@every_case
def test_an_exported_folder_loads_there(name: str, tmp_path: Path) -> None:
    _, ours, ids, logits = pair(name)
    hf.export(ours, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"config.json", "generation_config.json", "model.safetensors"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        assert float((loaded(ids).logits - logits).abs().max() / logits.std()) < TOLERANCE
    assert_same_tensors(hf.from_hf(loaded).state_dict(), ours.state_dict())


def test_what_belongs_to_training_does_not_travel_and_nothing_random_happens() -> None:
    lm = LM(replace(OURS, {"dropout": 0.2, "init": "gpt2", "init_scale": 2.0}))
    before = torch.get_rng_state()
    model = hf.to_hf(lm)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert model.config.attention_dropout == 0
    back = hf.from_hf(model).config
    assert (back.dropout, back.init) == (0.0, "fan_in")
    assert hf.differences(back, lm.config) == []


def test_copies_share_no_memory_and_keep_their_dtype() -> None:
    lm = hf.from_hf(build("qwen3").to(torch.bfloat16))
    assert {p.dtype for p in lm.parameters()} == {torch.bfloat16}
    model = hf.to_hf(lm)
    assert (model.dtype, model.config.dtype) == (torch.bfloat16, torch.bfloat16)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert all(bool(p.any()) for p in lm.parameters())


@pytest.mark.parametrize("name", ["llama biases", "qwen3", "olmo3", "gpt_neox sequential", "gemma3_text", "cohere2"])
def test_the_rope_layouts_are_one_function(name: str) -> None:
    """Rows of q and k and QK-norm's gains are permuted, and only channels that rotate."""
    both = pair(name)
    layout = both.ours.config.rope_layout
    other = hf.with_rope_layout(both.ours, "half" if layout == "pairs" else "pairs")
    assert other.config.rope_layout != layout
    assert both.error(other) < TOLERANCE
    assert_same_tensors(hf.with_rope_layout(other, layout).state_dict(), both.ours.state_dict())


TEXT = "Line one:  two  spaces\n\n  indented, caf\u00e9 \u2028 and \U0001f600.\n\ttab\r\nend \n"


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_an_exported_tokenizer_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    ours = tokenizer.build(kind, TEXT * 3, TEXT, bpe_vocab=300)
    lm = LM(replace(OURS, {"vocab": ours.vocab}))
    hf.export(lm, tmp_path, ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode(TEXT).tolist()
    assert theirs(TEXT)["input_ids"] == ids
    assert theirs.decode(ids) == TEXT
    assert len(theirs) == ours.vocab
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]
