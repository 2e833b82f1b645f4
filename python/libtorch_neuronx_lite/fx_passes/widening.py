# SPDX-License-Identifier: Apache-2.0
"""bf16 and f16 widened to f32, for operators that PyTorch's CPU kernels compute in f32 and round once."""

from __future__ import annotations

import torch

NARROW = (torch.bfloat16, torch.float16)
"""The floats that arithmetic widens."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return f32 for a narrow float, the dtype itself for any other."""
    return torch.float32 if dtype in NARROW else dtype


def widen(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the dtype that it is computed in."""
    return x.to(compute_dtype(x.dtype))
