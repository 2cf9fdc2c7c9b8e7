"""What the trained models of a sweep lose on sequences longer than those they were trained on."""

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from lmcore.evaluate import position_losses
from lmcore.lengths import Scaling, longer, range_means, scalings
from results.home import Home
from sweeps import stored
from sweeps.sample import load_run
from sweeps.spec import SweepError

Row = dict[str, Any]


def losses_beyond(home: Home, name: str, context: int, wanted: Sequence[Scaling]) -> list[Row]:
    """Measure and record every finished run of a sweep; a row per arm and scaling.

    `within` and `beyond` are mean losses in nats at positions below and from the trained context on, over seeds; with
    the lowest and highest seed of the latter. Raises SweepError without a finished run or with too
    little validation text, ConfigError for a context that is not longer than in training.
    """
    found = stored.find_plan(home, name)
    done = [run for run in found.runs if home.run(run["run_id"]).done()]
    if not done:
        raise SweepError(f"no run of {name} is done yet")
    by_arm: dict[tuple[str, str], list[Row]] = {}
    for run in done:
        print(f"{run['arm']} seed {run['seed']}", file=sys.stderr, flush=True)
        for row in _measured(home, run["run_id"], context, wanted):
            by_arm.setdefault((run["arm"], row["scaling"]), []).append(row)
    return [{"arm": arm, "scaling": scaling} | _summary(rows) for (arm, scaling), rows in by_arm.items()]


def _measured(home: Home, run_id: str, context: int, wanted: Sequence[Scaling]) -> Iterator[Row]:
    """Losses of one run by scaling, in float32. By position they are recorded with the run."""
    run = load_run(home, run_id)
    possible, trained, recorded = scalings(run.config), run.config.model.context, list[Row]()
    if not possible:
        print(f"  left out: its table of learned positions ends after {trained} tokens", file=sys.stderr)
    if possible and run.tokens.info.val_tokens <= context:
        raise SweepError(f"{run.tokens.info.val_tokens} validation tokens are too few for one sequence of {context}")
    for scaling in (one for one in possible if one in wanted):
        config = longer(run.config, context, scaling)
        losses = position_losses(run.model(config), config, run.tokens)
        recorded += [{"scaling": scaling, **row} for row in range_means(losses, trained)]
        yield {
            "scaling": scaling,
            "trained": trained,
            "context": len(losses),
            "within": float(losses[:trained].mean()),
            "beyond": float(losses[trained:].mean()),
        }
    if recorded:
        home.run(run_id).record_lengths(context, recorded)


def _summary(rows: Sequence[Row]) -> Row:
    beyond = [row["beyond"] for row in rows]
    return {
        "runs": len(rows),
        "trained": rows[0]["trained"],
        "context": rows[0]["context"],
        "within": statistics.fmean(row["within"] for row in rows),
        "beyond": statistics.fmean(beyond),
        "beyond_low": min(beyond),
        "beyond_high": max(beyond),
    }
