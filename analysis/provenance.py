"""Where the numbers of a plan come from: code, packages, hardware, data, seeds."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.frames import query, runs_frame
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ATTEMPTS_SQL = """
SELECT p.arm, p.seed, a.run_id, a.attempt, a.host, a.code_hash, a.reason, a.kind, a.error, a.env
FROM plan_runs p JOIN attempts a USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id
ORDER BY p.ord, a.attempt
"""

CODE_SQL = """
SELECT a.code_hash, any_value(s.git_sha) AS git_sha, any_value(s.dirty) AS dirty,
    any_value(s.git_diff) AS git_diff, count(DISTINCT a.run_id) AS runs
FROM plan_runs p JOIN attempts a USING (run_id) LEFT JOIN snapshots s ON s.code_hash = a.code_hash
WHERE p.sweep = $sweep AND p.plan_id = $plan_id
GROUP BY a.code_hash ORDER BY runs DESC, a.code_hash
"""

HARDWARE = ("cpu", "gpu")
NUMERICS = ("threads", "precision", "attention")


@dataclass(frozen=True)
class Provenance:
    """What produced a plan's numbers. Each mapping is {value: number of runs}, most common first."""

    code: list[dict[str, Any]]  # code_hash, git_sha, dirty, git_diff, runs
    packages: dict[str, dict[str, int]]  # {package or python: {version: runs}}
    hardware: dict[str, int]
    numerics: dict[str, int]  # threads, precision, attention
    data: dict[str, int]  # "name, tokenizer, fingerprint"
    seeds: list[int]
    attempts: int


def attempts_frame(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """One row per attempt of the plan's runs; `env` is JSON text."""
    return query(con, ATTEMPTS_SQL, plan)


def provenance(con: "DuckDBPyConnection", plan: Plan) -> Provenance:
    """Collect the provenance of every run of the plan that has started."""
    runs, attempts = runs_frame(con, plan), attempts_frame(con, plan)
    environments = _environments(attempts)
    data = runs.filter(pl.col("data_fingerprint").is_not_null())
    return Provenance(
        code=query(con, CODE_SQL, plan).to_dicts(),
        packages=_packages(environments),
        hardware=_count(_words(env, HARDWARE) for _, env in environments),
        numerics=_count(", ".join(f"{key} {env.get(key)}" for key in NUMERICS) for _, env in environments),
        data=_count(_described(row) for row in data.iter_rows(named=True)),
        seeds=sorted(runs["seed"].unique().to_list()),
        attempts=len(attempts),
    )


def _environments(attempts: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """(run_id, environment), one for each different environment that a run has had."""
    known = attempts.filter(pl.col("env").is_not_null()).unique(["run_id", "env"], maintain_order=True)
    return [(run_id, json.loads(env)) for run_id, env in known.select("run_id", "env").iter_rows()]


def _packages(environments: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, int]]:
    versions = [
        {"python": env.get("python"), "torch": env.get("torch")} | env.get("packages", {}) for _, env in environments
    ]
    names = sorted({name for known in versions for name in known})
    return {name: _count(known.get(name) for known in versions) for name in names}


def _count(values: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for value in values:
        text = "unknown" if value is None else str(value)
        counted[text] = counted.get(text, 0) + 1
    return dict(sorted(counted.items(), key=lambda item: -item[1]))


def _words(env: dict[str, Any], keys: tuple[str, ...]) -> str:
    return ", ".join(str(env[key]) for key in keys if env.get(key))


def _described(row: dict[str, Any]) -> str:
    return f"{row['data_name']}, {row['tokenizer']} tokenizer, fingerprint {row['data_fingerprint']}"


def listed(found: dict[str, int], separator: str = "; ") -> str:
    """`{value: runs}` in words."""
    words = (f"{value} ({n} {'run' if n == 1 else 'runs'})" for value, n in found.items())
    return separator.join(words) or "not recorded"
