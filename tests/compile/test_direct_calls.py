# SPDX-License-Identifier: Apache-2.0
"""The backend called without torch.compile: with meta tensors that stand for the device, and with its own steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eager_oracle import DEVICE
from torch import fx

from libtorch_neuronx_lite import _errors
from libtorch_neuronx_lite.compile import backend
from libtorch_neuronx_lite.compile.native_backend import neuron_native_lite


def _graph() -> fx.GraphModule:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y + 1, (x * 2).to(torch.bfloat16)

    return fx.symbolic_trace(f)


def test_meta_inputs_stand_for_the_device() -> None:
    examples = [torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")]
    with torch.no_grad():
        run: Any = neuron_native_lite(_graph(), examples, options={"alias_meta_to_neuron": True})
        x, y = torch.randn(2, 3), torch.randn(3, 4)
        product, narrow = run(x.to(DEVICE), y.to(DEVICE))
    assert product.device == torch.device(DEVICE)
    torch.testing.assert_close(product.cpu(), x @ y + 1)
    torch.testing.assert_close(narrow.cpu(), (x * 2).to(torch.bfloat16))


def test_meta_inputs_without_the_option_are_refused() -> None:
    examples = [torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")]
    with torch.no_grad(), pytest.raises(_errors.CompileError, match="alias_meta_to_neuron"):
        neuron_native_lite(_graph(), examples)


def test_real_inputs_need_no_option() -> None:
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    with torch.no_grad():
        run: Any = neuron_native_lite(_graph(), [x.to(DEVICE), y.to(DEVICE)])
        torch.testing.assert_close(run(x.to(DEVICE), y.to(DEVICE))[0].cpu(), x @ y + 1)


def test_the_number_of_inputs_is_checked() -> None:
    with pytest.raises(_errors.CompileError, match="2 placeholders and 1 example inputs"):
        backend.preprocess_and_validate_inputs(_graph(), [torch.empty(2, 3)])
