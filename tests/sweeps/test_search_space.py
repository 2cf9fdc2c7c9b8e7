"""Search spaces are checked against the config before anything starts."""

from pathlib import Path

import pytest

from results.home import Home
from sweeps.search_define import Definition, define, first_asks
from sweeps.spec import SweepError
from tests.sweeps.searches import LR, write


def defined(tmp_path: Path, text_file: Path, space: str, sampler: str = "random", **more: str) -> Definition:
    path = write(tmp_path, text_file, space, **more)  # type: ignore[arg-type]
    return define(str(path), sampler, "none", 0, {}, Home(tmp_path / "home"))


BAD = {
    "{}": "empty",
    "{'train.lr': Range(1e-1, 1e-4, log=True)}": "reversed",
    "{'train.lr': Range(1e-3, 1e-3)}": "equal",
    "{'train.lr': Range(0, 1e-1, log=True)}": "above 0",
    "{'train.lr': Range(-1e-3, 1e-1)}": "train.lr=-0.001, which cannot be",
    "{'train.lr': Range(1e-3, float('inf'))}": "finite",
    "{'train.lrr': Range(1e-4, 1e-1)}": "did you mean 'train.lr'",
    "{'train': Choices([1])}": "is a group",
    "{'train.lr': Choices([])}": "no values",
    "{'train.lr': Choices([1e-3, 1e-3])}": "twice",
    "{'train.lr': Choices([[1e-3]])}": "a number or text",
    "{'model.d_model': Range(8.5, 16)}": "whole numbers",
    "{'model.d_model': Range(0, 16)}": "d_model=0",
    "{'model.n_head': Choices([1, 3])}": "n_head=3",
    "{'model.ffn': Range(1, 2)}": "takes no numbers",
    "{'model.ffn': Choices(['swish'])}": "swish",
    "{'train.warmup': Choices([0, 20])}": "leaves nothing of 20 steps",
    "{'seed': Range(0, 9)}": "share their seed",
    "{'data.tokenizer': Choices(['byte', 'char'])}": "cannot be compared",
    "{'data.max_chars': Choices([5, 10])}": "cannot be compared",
    "{'train.log_every': Choices([5, 10])}": "the same run",
    "{'train.lr': (1e-4, 1e-1)}": "space",
    "{'train.lr': Range('a', 1)}": "number",
}


@pytest.mark.parametrize("space", BAD)
def test_a_bad_space_is_refused_with_the_reason(tmp_path: Path, text_file: Path, space: str) -> None:
    with pytest.raises(SweepError, match=BAD[space]):
        defined(tmp_path, text_file, space)
    assert not list((tmp_path / "home").glob("sweeps/*"))
    assert not list((tmp_path / "home").glob("runs/*"))


def test_values_are_typed_like_the_config(tmp_path: Path, text_file: Path) -> None:
    space = "{'train.lr': Range(1, 2), 'model.d_ff': Range(8, 64, log=True), 'train.clip': Choices([None, 1.0])}"
    for run in first_asks(defined(tmp_path, text_file, space), 12):
        assert isinstance(run.config.train.lr, float)
        assert isinstance(run.config.model.d_ff, int)
        assert 8 <= run.config.model.d_ff <= 64
    assert {run.config.train.clip for run in first_asks(defined(tmp_path, text_file, space), 12)} == {None, 1.0}


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "cmaes", "grid"])
def test_16_parallel_first_trials_are_16_trials(tmp_path: Path, text_file: Path, sampler: str) -> None:
    space = "{'train.lr': Range(1e-4, 1e-1, log=True, points=4), 'train.beta2': Range(0.9, 0.99, points=4)}"
    runs = first_asks(defined(tmp_path, text_file, space, sampler), 16)
    assert len({run.run_id for run in runs}) == 16
    if sampler != "grid":
        assert len({run.config.train.lr for run in runs}) == 16
    else:
        assert {run.config.train.lr for run in runs} == {1e-4, 1e-1, *sorted({r.config.train.lr for r in runs})[1:3]}
    again = first_asks(defined(tmp_path, text_file, space, sampler), 16)
    assert [run.run_id for run in again] == [run.run_id for run in runs]


def test_cmaes_needs_two_ranges_and_names_are_checked(tmp_path: Path, text_file: Path) -> None:
    with pytest.raises(SweepError, match="two ranges"):
        defined(tmp_path, text_file, LR, "cmaes")
    with pytest.raises(SweepError, match="--sampler is one of"):
        defined(tmp_path, text_file, LR, "best")
    with pytest.raises(SweepError, match="--pruner is one of"):
        define(str(write(tmp_path, text_file)), "tpe", "axe", 0, {}, Home(tmp_path / "home"))
    with pytest.raises(SweepError, match="evaluations on the way"):
        define(str(write(tmp_path, text_file, every=20)), "tpe", "asha", 0, {}, Home(tmp_path / "home"))
    with pytest.raises(SweepError, match="what the search varies"):
        define(str(write(tmp_path, text_file)), "tpe", "none", 0, {"train.lr": 1e-3}, Home(tmp_path / "home"))
