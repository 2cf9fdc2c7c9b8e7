"""Use what a run has trained: generate text from it, or hand it to another library."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lmcore import checkpoint, data
from lmcore.config import RunConfig, read_config
from lmcore.data import TokenData
from lmcore.decode import measure
from lmcore.evaluate import position_losses
from lmcore.generate import Sampling, generate
from lmcore.model import LM
from lmcore.tokenizer import Tokenizer
from results import views
from results.home import Home
from sweeps.spec import SweepError


@dataclass(frozen=True)
class Trained:
    """What a run has made: its weights at the newest checkpoint, and what it read."""

    config: RunConfig
    weights: bytes
    checkpoint: Path
    tokenizer: Tokenizer
    tokens: TokenData

    def model(self, config: RunConfig | None = None) -> LM:
        """Its model; with `config` the same weights read by another, whose weights have the same shapes."""
        config = config or self.config
        model = LM(config.model, path=config.train.means.attention)
        with checkpoint.naming(self.checkpoint):
            checkpoint.load_weights(model, self.weights)
        return model.eval()


def load_run(home: Home, prefix: str) -> Trained:
    """What the run whose id begins so has made. Raises SweepError when that is nothing yet."""
    folder = home.run(views.resolve(home, prefix))
    found = folder.latest_checkpoint()
    if found is None:
        raise SweepError(f"run {folder.run_id} has no checkpoint in {folder.path}")
    step, blobs = found
    spec = folder.spec()
    config = read_config(spec)
    torch.set_num_threads(config.train.means.threads)  # of the run: all cores at once can be ten times slower
    place = data.find(spec["data"]["fingerprint"], home.data)
    tokenizer, tokens = data.load_tokenizer(place), data.load(place)
    return Trained(config, blobs["model.safetensors"], folder.checkpoint_folder(step), tokenizer, tokens)


def continuations(home: Home, prefix: str, prompts: Sequence[str], new_tokens: int, sampling: Sampling) -> list[str]:
    """What the run's model writes after each prompt. Raises SweepError for a prompt it cannot read."""
    run = load_run(home, prefix)
    try:
        rows = [torch.tensor(run.tokenizer.encode(text).astype("int64")) for text in prompts]
        longest = max(len(row) for row in rows)
        padded = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0)) for row in rows])
        real = torch.stack([torch.arange(longest) >= longest - len(row) for row in rows])
        new = generate(run.model(), padded, new_tokens, sampling, real)
    except ValueError as error:
        raise SweepError(f"cannot continue this prompt: {error}") from None
    return [run.tokenizer.decode(row.tolist()) for row in new]


def decode_costs(
    home: Home, run_ids: Sequence[str], batches: Sequence[int], prompt: int, new: int
) -> list[dict[str, Any]]:
    """Measure generation with each run's model, one after the other and on one thread, and record it with the run."""
    torch.set_num_threads(1)
    rows = []
    for run_id in run_ids:
        model = load_run(home, run_id).model()
        costs = [asdict(measure(model, batch, prompt, new)) for batch in batches]
        home.run(run_id).record_decode("cpu", costs)
        rows += [{"run_id": run_id} | cost for cost in costs]
    return rows


def export(home: Home, prefix: str, folder: Path) -> dict[str, Any]:
    """Write a folder that `transformers` loads, and say what loss its model has on the run's validation tokens."""
    try:
        from lmcore import hf
    except ImportError as error:
        raise SweepError(f"exporting needs the extra `hf` (pip install 'lab[hf]'): {error}") from None
    hf.quiet()
    run = load_run(home, prefix)
    model = run.model()
    hf.export(model, folder, run.tokenizer)
    there = hf.load(folder)
    return {
        "folder": str(folder),
        "family": there.config.model_type,
        "val_loss": float(position_losses(model, run.config, run.tokens).mean()),
        "val_loss_there": float(position_losses(lambda ids: there(ids).logits, run.config, run.tokens).mean()),
    }
