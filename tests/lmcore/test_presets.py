"""Named models have the parameters that their publishers state, to the last one."""

import pytest
import torch

from lmcore import count
from lmcore.config import replace
from lmcore.model import LM
from lmcore.presets import PRESETS

# Parameter totals of the published weights (their safetensors headers, or the papers' tables); a tied matrix once.
PUBLISHED = {
    "openai-gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-small": 125_226_240,
    "gpt3-175b": 174_604_259_328,
    "starcoderbase-1b": 1_137_207_296,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "palm-540b": 540_356_474_880,
    "mpt-7b": 6_649_286_656,
    "llama-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "mistral-7b-v0.1": 7_241_732_096,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "stories-810k": 810_624,
}
# Where only a rounded number was published.
ROUNDED = {"gpt3-small": 125e6, "gpt3-175b": 174_600e6, "palm-540b": 540.35e9}


def test_every_preset_has_its_published_total() -> None:
    assert {name: count.params(model) for name, model in PRESETS.items()} == PUBLISHED


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_totals(name: str) -> None:
    assert PUBLISHED[name] == pytest.approx(ROUNDED[name], rel=2e-3)


def test_settings_that_no_count_would_notice() -> None:
    gemma, gemma3, pythia = PRESETS["gemma-2-9b"], PRESETS["gemma-3-1b"], PRESETS["pythia-1b"]
    assert gemma.layer_kinds[:4] == "LFLF"
    assert (gemma.attention_softcap, gemma.logit_softcap, gemma.attention_scale) == (50, 30, 1 / 16)
    assert PRESETS["gemma-2-27b"].attention_scale == 1 / 12
    assert gemma3.layer_kinds[:12] == "LLLLLF" * 2
    assert [gemma3.layer_kinds.count(kind) for kind in "LF"] == [22, 4]
    assert (gemma3.rope_base, gemma3.rope_base_local) == (1e6, 1e4)
    assert gemma3.embedding_scale == 1152**0.5
    assert (pythia.d_rope, pythia.d_head) == (64, 256)
    assert PRESETS["opt-125m"].position_offset == 2
    assert {PRESETS[name].norm_position for name in ("openai-gpt", "gpt2", "olmo-2-1b")} == {"post", "pre", "branch"}
    assert {PRESETS[f"qwen3-{size}"].d_head for size in ("0.6b", "4b", "32b")} == {128}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_model_that_runs(name: str) -> None:
    """With fewer layers and without memory: shapes fit together, and a layer has the counted parameters."""
    model = replace(PRESETS[name], {"n_layer": min(6, PRESETS[name].n_layer)})
    with torch.device("meta"):
        built = LM(model, path="plain")
        logits = built(torch.zeros(1, 8, dtype=torch.long))
    assert logits.shape == (1, 8, model.vocab)
    assert sum(p.numel() for p in built.parameters()) == count.params(model)
