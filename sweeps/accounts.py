"""`lab flops`: the account of a named model, of a sweep's arms, or of a model given on the command line."""

from collections.abc import Mapping
from typing import Any

from lmcore import count
from lmcore.config import ModelConfig, RunConfig, did_you_mean, replace
from lmcore.presets import PRESETS
from results.home import Home
from sweeps.load import known, load
from sweeps.plan import plan
from sweeps.spec import SweepError


def accounts(name: str | None, home: Home, changes: Mapping[str, Any], scale: str | None) -> dict[str, ModelConfig]:
    """Models by name: one for a preset or for none, one per arm for a sweep. Raises SweepError, ConfigError."""
    if scale and (name is None or name in PRESETS):
        raise SweepError("--scale goes with an experiment")
    if name is None:
        return {"model": replace(RunConfig(), changes).model}
    if name in PRESETS:
        return {name: replace(RunConfig(model=PRESETS[name]), changes).model}
    if name not in known() and "/" not in name and not name.endswith(".py"):
        names = [*PRESETS, *known()]
        raise SweepError(f"unknown model {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")
    runs = plan(load(name), home, scale, changes, seeds=1).runs
    return {run.arm: run.config.model for run in runs}


def account(model: ModelConfig, context: int | None) -> dict[str, Any]:
    """Parameters, FLOPs and KV bytes of one model at a context; keys are stable."""
    tokens = context or model.context
    components = count.forward_flops_by_component(model, tokens)
    return {
        "context": tokens,
        "params": {
            "total": count.params(model),
            "non_embedding": count.params_non_embedding(model),
            "by_group": count.params_by_group(model),
        },
        "forward_flops_per_token": count.forward_flops_per_token_by_convention(model, tokens),
        "forward_flops_per_token_by_component": {name: n / tokens for name, n in components.items()},
        "train_flops_per_token": count.train_flops_per_token(model, tokens),
        "kv_bytes_per_token": count.kv_bytes_per_token(model),
    }
