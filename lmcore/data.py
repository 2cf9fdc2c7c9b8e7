"""Tokens on disk, prepared once, and the batch of every step as a pure function of (fingerprint, seed, step)."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmcore import corpus, tokenizer
from lmcore.config import DataConfig

FORMAT = 1  # raise when the files' meaning changes, so that old caches are not taken for new ones


@dataclass(frozen=True)
class DataInfo:
    """What planning has to know about prepared data."""

    name: str
    fingerprint: str
    tokenizer: str
    vocab: int
    train_tokens: int
    val_tokens: int
    bytes_per_token: float


@dataclass(frozen=True)
class TokenData:
    """Memory-mapped tokens of one corpus."""

    info: DataInfo
    train: NDArray[np.unsignedinteger]
    val: NDArray[np.unsignedinteger]

    def batch(self, seed: int, step: int, batch: int, context: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and next-token targets (batch, context) of update number `step`.

        Windows start at uniform random places. Philox's raw 64-bit stream is fixed by its definition, so every
        machine and every numpy draws the same; nothing has to be saved to resume.
        """
        key = [int(self.info.fingerprint[:15], 16), seed]
        raw = np.random.Philox(key=key, counter=[0, 0, 0, step]).random_raw(batch)
        places = len(self.train) - context
        starts = [int(r) * places >> 64 for r in raw]
        return _windows(self.train, starts, context)

    def validation(self, sequences: int, context: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same evenly spread windows for every run: inputs and targets (at most `sequences`, context)."""
        places = len(self.val) - context
        count = min(sequences, max(1, places // context))
        return _windows(self.val, [i * places // count for i in range(count)], context)


def _windows(
    tokens: NDArray[np.unsignedinteger], starts: list[int], context: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.stack([tokens[start : start + context + 1] for start in starts]).astype(np.int64)
    return rows[:, :-1], rows[:, 1:]


def prepare(config: DataConfig, cache: Path) -> DataInfo:
    """Tokenise the corpus into `cache` unless that is done already. Raises corpus.DataError."""
    text = corpus.load(config)
    folder = _folder(config, cache, text)
    if folder.exists() and not _is_whole(folder):
        shutil.rmtree(folder)  # damaged by hand or by a crash of the machine; it is only a cache
    if not folder.exists():
        _build(folder, text, config)
    return load(folder).info


def find(fingerprint: str, cache: Path) -> Path:
    """The folder in `cache` holding the data of that fingerprint. Raises corpus.DataError when it is gone."""
    for folder in sorted(cache.glob("[0-9a-f]*")):  # not the private folders of planners at work
        if _is_whole(folder) and json.loads((folder / "meta.json").read_text())["fingerprint"] == fingerprint:
            return folder
    raise corpus.DataError(
        f"no prepared data with fingerprint {fingerprint} in {cache}; run `lab sweep` again to prepare it"
    )


def load(folder: Path) -> TokenData:
    """Map a prepared folder; nothing is read into memory. Raises DataError for files of the wrong size."""
    if not _is_whole(folder):
        raise corpus.DataError(f"prepared data in {folder} is damaged; run `lab sweep` again to prepare it anew")
    meta = json.loads((folder / "meta.json").read_text())
    dtype = np.dtype(meta.pop("dtype"))
    train, val = (np.memmap(folder / f"{part}.bin", dtype=dtype, mode="r") for part in ("train", "val"))
    return TokenData(DataInfo(**meta), train, val)


def _is_whole(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        width = np.dtype(meta["dtype"]).itemsize
        return all((folder / f"{p}.bin").stat().st_size == width * meta[f"{p}_tokens"] for p in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_tokenizer(folder: Path) -> tokenizer.Tokenizer:
    """The tokenizer of a prepared folder."""
    return tokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))


def _folder(config: DataConfig, cache: Path, text: corpus.Corpus) -> Path:
    """Named after everything that decides the content."""
    digest = hashlib.sha256(json.dumps([FORMAT, config.tokenizer, config.bpe_vocab]).encode())
    for part in (text.name, text.train, text.val):
        digest.update(hashlib.sha256(part.encode()).digest())
    return cache / digest.hexdigest()[:16]


def _build(folder: Path, text: corpus.Corpus, config: DataConfig) -> None:
    """Write into a private folder and rename: two planners at once both end with the same complete folder.

    OSError naming it if there is no space.
    """
    kind = config.tokenizer
    if min(len(text.train), len(text.val)) < 2:
        raise corpus.DataError(
            f"{text.name}: too little text, {len(text.train)} characters to train on and {len(text.val)} to validate"
        )
    made = tokenizer.build(kind, text.train, text.train + text.val, config.bpe_vocab)
    dtype = np.dtype(np.uint16 if made.vocab <= 2**16 else np.uint32)
    folder.parent.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        tokens = {part: made.encode(getattr(text, part)).astype(dtype) for part in ("train", "val")}
        for part, ids in tokens.items():
            _write(private / f"{part}.bin", ids.tobytes())
        _write(private / "tokenizer.json", made.to_json().encode())
        info = DataInfo(
            name=text.name,
            fingerprint=_fingerprint(tokens, made),
            tokenizer=f"{kind} {made.vocab}",
            vocab=made.vocab,
            train_tokens=len(tokens["train"]),
            val_tokens=len(tokens["val"]),
            bytes_per_token=len(text.val.encode()) / max(1, len(tokens["val"])),
        )
        _write(private / "meta.json", json.dumps(asdict(info) | {"dtype": dtype.name}, indent=1).encode())
        private.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, error.strerror, str(folder)) from error  # no fault of the data
        if not (folder / "meta.json").exists():
            raise corpus.DataError(f"cannot write prepared data to {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _fingerprint(tokens: dict[str, NDArray[np.unsignedinteger]], made: tokenizer.Tokenizer) -> str:
    digest = hashlib.sha256(made.to_json().encode())
    for part in ("train", "val"):
        digest.update(hashlib.sha256(tokens[part].astype("<u4").tobytes()).digest())
    return digest.hexdigest()[:16]


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
