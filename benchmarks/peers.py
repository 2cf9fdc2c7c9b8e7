"""Training steps of other implementations at a shape of ours. Each is used if it is there; none is needed by `lab`."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tokens import Batch, batches
from benchmarks.turns import Absent, Make, Step
from lmcore.config import ModelConfig, RunConfig

Loss = Callable[[Tensor, Tensor], Tensor]


def nanogpt(m: ModelConfig, file: Path | None) -> tuple[nn.Module, Loss]:
    """karpathy/nanoGPT's model.py, a GPT-2 without biases: as many products as ours with a gated FFN of 8/3 d."""
    if file is None:
        raise Absent("give --nanogpt PATH of its model.py")
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    assert spec and spec.loader
    module = sys.modules["nanogpt_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {"n_layer": m.n_layer, "n_head": m.n_head, "n_embd": m.d_model}
    made = module.GPTConfig(block_size=m.context, vocab_size=m.vocab, dropout=0.0, bias=False, **sizes)
    model: nn.Module = module.GPT(made)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = model(inputs, targets)[1]
        return found

    return model, loss


def llama(m: ModelConfig) -> tuple[nn.Module, Loss]:
    """transformers' LlamaForCausalLM: the same architecture as ours."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise Absent("pip install transformers") from None
    sizes = {"hidden_size": m.d_model, "intermediate_size": m.d_ff, "num_hidden_layers": m.n_layer}
    heads = {"num_attention_heads": m.n_head, "num_key_value_heads": m.n_kv_head}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=m.vocab, max_position_embeddings=m.context, use_cache=False, **sizes, **heads)
    )
    return model, lambda x, y: _cross_entropy(model(input_ids=x).logits, y)


def x_transformers(m: ModelConfig) -> tuple[nn.Module, Loss]:
    """lucidrains' x-transformers with RMSNorm, RoPE, a gated FFN of our width and its flash attention."""
    try:
        from x_transformers import Decoder, TransformerWrapper
    except ImportError:
        raise Absent("pip install x-transformers") from None
    layers = Decoder(
        dim=m.d_model, depth=m.n_layer, heads=m.n_head, attn_dim_head=m.d_head, rotary_pos_emb=True, use_rmsnorm=True,
        ff_swish=True, ff_glu=True, ff_mult=m.d_ff / m.d_model, ff_no_bias=True, attn_flash=True,
    )  # fmt: skip
    model = TransformerWrapper(num_tokens=m.vocab, max_seq_len=m.context, use_abs_pos_emb=False, attn_layers=layers)
    return model, lambda x, y: _cross_entropy(model(x), y)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


PEERS: dict[str, Callable[[ModelConfig, Path | None], tuple[nn.Module, Loss]]] = {
    "nanoGPT": nanogpt,
    "transformers Llama": lambda m, _: llama(m),
    "x-transformers": lambda m, _: x_transformers(m),
}


def makes(run: RunConfig, file: Path | None) -> dict[str, Make]:
    """Every peer, as it is and compiled, in bf16."""
    return {
        f"{name}{', compiled' if compiled else ''}": partial(peer_step, name, run, file, compiled)
        for name in PEERS
        for compiled in (False, True)
    }


def peer_step(name: str, run: RunConfig, file: Path | None, compiled: bool) -> Step:
    """Raises Absent."""
    model, loss = PEERS[name](run.model, file)
    return training_step(model, loss, batches(run), compiled)


def training_step(model: nn.Module, loss: Loss, batch: Batch, compiled: bool, device: str = "cpu") -> Step:
    """One update as such scripts make it: bf16 autocast, clipped gradients, fused AdamW."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    call = torch.compile(loss) if compiled else loss

    def step(number: int) -> float:
        inputs, targets = batch(number)
        with torch.autocast(device, torch.bfloat16):
            found = call(inputs, targets)
        found.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(found.detach())

    return step
