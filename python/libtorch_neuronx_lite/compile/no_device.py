# SPDX-License-Identifier: Apache-2.0
"""Compiling where nothing is run: what stands in for the compiled graph, and what has to be stated for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import envs
from .._errors import NeuronError, OptionError


class CaptureComplete(NeuronError):
    """A graph was called that was only captured or compiled: there is nothing to run in this process."""


def not_here(reason: str) -> Callable[[Sequence[Any]], Any]:
    """Return what is called in place of a graph: it raises CaptureComplete with the reason."""

    def run(args: Sequence[Any]) -> Any:
        raise CaptureComplete(f"{reason}; there is nothing to run here")

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def check_cpu_compile() -> None:
    """Raise OptionError where NEURON_LIBTORCH_CPU_COMPILE is set and the target, which no device tells, is not."""
    if envs.NEURON_LIBTORCH_CPU_COMPILE and envs.NEURON_PLATFORM_TARGET_OVERRIDE is None:
        raise OptionError(
            "NEURON_LIBTORCH_CPU_COMPILE=1 compiles without a device, so the target has to be stated: set"
            " NEURON_PLATFORM_TARGET_OVERRIDE to trn1, trn1n, inf2, trn2, trn3 or host."
        )
