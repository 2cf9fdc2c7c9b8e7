"""Generation: seeded, per row, with padding on either side, and the cut tails are what they say."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmcore.config import ModelConfig, replace
from lmcore.generate import Sampling, cut_tail, generate
from lmcore.model import LM

CONFIG = ModelConfig(vocab=20, d_model=16, n_layer=2, n_head=2, context=32, init_scale=3.0)
GREEDY = Sampling(temperature=0)


def prompts(rows: int = 2, tokens: int = 5) -> Tensor:
    return torch.randint(0, 20, (rows, tokens), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("changes", [{}, {"window": 3}, {"position": "alibi"}, {"position": "learned"}], ids=str)
def test_greedy_tokens_are_those_of_the_full_forward(changes: dict[str, object]) -> None:
    model, given = LM(replace(CONFIG, changes)), prompts()
    new = generate(model, given, 12, GREEDY)
    for _ in range(12):
        given = torch.cat((given, model(given)[:, -1].argmax(-1, keepdim=True)), dim=1)
    assert new.tolist() == given[:, 5:].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("changes", [{}, {"window": 3}, {"position": "learned"}], ids=str)
def test_padding_on_either_side_gives_what_each_row_gives_alone(side: str, changes: dict[str, object]) -> None:
    model, given = LM(replace(CONFIG, changes)), prompts()
    real = torch.ones(2, 5, dtype=torch.bool)
    real[1, slice(0, 2) if side == "left" else slice(3, 5)] = False
    for sampling in (GREEDY, Sampling(seed=4)):
        together = generate(model, given, 10, sampling, real)
        alone = generate(model, given[1:, real[1]], 10, sampling)
        assert together[1].tolist() == alone[0].tolist()
        assert together[0].tolist() == generate(model, given[:1], 10, sampling)[0].tolist()


def test_the_seed_decides() -> None:
    model = LM(CONFIG)
    first = generate(model, prompts(), 20, Sampling(seed=1))
    assert first.tolist() == generate(model, prompts(), 20, Sampling(seed=1)).tolist()
    assert first.tolist() != generate(model, prompts(), 20, Sampling(seed=2)).tolist()


def test_a_tiny_temperature_is_greedy() -> None:
    model = LM(CONFIG)
    assert generate(model, prompts(), 8, Sampling(1e-40)).tolist() == generate(model, prompts(), 8, GREEDY).tolist()


def test_eos_ends_each_row_by_itself() -> None:
    model, given = LM(CONFIG), prompts(4)
    free = generate(model, given, 12, Sampling(seed=5))
    eos = int(free[0, 3])
    ended = generate(model, given, 12, Sampling(seed=5), eos=eos)
    for row, was in zip(ended.tolist(), free.tolist(), strict=True):
        end = was.index(eos) if eos in was else 12
        assert row == was[:end] + [eos] * (12 - end)


def test_tails_are_cut_where_they_say() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log()

    def kept(sampling: Sampling) -> list[int]:
        return torch.nonzero(cut_tail(logits, sampling)[0].isfinite()).flatten().tolist()

    assert kept(Sampling(top_k=2)) == [0, 1]
    assert kept(Sampling(top_k=9)) == [0, 1, 2, 3, 4]
    assert int(cut_tail(torch.zeros(1, 5), Sampling(top_k=2)).isfinite().sum()) == 2  # also among equals
    assert kept(Sampling(top_p=0.5)) == [0]
    assert kept(Sampling(top_p=0.69)) == [0, 1]
    assert kept(Sampling(top_p=0.71)) == [0, 1, 2]
    assert kept(Sampling(top_p=1e-9)) == [0]
    assert kept(Sampling(top_k=3, top_p=0.9)) == [0, 1, 2]


def test_draws_follow_the_distribution() -> None:
    model = LM(CONFIG)
    given = prompts(1).expand(1, -1)
    wanted = (model(given)[0, -1] / 0.7).softmax(-1).detach()
    drawn = torch.stack([generate(model, given, 1, Sampling(temperature=0.7, seed=s))[0, 0] for s in range(600)])
    shares = torch.bincount(drawn, minlength=20) / 600
    assert float((shares - wanted).abs().max()) < 0.07


def test_impossible_requests_are_refused() -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("temperature", {"temperature": -1.0}),
        ("temperature", {"temperature": float("nan")}),
        ("top_k", {"top_k": 0}),
        ("top_p", {"top_p": 1.5}),
    ]
    for words, bad in refused:
        with pytest.raises(ValueError, match=words):
            Sampling(**bad)
    with pytest.raises(ValueError, match="at least one token"):
        generate(LM(CONFIG), torch.zeros(1, 0, dtype=torch.long), 3)
    for rows, new in ((torch.zeros(0, 3, dtype=torch.long), 3), (prompts(1), -1)):
        with pytest.raises(ValueError, match="nothing to generate"):
            generate(LM(CONFIG), rows, new)
    with pytest.raises(ValueError, match="only 32 learned positions"):
        generate(LM(replace(CONFIG, {"position": "learned"})), prompts(1), 40)
