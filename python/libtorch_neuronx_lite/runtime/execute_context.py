# SPDX-License-Identifier: Apache-2.0
"""Hooks that see, or stand in for, the execution of compiled graphs. Costs one comparison a call when unset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ExecutionMeta:
    """What a hook is told about the graph: `neff_id` is its cache key, `artifact_dir` its folder (None in memory)."""

    neff_id: str
    artifact_dir: str | None
    device_id: int


@dataclass(frozen=True)
class ExecuteContext:
    """The hooks of one context.

    Attributes:
        pre_execute_hook: called as (inputs, meta) before each execution, with exactly the tensors that the executable
            takes: after filtering, without the random seed.
        execute_hook: called as (inputs, meta) instead of the execution; returns the executable's outputs, in its order.
    """

    pre_execute_hook: Callable[[tuple[torch.Tensor, ...], ExecutionMeta], None] | None = None
    execute_hook: Callable[[tuple[torch.Tensor, ...], ExecutionMeta], Sequence[Any]] | None = None


_active: ExecuteContext | None = None


def set_execute_context(context: ExecuteContext | None) -> None:
    """Make `context` the one of this process; None takes the hooks away."""
    global _active
    _active = context


def get_execute_context() -> ExecuteContext | None:
    """Return the context in force, or None."""
    return _active
