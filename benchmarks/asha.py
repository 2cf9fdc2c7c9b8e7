"""What pruning saves: `python -m benchmarks.asha [SEED]`, a real small search of LR and width, beside the whole grid.

The grid trains everything to the end. The search asks as many random trials and prunes them by ASHA. Printed are the
tokens trained and the best loss of both. A few minutes on two cores.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TRIALS = 27
SEARCH = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Choices, Range, Search

BASE = replace(RunConfig(), {"data.max_chars": 400_000, "model.d_model": 32, "model.n_layer": 2, "model.n_head": 2,
    "model.context": 64, "train.batch": 8, "train.steps": 2700, "train.eval_every": 50, "train.eval_sequences": 64,
    "train.checkpoint_every": 300, "train.telemetry_every": 0, "train.log_every": 50})

def search():
    return Search("Which learning rate, which width?", {"train.lr": Range(1e-4, 1.0, log=True, points=9),
        "model.d_model": Choices([16, 32, 64])}, base=BASE)
"""
COST = """
SELECT sum(r.step * r.tokens / r.steps)::BIGINT AS tokens, min(r.val_loss) FILTER (r.state = 'DONE') AS loss
FROM trials t JOIN runs r USING (run_id)
"""


def lab(home: Path, *arguments: str) -> Any:
    """What a command prints with --json."""
    command = [sys.executable, "-m", "cli", *arguments, "--json"]
    environment = os.environ | {"LAB_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def searched(folder: Path, *options: str) -> dict[str, float]:
    """Tokens trained and the best loss of one search in a home of its own."""
    path, home = folder / "lr_width.py", folder / "-".join(options[:4])
    path.write_text(SEARCH)
    lab(home, "search", str(path), "--trials", str(TRIALS), *options)
    found: dict[str, float] = lab(home, "sql", COST)[0]
    return found


def main(seed: int = 0) -> None:
    """Both searches, and the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        grid = searched(Path(folder), "--sampler", "grid", "--pruner", "none")
        print(f"grid: {grid['tokens']:,} tokens, best loss {grid['loss']:.4f}", flush=True)
        for sampler in ("random", "tpe"):
            asha = searched(Path(folder), "--sampler", sampler, "--pruner", "asha", "--seed", str(seed))
            print(
                f"{sampler} with asha: {asha['tokens']:,} tokens ({asha['tokens'] / grid['tokens']:.0%} of the grid), "
                f"best loss {asha['loss']:.4f} ({asha['loss'] / grid['loss'] - 1:+.2%})",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
