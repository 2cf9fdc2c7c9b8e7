"""A database filled from a known truth: five FFN variants, three seeds, losses that tests can compute by hand."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from results import bins

SCHEMA_SQL = Path(__file__).parents[2] / "results" / "schema.sql"
STEPS, BATCH_TOKENS, EVAL_EVERY = 600, 4096, 50
FFN = {"relu": 0.0, "gelu": -0.004, "silu": 0.002, "swiglu": -0.035, "geglu": -0.031}
SEED_SHIFT = {0: 0.010, 1: -0.006, 2: 0.001, 3: 0.004, 4: -0.003}
POSITIONS = [(0, 1, 1.5), (1, 2, 1.0), (2, 4, 0.5), (4, 64, 0.0), (64, 128, -0.1)]  # from, to, over the mean loss
D_MODEL, VOCAB, CONTEXT, LAYERS = 128, 64, 128, 4


@dataclass
class Arm:
    """The truth about one arm: its offset from the base curve and what happens to its runs."""

    name: str
    offset: float = 0.0
    ffn: str = "relu"
    jitter: float = 0.004
    residual: float = 0.0008
    lr: float = 1e-3
    stops: dict[int, int] = field(default_factory=dict)  # seed: the step at which it is right now
    diverges: dict[int, int] = field(default_factory=dict)  # seed: the step whose loss is NaN
    fails: dict[int, str] = field(default_factory=dict)  # seed: kind
    waits: set[int] = field(default_factory=set)  # seeds that have not started
    code_hash: str = "c0de00000001"
    fingerprint: str = "f1a9e7000001"
    gpu: str | None = None


def five_arms() -> list[Arm]:
    return [Arm(name, offset, ffn=name) for name, offset in FFN.items()]


def final_loss(arm: Arm, seed: int) -> float:
    """The loss after the last step, exactly: base + arm + seed + an arm-and-seed part that averages to zero over 3."""
    own = math.cos(2 * math.pi * seed / 3 + 1000 * arm.offset)
    return 1.55 + arm.offset + SEED_SHIFT[seed] + arm.jitter * own


def val_loss(arm: Arm, seed: int, step: int) -> float:
    progress = step / STEPS
    transient = 2.6 * math.exp(-14 * progress) + 0.45 * (1 - progress) ** 2
    # Untrained models are equal; the arms part during the first tenth of training.
    return 1.55 + transient + (final_loss(arm, seed) - 1.55) * (1 - math.exp(-25 * progress)) / (1 - math.exp(-25))


def train_losses(arm: Arm, seed: int) -> np.ndarray:
    """Loss of steps 1..STEPS; the noise belongs to the batch, so that all arms of a seed share it."""
    noise = np.random.default_rng(seed).normal(0, 0.06, STEPS)
    return np.array([val_loss(arm, seed, s) - 0.03 for s in range(1, STEPS + 1)]) + noise


class Builder:
    """Fills one database; `plan` may be called several times."""

    def __init__(self, path: Path | str = ":memory:") -> None:
        self.con = duckdb.connect(str(path))
        self.con.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
        self.con.execute(
            "INSERT INTO snapshots VALUES ('c0de00000001', '1f2e3d4c5b6a', true, ?, '2025-01-01T00:00:00Z')",
            ["--- a/lmcore/ffn.py\n+++ b/lmcore/ffn.py\n@@ -1 +1 @@\n-x < y\n+x <= y\n"],
        )

    def plan(
        self, arms: list[Arm], sweep: str = "ffn_ablation", plan_id: str = "p1a2b3c4d5e6", seeds: int = 3, **given: Any
    ) -> "Builder":
        columns: dict[str, Any] = {
            "sweep": sweep,
            "plan_id": plan_id,
            "scale": "tiny",
            "question": "Does a gated FFN help at equal parameters?",
            "baseline": arms[0].name,
            "smallest_effect": 0.01,
            "created_at": "2025-01-01T00:00:00Z",
            "last_call_at": "2025-01-02T00:00:00Z",
            "code_hash": "c0de00000001",
            "plan": "{}",
        }
        self._insert("plans", columns | given)
        for n, arm in enumerate(arms):
            for seed in range(seeds):
                self._run(sweep, plan_id, n * seeds + seed, arm, seed)
        self.bin_rows()
        return self

    def bin_rows(self) -> None:
        """As an ingest does."""
        self.con.register("fresh", bins.of_rows(self.con.sql("FROM train ORDER BY run_id, step").pl()).to_arrow())
        self.con.execute("DELETE FROM bin_rows; INSERT INTO bin_rows BY NAME SELECT * FROM fresh")

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self.con.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))

    def _run(self, sweep: str, plan_id: str, order: int, arm: Arm, seed: int) -> None:
        run_id = f"{plan_id[:6]}{order:06d}"
        link = {"sweep": sweep, "plan_id": plan_id, "ord": order, "run_id": run_id, "arm": arm.name, "seed": seed}
        self._insert("plan_runs", link | {"match_residual": arm.residual})
        state, kind, step = self._fate(arm, seed)
        row = _static(run_id, arm, seed) | {"state": state, "kind": kind, "step": step}
        if seed not in arm.waits:
            self._attempt(run_id, arm, state)
            self._rows(run_id, arm, seed, step)
        if state == "DONE":
            row |= _final(arm, seed)
        self._insert("runs", row)

    def _fate(self, arm: Arm, seed: int) -> tuple[str, str | None, int]:
        if seed in arm.waits:
            return "PLANNED", None, 0
        if seed in arm.diverges:
            return "DIVERGED", None, arm.diverges[seed]
        if seed in arm.fails:
            return "FAILED", arm.fails[seed], 200
        if seed in arm.stops:
            return "RUNNING", None, arm.stops[seed]
        return "DONE", None, STEPS

    def _attempt(self, run_id: str, arm: Arm, state: str) -> None:
        packages = {"torch": "2.9.0", "numpy": "2.3.0"}
        env = {"python": "3.12.1", "torch": "2.9.0", "packages": packages, "cpu": "a cpu", "cores": 8, "gpu": arm.gpu}
        env |= {"threads": 1, "device": "cuda" if arm.gpu else "cpu", "precision": "float32", "attention": "fused"}
        row = {"run_id": run_id, "attempt": 1, "host": "node1", "code_hash": arm.code_hash, "resume_step": 0}
        reason = {"DONE": "done", "FAILED": "failed", "DIVERGED": "diverged"}.get(state)
        self._insert("attempts", row | {"reason": reason, "env": json.dumps(env), "error": "boom" if reason else None})

    def _rows(self, run_id: str, arm: Arm, seed: int, last: int) -> None:
        losses = train_losses(arm, seed)[:last]
        if seed in arm.diverges:
            losses[-20:] += np.linspace(0, 4, len(losses[-20:]))
            losses[-1] = math.nan
        rows = [
            (run_id, 1, s, s * BATCH_TOKENS, s * BATCH_TOKENS * 5e6, s * _seconds(arm, seed), loss, arm.lr, 1.0, 9e4)
            for s, loss in enumerate(losses.tolist(), start=1)
        ]
        self.con.execute(
            "INSERT INTO train_rows SELECT ?, 1, unnest(?::BIGINT[]), unnest(?::BIGINT[]), unnest(?::DOUBLE[]), "
            "unnest(?::DOUBLE[]), unnest(?::DOUBLE[]), ?, 1.0, 9e4",
            [run_id, *([row[i] for row in rows] for i in range(2, 7)), arm.lr],
        )
        for s in range(0, last + 1, EVAL_EVERY):
            loss = val_loss(arm, seed, s)
            row = (run_id, 1, s, "val", s * BATCH_TOKENS, loss, math.exp(loss), loss / math.log(2))
            self.con.execute("INSERT INTO eval_rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            at = [(run_id, 1, s, "val", start, stop, loss + over) for start, stop, over in POSITIONS]
            self.con.executemany("INSERT INTO position_rows VALUES (?, ?, ?, ?, ?, ?, ?)", at)


def _seconds(arm: Arm, seed: int) -> float:
    return (0.05 if arm.ffn in ("swiglu", "geglu") else 0.045) * (1 + 0.02 * seed)


def _static(run_id: str, arm: Arm, seed: int) -> dict[str, Any]:
    gated = arm.ffn in ("swiglu", "geglu")
    d_ff = 344 if gated else 512
    parts = dict.fromkeys(("q", "k", "v", "output"), 2.0 * LAYERS * D_MODEL**2)
    parts |= {"scores": LAYERS * D_MODEL * (CONTEXT + 1.0), "values": LAYERS * D_MODEL * (CONTEXT + 1.0)}
    parts |= dict.fromkeys((["ffn_gate"] if gated else []) + ["ffn_up", "ffn_down"], 2.0 * LAYERS * D_MODEL * d_ff)
    parts |= {"head": 2.0 * D_MODEL * VOCAB}
    params = 800_000 + (d_ff if gated else 0)
    model = {"ffn": arm.ffn, "d_ff": d_ff, "d_model": D_MODEL, "context": CONTEXT}
    config = {"model": model, "train": {"lr": arm.lr, "steps": STEPS, "batch": 32}, "seed": seed}
    account = {"forward_flops_by_component": parts, "params_by_group": {"ffn": 1, "attention": 2}}
    return {
        "run_id": run_id,
        "group_id": f"g-{arm.name}",
        "seed": seed,
        "steps": STEPS,
        "attempts": 1,
        "params": params,
        "params_non_embedding": params - 16_384,
        "flops_per_token": 5e6,
        "train_flops": 5e6 * STEPS * BATCH_TOKENS,
        "tokens": STEPS * BATCH_TOKENS,
        "data_name": "a corpus",
        "data_fingerprint": arm.fingerprint,
        "tokenizer": "char",
        "vocab": VOCAB,
        "config": json.dumps(config),
        "account": json.dumps(account),
    }


def _final(arm: Arm, seed: int) -> dict[str, Any]:
    loss = final_loss(arm, seed)
    return {
        "val_loss": loss,
        "val_perplexity": math.exp(loss),
        "val_bits_per_byte": loss / math.log(2),
        "train_loss": loss - 0.03,
        "tokens_per_s": BATCH_TOKENS / _seconds(arm, seed),
        "wall_s": STEPS * _seconds(arm, seed),
        "finished_at": "2025-01-02T00:00:00Z",
    }


def troubled_arms() -> list[Arm]:
    """One arm diverges, one waits, one fails, one is half way, and nothing is alike."""
    arms = five_arms()
    arms[1].diverges = {1: 300}
    arms[2].waits = {0, 1, 2}
    arms[3].stops, arms[3].residual, arms[3].lr = {2: 250}, 0.012, 3e-3
    arms[4].fails, arms[4].code_hash, arms[4].gpu = {0: "oom"}, "c0de00000002", "a gpu"
    return arms


def hostile_arms() -> list[Arm]:
    return [
        Arm("<script>alert(1)</script>", ffn="relu"),
        Arm("$\\frac{a}{b", -0.01, ffn="gelu"),
        Arm("\"quoted\" & 'single'", 0.01, ffn="silu"),
        Arm("変種 \U0001f600\nnewline [red]", -0.03, ffn="swiglu"),
    ]
