"""Shares of components and the roofline: numbers by hand, pictures that can be opened."""

from pathlib import Path

import polars as pl
import pytest

from analysis.cost_figures import cost_pictures
from analysis.costs import AXES, DECODE_BATCHES, component_shares, roofline
from lmcore import count
from lmcore.presets import PRESETS

LLAMA, GEMMA = PRESETS["llama-2-7b"], PRESETS["gemma-2-2b"]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["gpt2", "gemma-2-2b", "starcoderbase-1b", "qwen2.5-0.5b"])
def test_shares_sum_to_one_and_are_the_models_own_in_the_middle(name: str, axis: str) -> None:
    model = PRESETS[name]
    shares = component_shares(model, axis, model.context)
    sums = shares.group_by("size").agg(pl.col("share").sum())["share"]
    assert sums.to_list() == pytest.approx([1.0] * len(sums))
    flops = count.forward_flops_by_component(model, model.context)
    own = shares.filter(pl.col("size") == (model.context if axis == "context" else getattr(model, axis)))
    found = dict(zip(own["part"], own["share"], strict=True))
    assert found["head"] == pytest.approx(flops["head"] / sum(flops.values()))
    assert found["attention scores"] == pytest.approx(2 * flops["scores"] / sum(flops.values()))


def test_each_axis_moves_the_share_it_should() -> None:
    for axis, part in (("context", "attention scores"), ("vocab", "head"), ("d_model", "FFN")):
        share = component_shares(GEMMA, axis, 8192).filter(pl.col("part") == part)["share"].to_list()
        assert share == sorted(share)
        assert share[-1] > 1.3 * share[0]


def test_decoding_one_sequence_is_one_flop_per_byte_in_bf16() -> None:
    """Two FLOPs for each weight of two bytes; the cache of a short context hardly counts."""
    points = roofline({"a": LLAMA}, 16, 1e15, 1e12, "bf16")
    decode = points.filter(pl.col("phase") == "decode")
    assert decode["amount"].to_list() == list(DECODE_BATCHES)
    assert decode["intensity"][0] == pytest.approx(1, rel=1e-3)
    assert decode["flops_per_s"][0] == pytest.approx(1e12, rel=1e-3)
    prefill = points.filter(pl.col("phase") == "prefill")
    assert prefill["amount"].to_list() == [16]
    assert prefill["intensity"][0] == pytest.approx(16, rel=0.01)
    in_float32 = roofline({"a": LLAMA}, 16, 1e15, 1e12, "float32")
    assert in_float32["intensity"][0] == pytest.approx(points["intensity"][0] / 2)


def test_many_sequences_come_to_the_intensity_of_the_cache_alone() -> None:
    """The traffic of the weights is shared by all, that of the caches is not."""
    tokens, cache = 4096, count.kv_bytes(LLAMA, 4096)
    points = roofline({"a": LLAMA}, tokens, 1e15, 1e12, "bf16").filter(pl.col("phase") == "decode")
    limit = count.decode_flops(LLAMA, tokens) / cache
    assert points["intensity"].to_list() == sorted(points["intensity"].to_list())
    assert 0.9 * limit < points["intensity"][-1] < limit


def test_nothing_is_above_the_roof() -> None:
    points = roofline({"a": LLAMA, "b": GEMMA}, None, 1e14, 1e12, "bf16")
    assert points["flops_per_s"].max() == 1e14
    slope = points.filter(pl.col("intensity") < 100)
    assert (slope["flops_per_s"] / slope["intensity"]).to_list() == pytest.approx([1e12] * len(slope))


def test_pictures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    models = {"one": GEMMA, "two / $x$": LLAMA}
    pictures = cost_pictures(models, 4096, 1e14, 1e12, "bf16")
    files = [path for picture in pictures for path in picture.save(tmp_path)]
    assert [path.name for path in files][::2] == ["shares_one.png", "shares_two_x.png", "roofline.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files[::2])
    assert all("<svg" in path.read_text() for path in files[1::2])
