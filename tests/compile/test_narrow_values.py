# SPDX-License-Identifier: Apache-2.0
"""bf16 and f16 graphs round where CPU eager rounds: once for each operator, from an f32 result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager_oracle import BFLOAT16, check

# One rounding of the same f32 value: bit for bit.
EXACT: dict[str, Callable[[torch.Tensor], Any]] = {
    "a number that bf16 does not hold": lambda x: (x * 1.3, x + 0.1, x / 3, x - 0.7),
    "a number that bf16 holds": lambda x: (x * 2, x + 0.5),
    "alpha": lambda x: torch.add(x, x, alpha=0.3),
    "comparisons": lambda x: (x > 0.3, x <= 0.1),
    "casts": lambda x: (x.float(), x.float().to(x.dtype), x.int()),
    "views": lambda x: (x.t() * 1, x[:, 1:3] + 0),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EXACT)
def test_one_rounding(name: str, dtype: torch.dtype) -> None:
    check(EXACT[name], torch.randn(8, 16).to(dtype), rtol=0, atol=0)


CLOSE: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(-1)),
    "gelu": lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x)),
    "layer norm": lambda x: (F.layer_norm(x, (16,)), F.rms_norm(x, (16,))),
    "moments": lambda x: (x.mean(), x.mean(-1), x.var(-1), x.sum(-1)),
    "products": lambda x: (x @ x.t(), F.linear(x, x), torch.addmm(x[:, :8], x, x.t())),
}


@pytest.mark.parametrize("name", CLOSE)
def test_bfloat16(name: str) -> None:
    check(CLOSE[name], torch.randn(8, 16).bfloat16(), **BFLOAT16)
