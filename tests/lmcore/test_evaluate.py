"""Validation loss by position, against a loop over every token."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lmcore.config import ModelConfig, RunConfig, TrainConfig
from lmcore.data import TokenData
from lmcore.evaluate import edges, position_losses, position_rows
from lmcore.model import LM
from tests.lmcore.test_train import RUN, run, tokens

__all__ = ["tokens"]


def test_every_position_is_the_mean_over_sequences_at_it(tokens: TokenData) -> None:
    model = LM(RUN.model, seed=3)
    found = position_losses(model, RUN, tokens)
    inputs, targets = map(torch.from_numpy, tokens.validation(RUN.train.eval_sequences, RUN.model.context))
    logits = model(inputs).detach()
    for position in (0, 1, 17, RUN.model.context - 1):
        plain = F.cross_entropy(logits[:, position], targets[:, position])
        assert float(found[position]) == pytest.approx(float(plain), rel=1e-6)
    assert float(found.mean()) == pytest.approx(
        float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())), rel=1e-6
    )


def test_a_last_batch_that_is_not_full_counts_as_what_it_is(tokens: TokenData) -> None:
    few = RunConfig(model=RUN.model, train=TrainConfig(batch=5, eval_sequences=16))
    whole = RunConfig(model=RUN.model, train=TrainConfig(batch=16, eval_sequences=16))
    model = LM(RUN.model, seed=3)
    torch.testing.assert_close(position_losses(model, few, tokens), position_losses(model, whole, tokens))


@pytest.mark.parametrize("context", [1, 2, 3, 7, 128, 1000])
def test_half_octaves_cover_every_position_once(context: int) -> None:
    found = edges(context)
    assert found[0] == 0 and found[-1] == context
    assert all(b > a for a, b in pairwise(found))
    assert all(b - a <= max(1, math.ceil(0.42 * a) + 1) for a, b in pairwise(found))


def test_rows_weighted_by_their_width_give_the_loss_back() -> None:
    losses = torch.rand(100, dtype=torch.float64)
    rows: list[dict[str, Any]] = [*position_rows(7, "val", losses)]
    assert sum((row["stop"] - row["start"]) * row["loss"] for row in rows) == pytest.approx(float(losses.sum()))
    assert [rows[i]["start"] for i in range(5)] == [0, 1, 2, 3, 4]


def test_a_run_gives_rows_at_every_evaluation(tokens: TokenData) -> None:
    sink, _ = run(RUN, tokens)
    by_step = {row["step"]: [r for r in sink.positions if r["step"] == row["step"]] for row in sink.evals}
    for row in sink.evals:
        total = sum((r["stop"] - r["start"]) * r["loss"] for r in by_step[row["step"]])
        assert total / RUN.model.context == pytest.approx(row["loss"], rel=1e-12)


def test_a_model_that_copies_needs_the_token_before(tokens: TokenData) -> None:
    """The first position knows one token, the later ones more: what looks two back gains from position 1 on."""
    inputs, targets = map(torch.from_numpy, tokens.validation(4, 8))

    def oracle(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*ids.shape, 256)
        for b, t in ((b, t) for b in range(len(ids)) for t in range(1, ids.shape[1])):
            row = next(i for i in range(len(inputs)) if torch.equal(inputs[i], ids[b]))
            logits[b, t, targets[row, t]] = 50.0
        return logits

    config = RunConfig(model=ModelConfig(vocab=256, context=8), train=TrainConfig(batch=2, eval_sequences=4))
    found = position_losses(oracle, config, tokens)
    assert float(found[0]) == pytest.approx(math.log(256), rel=1e-6) and float(found[1:].max()) < 1e-6
