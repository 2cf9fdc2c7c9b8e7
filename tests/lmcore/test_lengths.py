"""A trained model beyond its training length: the same function within it, and which stretchings are possible."""

from typing import Any

import pytest
import torch

from lmcore.config import ConfigError, RunConfig, read_config, replace, stored_form
from lmcore.lengths import SCALINGS, longer, range_means, scalings
from lmcore.model import LM
from lmcore.position import rope_frequencies

BASE = replace(RunConfig(), {"model.d_model": 32, "model.n_layer": 2, "model.n_head": 2, "model.context": 32})
KINDS: dict[str, dict[str, Any]] = {
    "rope": {},
    "rope in windows": {"model.window": 8},
    "rope, some windows": {"model.window": 8, "model.window_pattern": "LF"},
    "rope in windows only": {"model.window": 8, "model.window_pattern": "LF", "model.rope_layers": "local"},
    "rope, trained stretched": {"model.rope_scaling": "yarn", "model.rope_factor": 2.0},
    "sinusoidal": {"model.position": "sinusoidal"},
    "alibi": {"model.position": "alibi"},
    "none": {"model.position": "none"},
}


def stored(changes: dict[str, Any]) -> RunConfig:
    """As a run's spec holds it: every field is set."""
    return read_config({"config": stored_form(replace(BASE, changes))})


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_within_the_trained_length_nothing_changes_unstretched(changes: dict[str, Any]) -> None:
    config = stored(changes)
    longest = longer(config, 80, "none")
    model, reader = LM(config.model, seed=1), LM(longest.model)
    reader.load_state_dict(model.state_dict())
    ids = torch.randint(config.model.vocab, (2, 80), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reader(ids)[:, :32], model(ids[:, :32]))


@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
def test_stretched_weights_are_read_by_the_ratio_of_the_lengths(scaling: Any) -> None:
    config = longer(stored({}), 128, scaling)
    plain, (stretched, _) = (
        rope_frequencies(BASE.model, "F", torch.device("cpu"))[0],
        rope_frequencies(config.model, "F", torch.device("cpu")),
    )
    assert config.model.rope_factor == 4
    assert config.train.batch == BASE.train.batch // 4, "as many tokens at once"
    assert float(stretched[-1]) == pytest.approx(float(plain[-1]) / 4, rel=1e-5), "the slowest pair, by all of it"
    assert config.model.rope_original_context == (32 if scaling == "yarn" else 128)
    reader = LM(config.model)
    reader.load_state_dict(LM(BASE.model, seed=1).state_dict())
    assert reader(torch.zeros(1, 128, dtype=torch.long)).isfinite().all()


def test_what_can_be_tried_follows_from_the_positions() -> None:
    assert {name: scalings(stored(changes)) for name, changes in KINDS.items()} == {
        "rope": SCALINGS,
        "rope in windows": ("none",),
        "rope, some windows": SCALINGS,
        "rope in windows only": ("none",),
        "rope, trained stretched": ("none",),
        "sinusoidal": ("none",),
        "alibi": ("none",),
        "none": ("none",),
    }
    assert scalings(stored({"model.position": "learned"})) == ()


@pytest.mark.parametrize(
    ("changes", "context", "scaling", "words"),
    [
        ({}, 32, "none", "32 tokens are not more than the 32"),
        ({}, 16, "linear", "16 tokens"),
        ({"model.position": "alibi"}, 64, "linear", "'linear' cannot be tried on positions of the kind 'alibi'"),
        ({"model.position": "learned"}, 64, "none", "'none' cannot be tried on positions of the kind 'learned'"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], context: int, scaling: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        longer(stored(changes), context, scaling)


@pytest.mark.parametrize("trained", [1, 24, 32])
def test_ranges_are_cut_where_training_ended_and_cover_every_position(trained: int) -> None:
    losses = torch.rand(80, dtype=torch.float64)
    rows = range_means(losses, trained)
    assert trained in [row["start"] for row in rows]
    assert sum((row["stop"] - row["start"]) * row["loss"] for row in rows) == pytest.approx(float(losses.sum()))
    within = [row for row in rows if row["stop"] <= trained]
    assert sum((row["stop"] - row["start"]) * row["loss"] for row in within) == pytest.approx(
        float(losses[:trained].sum())
    )
