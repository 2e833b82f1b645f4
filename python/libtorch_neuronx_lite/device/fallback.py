# SPDX-License-Identifier: Apache-2.0
"""Eager operators run on the CPU; these functions count them and decide whether that is allowed."""

from __future__ import annotations

from .. import _C


def fallback_counts() -> dict[str, int]:
    """Return how often each eager operator ran on the CPU, such as `{"aten::add.Tensor": 3}`."""
    return _C.fallback_counts()


def fallback_total() -> int:
    """Return how many eager operators ran on the CPU."""
    return _C.fallback_total()


def reset_fallback_counts() -> None:
    """Set all counts back to zero."""
    _C.reset_fallback_counts()


def fallback_mode() -> str:
    """Return `allow`, `warn` (once per operator) or `error`: NEURON_LIBTORCH_EAGER_FALLBACK unless set by a call."""
    return _C.fallback_mode()


def set_fallback_mode(mode: str) -> None:
    """Set the mode for this process.

    Raises:
        ValueError: not one of `allow`, `warn`, `error`.
    """
    _C.set_fallback_mode(mode)
