"""Data: `python -m benchmarks.data`.

Preparing it once, batches beside a step, BPE beside the library alone, and a file larger than memory.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.throughput import Bare
from lmcore import corpus, data
from lmcore.config import DataConfig, RunConfig, replace
from lmcore.data import TokenData
from lmcore.presets import PRESETS
from lmcore.tokenizer import BPETokenizer

SHARE, RATIO = 0.01, 1.1
VOCAB, ROUNDS, CHARACTERS = 4096, 3, 4_000_000
LARGE_BYTES = 10 * 10**9


def seconds(do: Callable[[], object]) -> float:
    """That one call takes."""
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def prepared(cache: Path) -> TokenData:
    """The default text: prepared, found again, loaded."""
    first, again = (seconds(lambda: data.prepare(DataConfig(), cache)) for _ in range(2))
    folder = next(cache.glob("[0-9a-f]*"))
    opened = statistics.median(seconds(lambda: data.load(folder)) for _ in range(20))
    print(f"the default text: prepared in {first:.2f} s, found again by planning in {again:.3f} s, "
          f"mapped by a run in {opened * 1e3:.2f} ms", flush=True)  # fmt: skip
    return data.load(folder)


def batches(tokens: TokenData) -> None:
    """Assembling a batch beside a training step, in turns."""
    config = replace(RunConfig(model=PRESETS["stories-810k"]), {"model.vocab": tokens.info.vocab})
    bare = Bare(config, tokens)
    size = config.train.batch, config.model.context
    pairs = [(seconds(lambda s=s: tokens.batch(0, s, *size)), seconds(bare.update)) for s in range(1, 31)]  # type: ignore[misc]
    batch, step = (statistics.median(times) for times in zip(*pairs[3:], strict=True))
    print(f"a batch {batch * 1e3:.2f} ms, {batch / step:.2%} of a step (target under {SHARE:.0%})", flush=True)


def library(text: str) -> np.ndarray:
    """What one would write with `tokenizers` alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    lines = text.splitlines(keepends=True)
    found.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False)
    )
    return np.array([i for piece in found.encode_batch(lines) for i in piece.ids], dtype=np.uint32)


def bpe() -> None:
    """Training and encoding, ours beside the library's, in turns; the ids must be equal."""
    text = corpus.load(DataConfig()).train[:CHARACTERS]
    assert (BPETokenizer.train(text, VOCAB).encode(text) == library(text)).all()
    pairs = [
        (seconds(lambda: BPETokenizer.train(text, VOCAB).encode(text)), seconds(lambda: library(text)))
        for _ in range(ROUNDS)
    ]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"BPE of {VOCAB} ids from {len(text) / 1e6:.1f} MB: ours {ours:.2f} s, `tokenizers` alone {theirs:.2f} s, "
          f"ratio {ours / theirs:.2f} (target {RATIO})", flush=True)  # fmt: skip


def large(tokens: TokenData, folder: Path) -> None:
    """Batches out of a sparse file of 10 GB."""
    meta = json.loads((next(folder.parent.glob("cache/[0-9a-f]*")) / "meta.json").read_text())
    width = np.dtype(meta["dtype"]).itemsize
    folder.mkdir()
    for part, size in (("train", LARGE_BYTES), ("val", 10**6)):
        with (folder / f"{part}.bin").open("wb") as file:
            file.truncate(size)
        meta[f"{part}_tokens"] = size // width
    (folder / "meta.json").write_text(json.dumps(meta))
    before, whole = private_bytes(), data.load(folder)
    took = seconds(lambda: [whole.batch(0, step, 32, 1024) for step in range(1000)]) / 1000
    print(f"{LARGE_BYTES / 1e9:.0f} GB of tokens: {(private_bytes() - before) / 1e6:.1f} MB of memory more, "
          f"a batch of 32 x 1,024 in {took * 1e3:.2f} ms", flush=True)  # fmt: skip


def private_bytes() -> int:
    """Memory of this process that is no page of a file."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def main() -> None:
    """Print one line per measurement."""
    with tempfile.TemporaryDirectory() as temporary:
        tokens = prepared(Path(temporary) / "cache")
        batches(tokens)
        bpe()
        large(tokens, Path(temporary) / "large")


if __name__ == "__main__":
    main()
