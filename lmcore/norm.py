"""LayerNorm and RMSNorm over the last axis, statistics in float32 when the input is half precision."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore.config import ModelConfig


class Norm(nn.Module):
    """RMSNorm, x / rms(x) * gain (Zhang & Sennrich 2019); LayerNorm, (x - mean) / std * gain + bias (Ba et al. 2016).

    Input and output (..., size) of the same dtype. With `norm_unit_offset` the gain is 1 + the stored parameter.
    """

    def __init__(self, config: ModelConfig, size: int, bias: bool) -> None:
        super().__init__()
        self.kind, self.eps, self.shape = config.norm, config.norm_eps, (size,)
        self.offset = config.norm_unit_offset
        self.gain = nn.Parameter(torch.ones(size)) if config.norm_affine else None
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        gain = None if self.gain is None else self.gain.to(wide.dtype) + (1 if self.offset else 0)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        if self.kind == "layernorm":
            return F.layer_norm(wide, self.shape, gain, bias, self.eps).type_as(x)
        y = F.rms_norm(wide, self.shape, gain, self.eps)
        return (y if bias is None else y + bias).type_as(x)


def stream_norm(config: ModelConfig) -> Norm:
    """A norm of the residual stream."""
    return Norm(config, config.d_model, config.norm_bias)
