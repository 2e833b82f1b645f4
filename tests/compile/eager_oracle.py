# SPDX-License-Identifier: Apache-2.0
"""Compares a function compiled for `neuron:0` with the same function run eagerly on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from libtorch_neuronx_lite.compile.native_backend import register

DEVICE = "neuron:0"

# The host executor gives CPU eager's values up to the order of f32 additions.
FLOAT32 = {"rtol": 2e-5, "atol": 2e-5}
# One step of bf16 at 1.0 is 2^-7: a value may round to the neighbour when its f32 form differs in the last bits.
BFLOAT16 = {"rtol": 8e-3, "atol": 8e-3}


def to_device(value: Any) -> Any:
    """Move the tensors of a structure to the device."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(DEVICE), value)


def copied(value: Any) -> Any:
    """Clone the tensors of a structure."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, value)


def compiled(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """Compile a function from a clean state; `dynamic` is off unless it is given."""
    torch._dynamo.reset()
    kwargs.setdefault("dynamic", False)
    return torch.compile(function, backend=register(), **kwargs)


def check(function: Callable[..., Any], *args: Any, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    """Assert that results and updated arguments have eager's values, dtypes, shapes and strides."""
    expected_args, actual_args = copied(args), to_device(copied(args))
    with torch.no_grad():
        expected = function(*expected_args)
        actual = compiled(function)(*actual_args)
    expected_leaves = pytree.tree_leaves((expected, expected_args))
    actual_leaves = pytree.tree_leaves((actual, actual_args))
    assert len(expected_leaves) == len(actual_leaves)
    for want, got in zip(expected_leaves, actual_leaves, strict=True):
        if not isinstance(want, torch.Tensor):
            assert want == got
            continue
        assert got.device.type == "neuron"
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True)
