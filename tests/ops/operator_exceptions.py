# SPDX-License-Identifier: Apache-2.0
"""Operators of `op_db` that do not give CPU eager's value bit for bit on neuron, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass

# Samples that no machine without a GPU can run.
NOT_ON_CPU = frozenset(
    {
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
    }
)

# Results without defined contents: only device, dtype, shape and strides are compared.
UNINITIALIZED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass(frozen=True)
class Refusal:
    """An operator that fails on neuron: the exception and a part of its text."""

    error: type[Exception]
    text: str
    reason: str


REFUSED = {
    "sparse.mm.reduce": Refusal(NotImplementedError, "neuron holds dense strided tensors only", "sparse operand"),
    "sparse.sampled_addmm": Refusal(NotImplementedError, "neuron holds dense strided tensors only", "sparse operand"),
    "to_sparse": Refusal(NotImplementedError, "neuron holds dense strided tensors only", "sparse result"),
    "tensor_split": Refusal(
        RuntimeError, "to be on cpu, but it's on neuron:0", "torch itself wants the indices on the CPU, for any device"
    ),
}

# Results that stay on the CPU because the sample asks for the CPU.
RESULT_ON_CPU = frozenset({"to"})

# Largest relative difference, in steps of the result's dtype, where a bit-for-bit match cannot be expected.
STEPS = {
    # torch's Python kernel chooses its buffers by device type.
    "nn.functional.linear_cross_entropy.chunked": 1,
    "nn.functional.linear_cross_entropy.chunked_none": 1,
}
