"""Tokenizers: characters, bytes, and BPE of any vocabulary. Each is lossless: decode(encode(text)) == text."""

import json
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HFTokenizer

Ids = NDArray[np.uint32]


class Tokenizer(Protocol):
    """Text to ids and back; `to_json` is all that is needed to build it again."""

    vocab: int

    def encode(self, text: str) -> Ids: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def to_json(self) -> str: ...


class ByteTokenizer:
    """One id per UTF-8 byte; 256 ids."""

    vocab = 256

    def encode(self, text: str) -> Ids:
        """Ids 0 to 255."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are not valid UTF-8 (a character cut in two) become U+FFFD."""
        return bytes(ids).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"kind": "byte"})


class CharTokenizer:
    """One id per distinct character, in code point order."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.vocab = len(characters)

    @cached_property
    def _codes(self) -> NDArray[np.uint32]:
        return _code_points(self.characters)

    def encode(self, text: str) -> Ids:
        """Raises ValueError naming characters that are not in the vocabulary."""
        unknown = sorted(set(text) - set(self.characters))
        if unknown:
            raise ValueError(f"characters not in the vocabulary of this tokenizer: {unknown[:10]}")
        return np.searchsorted(self._codes, _code_points(text)).astype(np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def to_json(self) -> str:
        return json.dumps({"kind": "char", "characters": self.characters})


class BPETokenizer:
    """Byte-level BPE by the `tokenizers` library: no unknown token, every byte has an id."""

    def __init__(self, serialized: str) -> None:
        import tokenizers

        self.serialized = serialized
        self._tokenizer: HFTokenizer = tokenizers.Tokenizer.from_str(serialized)
        self.vocab: int = self._tokenizer.get_vocab_size()

    @classmethod
    def train(cls, text: str, vocab: int) -> "BPETokenizer":
        """Learn merges from `text` until `vocab` ids exist, or no pair is left to merge."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(_lines(text), trainer)
        return cls(tokenizer.to_str())

    def encode(self, text: str) -> Ids:
        pieces = self._tokenizer.encode_batch(list(_lines(text)))
        return np.fromiter((i for piece in pieces for i in piece.ids), dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def to_json(self) -> str:
        return json.dumps({"kind": "bpe", "tokenizer": self.serialized})


def build(kind: str, train_text: str, all_text: str, bpe_vocab: int) -> Tokenizer:
    """A tokenizer for a corpus. Merges are learnt on the training text only; characters must cover all of it."""
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        return CharTokenizer("".join(sorted(set(all_text))))
    return BPETokenizer.train(train_text, bpe_vocab)


def from_json(text: str) -> Tokenizer:
    """The tokenizer that `to_json` described."""
    value = json.loads(text)
    if value["kind"] == "byte":
        return ByteTokenizer()
    if value["kind"] == "char":
        return CharTokenizer(value["characters"])
    return BPETokenizer(value["tokenizer"])


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def _lines(text: str) -> Iterable[str]:
    """Lines with their ends: pieces small enough to encode in parallel, and nothing lost between them."""
    return text.splitlines(keepends=True)
