"""Configs: typed, checked, with nearest keys named, and an identity that survives what does not matter."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcore import switches
from lmcore.config import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
    flatten,
    parse_assignment,
    read_config,
    replace,
    stored_form,
)


def test_derived_sizes_follow_what_they_are_derived_from() -> None:
    small = ModelConfig(d_model=128)
    assert (small.d_head, small.n_kv_head, small.d_ff) == (32, 4, 344)
    large = replace(small, {"d_model": 256, "ffn": "relu"})
    assert (large.d_head, large.d_ff) == (64, 1024)
    assert replace(large, {"d_ff": 100}).d_ff == 100


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.d_modle": 1}, "did you mean 'model.d_model'"),
        ({"modl.d_model": 1}, "did you mean 'model.d_model'"),
        ({"train": {"learning_rte": 1}}, "unknown key 'learning_rte'"),
        ({"model.n_head": 6, "model.n_kv_head": 4, "model.d_model": 48}, "not divisible by n_kv_head"),
        ({"model.d_model": 28}, "d_head is odd"),
        ({"model.d_model": 30}, "not divisible by n_head"),
        ({"model.position": "none", "model.rope_base": 500.0}, "has no effect"),
        ({"model.position": "learned", "model.rope_layout": "pairs"}, "has no effect"),
        ({"model.norm_affine": False, "model.norm_bias": True}, "norm_bias has no effect without norm_affine"),
        ({"model.window_pattern": "LF"}, "window must be set"),
        ({"model.window": 4, "model.window_pattern": "LX"}, "made of L and F"),
        ({"model.window": 4, "model.window_pattern": "F"}, "window has no effect"),
        ({"model.window": 0}, "greater than or equal to 1"),
        ({"model.rope_factor": 2.0}, "rope_factor has no effect"),
        ({"model.window": 3, "model.rope_scaling": "yarn", "model.rope_factor": 4.0}, "rope_scaling has no effect"),
        ({"model.window": 3, "model.rope_base_local": 50.0, "model.rope_base": 777.0}, "rope_base has no effect"),
        ({"model.rope_base": 1.0}, "greater than 1"),
        ({"model.rope_fraction": 0.9}, "no whole number of pairs"),
        (
            {"model.qk_norm": "head", "model.norm_affine": False, "model.qk_norm_place": "after_rope"},
            "qk_norm_place has no effect",
        ),
        ({"train.schedule": "wsd", "train.wsd_decay": 0.0001}, "leaves no step"),
        ({"train.lr_min_ratio": 1.0}, "is schedule='constant'"),
        ({"model.rope_scaling": "ntk"}, "rope_scaling has no effect"),
        ({"model.qk_norm_place": "after_rope"}, "qk_norm_place has no effect"),
        ({"model.residual": "parallel", "model.norm_position": "post"}, "residual has no effect"),
        ({"model.position_offset": 2}, "position_offset has no effect"),
        ({"model.window": 4, "model.rope_layers": "local"}, "rope_layers has no effect"),
        ({"model.ffn": "swigul"}, "swiglu"),
        ({"model.d_model": "128"}, "valid integer"),
        ({"model.d_model": True}, "valid integer"),
        ({"train.lr": float("nan")}, "finite"),
        ({"train.lr": 0.0}, "greater than 0"),
        ({"train.warmup": 1000}, "leaves nothing"),
        ({"train.schedule": "constant", "train.lr_min_ratio": 0.5}, "has no effect"),
        ({"data.bpe_vocab": 500}, "has no effect"),
        ({"data.source": "text"}, "goes with"),
        ({"model.d_head": 0}, "at least 1"),
    ],
)
def test_impossible_configs_are_refused_with_the_reason(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(RunConfig(), changes)


def test_published_config_cases() -> None:
    assert ModelConfig(d_model=30, n_head=5).d_head == 6
    with pytest.raises(ValueError, match="odd"):
        ModelConfig(d_model=28, n_head=4)
    with pytest.raises(ValueError, match="divisible"):
        ModelConfig(d_model=48, n_head=6, n_kv_head=4)


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3", "1E-3"])
def test_the_same_number_however_it_is_written(text: str) -> None:
    assert parse_assignment(f"train.lr={text}") == ("train.lr", 0.001)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.steps=1e4", 10000),
        ("train.clip=none", None),
        ("model.tied=true", True),
        ("model.ffn=relu", "relu"),
        ("data.path=a=b", "a=b"),
    ],
)
def test_values_from_the_shell_are_typed_like_the_field(text: str, value: object) -> None:
    assert parse_assignment(text)[1] == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.lr", "key=value"),
        ("train.lrr=1", "did you mean 'train.lr'"),
        ("train=1", "is a group"),
        ("train.lr.x=1", "has no key"),
        ("train.steps=ten", "integer"),
        ("train.steps=1.5", "integer"),
    ],
)
def test_bad_assignments_say_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_assignment(text)


def test_one_line_names_all_that_a_value_may_be() -> None:
    with pytest.raises(ConfigError, match=r"^train.attention=flash: .*'fused' or 'plain' or 'auto', not 'flash'$"):
        parse_assignment("train.attention=flash")


def test_identity_leaves_out_defaults_paths_and_logging() -> None:
    plain = RunConfig()
    assert plain.identity() == {}
    same = replace(
        plain,
        {
            "model.d_model": 128,
            "model.d_ff": 344,  # what would be derived
            "train.log_every": 7,
            "train.checkpoint_every": 3,
            "train.telemetry_every": 5,
            "train.weight_decay": 0.1,
        },
    )
    assert same.run_id == plain.run_id
    moved = replace(plain, {"data.path": "a.txt", "data.fingerprint": "f" * 16})
    assert moved.run_id == replace(plain, {"data.path": "b.txt", "data.fingerprint": "f" * 16}).run_id
    assert moved.run_id != replace(moved, {"data.fingerprint": "e" * 16}).run_id


def test_identity_is_of_values_not_of_spelling() -> None:
    one = replace(RunConfig(), {"train.lr": 1, "train.weight_decay": -0.0, "model.tied": True})
    other = replace(RunConfig(), {"model.tied": True, "train.weight_decay": 0.0, "train.lr": 1.0})
    assert one.run_id == other.run_id


def test_seed_is_in_the_run_id_and_not_in_the_group_id() -> None:
    a, b = RunConfig(seed=0), RunConfig(seed=1)
    assert a.run_id != b.run_id
    assert a.group_id == b.group_id


def test_known_ids_stay_what_they_are() -> None:
    """A new field with a default must not rename every stored run: these were recorded when the scheme was made."""
    assert RunConfig().run_id == "bd0488843468"
    changed = replace(RunConfig(), {"model.ffn": "relu", "train.lr": 3e-3, "seed": 2})
    assert (changed.run_id, changed.group_id) == ("13e8be2bc0f3", "ca5ee4857d91")


def test_stored_configs_come_back_equal_and_new_fields_take_their_default() -> None:
    run = replace(RunConfig(), {"model.ffn": "relu", "train.schedule": "constant", "data.tokenizer": "byte"})
    stored = stored_form(run)
    assert flatten(read_config({"config": stored})) == flatten(run)
    assert read_config({"config": stored}).run_id == run.run_id
    del stored["train"]["eps"]  # as if the field had been added since
    assert read_config({"config": stored}).train.eps == TrainConfig().eps
    stored["model"]["gone"] = 1
    with pytest.raises(ConfigError, match="unknown key 'gone'"):
        read_config({"config": stored})


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().seed = 1


@given(st.dictionaries(st.sampled_from(["steps", "batch", "lr", "eps", "seed"]), st.integers(1, 50)))
def test_replace_is_the_same_in_one_step_or_many(values: dict[str, int]) -> None:
    changes = {k if k == "seed" else f"train.{k}": v for k, v in values.items()}
    at_once, step_by_step = replace(RunConfig(), changes), RunConfig()
    for key, value in reversed(changes.items()):
        step_by_step = replace(step_by_step, {key: value})
    assert at_once == step_by_step
    assert at_once.run_id == step_by_step.run_id


@pytest.mark.parametrize("kind", [ModelConfig, DataConfig, TrainConfig])
def test_no_field_needs_to_be_set(kind: type[Config]) -> None:
    assert kind().identity() == {}


def test_the_table_of_switches_in_the_docs_is_what_the_code_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "switches.md"
    assert page.read_text() == switches.document(), "python -m lmcore.switches > docs/switches.md"
