"""What a search says of its best learning rate, in words."""

from typing import Any

import pytest

from analysis.trials import sentence

FOUND = {"at": {}, "lr": 0.0161, "low": None, "high": None, "trials": 8, "diverges_from": None, "enclosed": True}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"low": 0.01, "high": 0.02}, "(95 % interval 0.01 to 0.02), from 8 trials"),
        ({}, "from 8 trials: too few near it for an interval; try more"),
        ({"enclosed": False}, "the best lies at an end of what was tried; widen the range"),
        ({"diverges_from": 0.1}, "; 0.1 diverged"),
    ],
)
def test_the_advice_fits_what_is_lacking(given: dict[str, Any], words: str) -> None:
    told = sentence(FOUND | given)
    assert told.startswith("recommended train.lr=0.0161") and words in told
    assert ("widen" in told) == (not (FOUND | given)["enclosed"])
