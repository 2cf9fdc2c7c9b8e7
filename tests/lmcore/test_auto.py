"""`auto`: what it becomes on which machine, said in a line; and what was not `auto` stays what it is."""

from typing import Any

import pytest

from lmcore import auto
from lmcore.auto import Machine
from lmcore.config import AUTO, ConfigError, Means, RunConfig, replace

OPEN: dict[str, Any] = {f"train.{name}": AUTO for name in Means._fields}
PLAIN = Machine(cores=8, bf16=None, gpu=False, no_compiler=None)
MATRIX_UNITS = Machine(cores=8, bf16="amx_bf16", gpu=False, no_compiler=None)
NO_COMPILER = Machine(cores=8, bf16="amx_bf16", gpu=False, no_compiler="there is no g++")
GPU = Machine(cores=8, bf16="this GPU", gpu=True, no_compiler=None)
LONG: dict[str, Any] = {"train.steps": 20_000}


def resolved(machine: Machine, changes: dict[str, Any]) -> tuple[Means, str]:
    configs, lines = auto.resolve({"arm": replace(RunConfig(), {**OPEN, **changes})}, machine)
    return configs["arm"].train.means, "\n".join(lines)


@pytest.mark.parametrize(
    ("machine", "changes", "means", "words"),
    [
        (PLAIN, LONG, Means("float32", "fused", 8, True), "precision float32: nothing here multiplies bf16 faster"),
        (MATRIX_UNITS, LONG, Means("bf16", "plain", 8, True), "precision bf16: amx_bf16"),
        (MATRIX_UNITS, {"train.steps": 30}, Means("bf16", "plain", 8, False), "compile off: 30 steps of"),
        (NO_COMPILER, LONG, Means("bf16", "plain", 8, False), "compile off: there is no g++"),
        (GPU, {"train.steps": 100_000}, Means("bf16", "fused", 1, True), "attention fused: a GPU"),
        (
            MATRIX_UNITS,
            {"train.threads": 2, "train.precision": "float32"} | LONG,
            Means("float32", "fused", 2, True),
            "",
        ),
    ],
)
def test_it_becomes_what_the_machine_and_the_run_call_for(
    machine: Machine, changes: dict[str, Any], means: Means, words: str
) -> None:
    found, lines = resolved(machine, changes)
    assert found == means
    assert words in lines


def test_arms_share_one_choice_and_cores() -> None:
    """Compiling that does not pay for one arm is left out for all, because their speeds are compared."""
    base = replace(RunConfig(), {**OPEN, **LONG})
    arms = {"long": base, "short": replace(base, {"train.steps": 30}), "eager": replace(base, {"train.compile": False})}
    configs, _ = auto.resolve(arms, MATRIX_UNITS)
    assert {config.train.means for config in configs.values()} == {Means("bf16", "plain", 2, False)}


def test_the_same_run_has_the_same_id_however_its_means_were_chosen() -> None:
    configs, _ = auto.resolve({"arm": replace(RunConfig(), OPEN)}, NO_COMPILER)
    said = {"train.precision": "bf16", "train.attention": "plain", "train.threads": 8, "train.compile": False}
    assert configs["arm"].run_id == replace(RunConfig(), said).run_id
    assert replace(RunConfig(), {"train.compile": False}).run_id == RunConfig().run_id, "ids of old runs stay"
    assert replace(RunConfig(), {"train.compile": True}).run_id != RunConfig().run_id


def test_an_open_setting_names_no_run() -> None:
    with pytest.raises(ConfigError, match=r"train\.threads is 'auto' still"):
        _ = replace(RunConfig(), {"train.threads": AUTO}).run_id


def test_this_machine_is_looked_at_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Machine:
        raise AssertionError

    monkeypatch.setattr(auto, "this_machine", fail)
    config = RunConfig()
    assert auto.resolve({"arm": config}) == ({"arm": config}, [])
    with pytest.raises(AssertionError):
        auto.resolve({"arm": replace(config, OPEN)})


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    auto.this_machine.cache_clear()
    assert auto.this_machine().gpu or auto.this_machine().no_compiler == "there is no no-such-compiler"
    auto.this_machine.cache_clear()
