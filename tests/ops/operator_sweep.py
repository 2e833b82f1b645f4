# SPDX-License-Identifier: Apache-2.0
"""Runs one sample of an `op_db` operator on the CPU and on neuron and compares everything a caller can see."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from operator_exceptions import NOT_ON_CPU, REFUSED, RESULT_ON_CPU, STEPS, UNINITIALIZED
from torch.utils._pytree import tree_flatten, tree_map

SEED = 7


def operators() -> dict[str, Any]:
    """Every operator of PyTorch's own database that a CPU can run, by name and variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found = {}
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if name not in NOT_ON_CPU:
            found[name] = op
    return found


def dtypes(op: Any) -> list[torch.dtype]:
    """The dtypes that the operator takes on the CPU, float32 first."""
    return sorted(op.supported_dtypes("cpu"), key=lambda dtype: (dtype != torch.float32, str(dtype)))


def on_neuron(value: Any) -> Any:
    """The same arguments with every tensor, and a requested device, on neuron:0."""

    def move(leaf: Any) -> Any:
        return leaf.detach().to("neuron:0") if isinstance(leaf, torch.Tensor) else leaf

    input_, args, kwargs = tree_map(move, value)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "neuron:0"}
    return input_, args, kwargs


def first_sample(op: Any, dtype: torch.dtype, requires_grad: bool = False) -> Any:
    """The first `SampleInput`, the same in every run; None where the operator has none for this dtype.

    `op.sample_inputs` is not asked: for its seed it inspects the whole stack on every call, which under pytest takes
    ten times as long as the sample and the operator together.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples are made with deprecated operators too
        from torch.testing._internal.common_utils import set_rng_seed

        set_rng_seed(SEED)
        return next(iter(op.sample_inputs_func(op, "cpu", dtype, requires_grad)), None)


def sample(op: Any, dtype: torch.dtype) -> tuple[Any, Any, Any] | None:
    """The first sample as (input, args, kwargs); None where the operator has none for this dtype."""
    first = first_sample(op, dtype)
    return None if first is None else (first.input, first.args, first.kwargs)


def tolerance(name: str, dtype: torch.dtype) -> float:
    """The largest relative difference from the CPU's value that is accepted: 0 for nearly every operator."""
    return STEPS.get(name, 0) * torch.finfo(dtype).eps if dtype.is_floating_point else 0


def compare(name: str, got: Any, want: Any) -> None:
    """Equal structure, device, dtype, shape, strides and values."""
    got_leaves, got_tree = tree_flatten(got)
    want_leaves, want_tree = tree_flatten(want)
    assert got_tree == want_tree
    for ours, theirs in zip(got_leaves, want_leaves, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs or (ours != ours and theirs != theirs)
            continue
        assert ours.device.type == ("cpu" if name in RESULT_ON_CPU else "neuron")
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        if name not in UNINITIALIZED:
            torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance(name, theirs.dtype), atol=0, equal_nan=True)


def check(name: str, op: Any, dtype: torch.dtype) -> bool:
    """One sample; False where there is none. A documented refusal must come, with its text."""
    arguments = sample(op, dtype)
    if arguments is None:
        return False
    input_, args, kwargs = on_neuron(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations and beta notes of torch's own operators
        torch.manual_seed(SEED)
        want = op.op(arguments[0], *arguments[1], **arguments[2])
        torch.manual_seed(SEED)
        if name in REFUSED:
            refusal = REFUSED[name]
            with pytest.raises(refusal.error, match=re.escape(refusal.text)):
                op.op(input_, *args, **kwargs)
            return True
        compare(name, op.op(input_, *args, **kwargs), want)
    return True


def check_inplace(name: str, op: Any, dtype: torch.dtype) -> bool:
    """The in-place variant writes the very tensor it was given. False where there is none for this sample."""
    inplace = op.get_inplace()
    arguments = sample(op, dtype)
    if inplace is None or arguments is None or name in REFUSED:
        return False
    input_, args, kwargs = on_neuron(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = arguments[0].clone()
        torch.manual_seed(SEED)
        try:
            inplace(theirs, *arguments[1], **arguments[2])
        except (RuntimeError, TypeError):
            return False  # this sample broadcasts or promotes: no in-place form on any device
        address = input_.data_ptr()
        torch.manual_seed(SEED)
        result = inplace(input_, *args, **kwargs)
    assert result is input_
    assert input_.data_ptr() == address
    compare(name, input_, theirs)
    return True


def check_out(name: str, op: Any, dtype: torch.dtype) -> bool:
    """out= with an empty tensor: it is resized, filled and returned. False where the operator has no out=."""
    arguments = sample(op, dtype)
    if not op.supports_out or arguments is None or name in REFUSED or name in UNINITIALIZED:
        return False
    input_, args, kwargs = on_neuron(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(SEED)
        want = op.op(arguments[0], *arguments[1], **arguments[2])
        if not isinstance(want, torch.Tensor):
            return False
        out = torch.empty(0, dtype=want.dtype, device="neuron:0")
        torch.manual_seed(SEED)
        try:
            op.op(arguments[0], *arguments[1], **arguments[2], out=torch.empty(0, dtype=want.dtype))
        except (RuntimeError, TypeError):
            return False  # the operator takes no out= of another size, or not with this sample, on the CPU either
        torch.manual_seed(SEED)
        result = op.op(input_, *args, **kwargs, out=out)
    assert result is out
    assert out.shape == want.shape
    torch.testing.assert_close(out.cpu(), want, rtol=tolerance(name, want.dtype), atol=0, equal_nan=True)
    return True


def check_gradients(name: str, op: Any) -> bool:
    """Gradients with respect to the input of one float32 sample. False where the sample has none."""
    first = first_sample(op, torch.float32, requires_grad=True)
    if first is None or not isinstance(first.input, torch.Tensor) or not first.input.requires_grad:
        return False
    gradients = []
    for arguments in ((first.input, first.args, first.kwargs), on_neuron((first.input, first.args, first.kwargs))):
        input_ = arguments[0].detach().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(SEED)
            result = op.op(input_.clone(), *arguments[1], **arguments[2])
            result = first.output_process_fn_grad(result)
            leaves = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            if not leaves:
                return False
            total = sum((leaf.abs().sum() for leaf in leaves[1:]), leaves[0].abs().sum())
            gradients.append(torch.autograd.grad(total, input_, allow_unused=True)[0])
    want, got = gradients
    assert (got is None) == (want is None)
    if got is not None:
        assert got.device.type == "neuron"
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-6, equal_nan=True)
    return True
