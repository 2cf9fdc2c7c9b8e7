"""Train a recorded run once more, from nothing, in a home of its own: `python -m sweeps.rerun RUN_FOLDER NEW_HOME`.

With the snapshot of the run on PYTHONPATH this is exactly its code; on a CPU the weights come out bit for bit.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from lmcore import data
from lmcore.corpus import DataError
from results.files import BadFile
from results.home import Home
from results.process import claim_identity
from results.record import RunFolder
from sweeps import environment
from sweeps.attempt import attempt_run
from sweeps.signals import StopFlag
from sweeps.spec import SweepError

UNFINISHED = "the recorded run is not done: there is nothing to compare the weights with"


def rerun(folder: Path, into: Path) -> dict[str, Any]:
    """Train the run in `folder` anew in the home `into`; says whether weights and loss are the same."""
    original, home = RunFolder(folder.absolute()), Home(into)
    spec, before, home_of_original = original.spec(), original.done(), Home(original.path.parent.parent)
    run = home.run(original.run_id)
    if run.path.exists():
        raise SweepError(f"{run.path} exists; give a new folder")
    home.ensure()
    source = data.find(spec["data"]["fingerprint"], home_of_original.data)
    shutil.copytree(source, home.data / source.name, dirs_exist_ok=True)
    attempt_run(home, run, claim_identity(), StopFlag(), None, 0, spec)
    return {"run_id": run.run_id, "home": str(home.path)} | _compared(before, run.done())


def _compared(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    """`same_weights` is None where the recorded run has no end that could be compared with."""
    if after is None:
        return {"done": False, "same_weights": False}
    if before is None:
        return {"done": True, "same_weights": None, "val_loss": after["val_loss"], "note": UNFINISHED}
    losses = {"val_loss": after["val_loss"], "val_loss_before": before.get("val_loss")}
    return {"done": True, "same_weights": after["weights_sha256"] == before.get("weights_sha256")} | losses


def commands(home: Home, run: RunFolder) -> dict[str, Any]:
    """What to type to train `run` again with the code and the versions of its newest attempt."""
    started = [attempt for attempt in run.attempts() if attempt.claim and attempt.start]
    if not started:
        raise SweepError(f"run {run.run_id} has no attempt that says with what it ran: it has not begun, or is damaged")
    claim, env = started[-1].claim or {}, (started[-1].start or {}).get("env", {})
    snapshot, lock = home.snapshots / str(claim.get("code_hash")), home.locks / f"{env.get('lock')}.txt"
    notes = [f"ran on {env.get('platform')}, {env.get('gpu') or env.get('cpu')}, python {env.get('python')}"]
    differs = environment.differences(lock)
    if differs:
        notes.append(f"packages here differ from {lock}: {', '.join(differs[:8])}")
    if not snapshot.is_dir():
        notes.append(f"its code is gone: {snapshot}")
    if run.done() is None:
        notes.append(UNFINISHED)
    words = [sys.executable, "-P", "-m", "sweeps.rerun", str(run.path), f"{home.path}-rerun-{run.run_id}"]
    line = f"PYTHONPATH={shlex.quote(str(snapshot))} {shlex.join(words)}"
    return {"run_id": run.run_id, "notes": notes, "lock": str(lock), "differs": differs, "commands": [line]}


def main() -> None:
    """Entry of `python -m sweeps.rerun`; exit code 1 when the weights differ."""
    parser = argparse.ArgumentParser(prog="sweeps.rerun", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run, as `lab show` prints it")
    parser.add_argument("into", type=Path, help="a new home")
    given = parser.parse_args()
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # an attempt writes all that it prints to its own log
    try:
        answer = rerun(given.run, given.into)
    except (OSError, BadFile, DataError, SweepError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps(answer), file=stdout, flush=True)
    sys.exit(1 if answer["same_weights"] is False else 0)


if __name__ == "__main__":
    main()
