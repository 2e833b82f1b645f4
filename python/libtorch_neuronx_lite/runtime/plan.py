# SPDX-License-Identifier: Apache-2.0
"""How a call's arguments become an executable's inputs, and its outputs the call's results: plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Window:
    """A result that is a window on a tensor.

    Attributes:
        on_argument: the tensor is a call argument (else: the executable's output in this position).
        size: shape of the result.
        stride: its strides, in elements.
        offset: elements from the first element of the tensor.
    """

    on_argument: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class EmptyTensor:
    """A result without elements, made at each call: shape, strides in elements, dtype and device."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class CallPlan:
    """The plan of one graph.

    Attributes:
        argument_count: how many arguments a call has; `constants` follow them.
        arguments: for each input of the executable (the seed excepted) the index of its argument.
        results: for each result ("output", k), ("input", argument index) or ("none", 0).
        has_rng_seed: the executable's last input is the seed.
        constants: tensors passed with every call, on the device.
        cpu_arguments: arguments that come from the CPU and are moved at each call.
        written_arguments: arguments whose memory an output is.
        values: result position -> a plain value to return there.
        windows: result position -> the window to return there.
        empties: result position -> the tensor without elements to return there.
        cpu_results: result positions to move to the CPU.
    """

    argument_count: int
    arguments: Sequence[int]
    results: Sequence[tuple[str, int]]
    has_rng_seed: bool = False
    constants: Sequence[torch.Tensor] = ()
    cpu_arguments: Sequence[int] = ()
    written_arguments: Sequence[int] = ()
    values: Mapping[int, Any] = field(default_factory=dict)
    windows: Mapping[int, Window] = field(default_factory=dict)
    empties: Mapping[int, EmptyTensor] = field(default_factory=dict)
    cpu_results: Sequence[int] = ()

    @property
    def is_direct(self) -> bool:
        """Whether a call needs nothing but the executable: no moves, constants, windows, values or empties."""
        return not (
            self.constants or self.cpu_arguments or self.values or self.windows or self.empties or self.cpu_results
        )
