"""`lab flops`: the account of a named model, of a sweep's arms, or of a model given on the command line."""

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmcore import auto, count, memory
from lmcore.config import RunConfig, did_you_mean, replace
from lmcore.presets import PRESETS
from results import query
from results.home import Home
from sweeps.load import known, load
from sweeps.plan import plan
from sweeps.spec import SweepError

if TYPE_CHECKING:
    from lmcore.peak import Peak

# Runs that ended on this host and device with that many threads: only those may be held against its peak.
RUNS_HERE = """
SELECT r.run_id, r.tokens_per_s, r.flops_per_token, r.config->'train'->>'precision' AS precision,
    any_value(p.arm) AS arm, any_value(p.sweep) AS sweep
FROM runs r JOIN attempts a USING (run_id) LEFT JOIN plan_runs p USING (run_id)
WHERE r.state = 'DONE' AND r.tokens_per_s > 0 AND a.attempt = r.attempts AND a.host = $host
    AND a.env->>'device' = $device AND (a.env->>'threads')::INT = $threads
GROUP BY ALL ORDER BY sweep, arm, run_id
"""


def accounts(name: str | None, home: Home, changes: Mapping[str, Any], scale: str | None) -> dict[str, RunConfig]:
    """A run for each model by name: one, or one per arm of a sweep. Raises SweepError, ConfigError."""
    if scale and (name is None or name in PRESETS):
        raise SweepError("--scale goes with an experiment")
    if name is None:
        return auto.resolve({"model": replace(RunConfig(), changes)})[0]
    if name in PRESETS:
        return auto.resolve({name: replace(RunConfig(model=PRESETS[name]), changes)})[0]
    if name not in known() and "/" not in name and not name.endswith(".py"):
        names = [*PRESETS, *known()]
        raise SweepError(f"unknown model {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")
    runs = plan(load(name), home, scale, changes, seeds=1).runs
    return {run.arm: run.config for run in runs}


def account(run: RunConfig, context: int | None = None, batch: int | None = None) -> dict[str, Any]:
    """Parameters, FLOPs, KV bytes and bytes of training of one model at a context and batch; keys are stable.

    KV bytes are those of bf16. Memory is what a training step of this precision and attention path holds.
    """
    model, train = run.model, run.train
    tokens, sequences, precision = context or model.context, batch or train.batch, train.means.precision
    if precision == "bf16_weights":
        raise SweepError("the memory of train.precision=bf16_weights is not counted; leave it out here")
    forward, backward = (
        {name: n / tokens for name, n in flops(model, tokens).items()}
        for flops in (count.forward_flops_by_component, count.backward_flops_by_component)
    )
    held = memory.training_bytes(model, sequences, tokens, precision, train.means.attention)
    return {
        "context": tokens,
        "params": {
            "total": count.params(model),
            "non_embedding": count.params_non_embedding(model),
            "by_group": count.params_by_group(model),
        },
        "forward_flops_per_token": count.forward_flops_per_token_by_convention(model, tokens),
        "forward_flops_per_token_by_component": forward,
        "backward_flops_per_token_by_component": backward,
        "train_flops_per_token": count.train_flops_per_token(model, tokens),
        "decode_flops_per_token": count.decode_flops(model, tokens),
        "kv_bytes_per_token": count.kv_bytes_per_token(model),
        "kv_bytes": count.kv_bytes(model, tokens),
        "batch": sequences,
        "precision": precision,
        "attention": memory.kernel_of(model, train.means.attention),
        "memory_bytes": held | {"total": sum(held.values())},
        "activation_bytes_by_component": memory.activation_bytes_by_component(
            model, sequences, tokens, precision, train.means.attention
        ),
    }


def runs_against(peak: "Peak", home: Home) -> list[dict[str, Any]]:
    """Every finished run of this home that was trained on this device, with its MFU; none without a database."""
    where = {"host": socket.gethostname(), "device": peak.device, "threads": peak.threads}
    try:
        runs = query.rows(home, RUNS_HERE, where)
    except FileNotFoundError:
        return []
    return [
        run | {"mfu": count.mfu(run["flops_per_token"], run["tokens_per_s"], _peak_of(peak, run["precision"]))}
        for run in runs
    ]


def _peak_of(peak: "Peak", precision: str) -> float:
    """FLOP/s of the matrix products of a run: those of bf16 weights are bf16 too."""
    return peak.flops_per_s["bf16" if precision == "bf16_weights" else precision]
