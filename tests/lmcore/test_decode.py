"""The decode benchmark measures what it says; counted bytes are the allocated ones."""

from typing import Any

import pytest

from lmcore.config import ModelConfig, replace
from lmcore.decode import measure
from lmcore.model import LM

CONFIG = ModelConfig(vocab=20, d_model=32, n_layer=2, n_head=4, context=64)


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_kv_head": 2}, {"n_kv_head": 1}, {"window": 5}, {"window": 5, "window_pattern": "LF"}, {"window": 100}],
    ids=str,
)
def test_counted_cache_bytes_are_the_allocated_ones(changes: dict[str, Any]) -> None:
    cost = measure(LM(replace(CONFIG, changes)), batch=3, prompt=7, new=6, rounds=1)
    assert cost.cache_bytes == cost.cache_bytes_counted > 0
    assert cost.tokens_per_s == pytest.approx(3 / cost.token_s)
    assert min(cost.prefill_s, cost.token_s) > 0


def test_fewer_kv_heads_make_a_smaller_cache() -> None:
    def bytes_with(n_kv_head: int) -> int:
        return measure(LM(replace(CONFIG, {"n_kv_head": n_kv_head})), batch=1, prompt=4, new=2, rounds=1).cache_bytes

    assert bytes_with(4) == 2 * bytes_with(2) == 4 * bytes_with(1)
