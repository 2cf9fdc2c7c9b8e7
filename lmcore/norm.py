"""LayerNorm and RMSNorm over the last axis, statistics in float32 when the input is half precision."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore.config import ModelConfig


class Norm(nn.Module):
    """RMSNorm, x / rms(x) * gain (Zhang & Sennrich 2019); LayerNorm, (x - mean) / std * gain + bias (Ba et al. 2016).

    Input and output (..., D) of the same dtype.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.eps, self.shape = config.norm, config.norm_eps, (config.d_model,)
        self.gain = nn.Parameter(torch.ones(config.d_model)) if config.norm_affine else None
        self.bias = nn.Parameter(torch.zeros(config.d_model)) if config.norm_bias else None

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        if self.kind == "layernorm":
            return F.layer_norm(wide, self.shape, self.gain, self.bias, self.eps).type_as(x)
        y = F.rms_norm(wide, self.shape, self.gain, self.eps)
        return (y if self.bias is None else y + self.bias).type_as(x)
