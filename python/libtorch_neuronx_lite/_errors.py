# SPDX-License-Identifier: Apache-2.0
"""The exceptions this package raises: every one names the thing, the value, the limit and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class NeuronError(RuntimeError):
    """Base of every error that this package raises by itself."""


class OptionError(NeuronError, ValueError):
    """A choice that does not exist: an `options=` key, a backend name, a target."""


class CompileError(NeuronError):
    """A graph that did not become an executable.

    Attributes:
        repro: the file that holds what is needed to see the fault again, or None.
    """

    def __init__(self, message: str, repro: Path | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.repro = repro

    def attach_repro(self, repro: Path) -> None:
        """Name the repro file, for a caller that knows where it goes."""
        self.repro = repro

    def __str__(self) -> str:
        return self.message if self.repro is None else f"{self.message}\nRepro file: {self.repro}"


class UnsupportedOperatorError(CompileError):
    """An operator that has no lowering.

    Attributes:
        operator: the ATen name, such as `aten.histc.default`.
        source: `file:line` in the user's model, or None where tracing recorded none.
    """

    def __init__(self, message: str, operator: str, source: str | None, repro: Path | None = None) -> None:
        super().__init__(message, repro)
        self.operator = operator
        self.source = source


class UnsupportedDtypeError(CompileError):
    """A graph that takes, makes or returns a dtype which the chip does not have."""


class GradientError(CompileError):
    """A graph that was compiled with gradients on."""


class CompilerNotFoundError(CompileError):
    """The compiler for the chosen target is not installed."""


class CacheError(NeuronError):
    """The compile cache could not be written or read: a full disk, a folder that cannot be used, a hung process."""


class CacheWaitError(CacheError):
    """Another process has been compiling the same key for longer than the limit."""


class CacheMissError(CompileError):
    """A graph that is not in the compile cache, where the environment makes that an error."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the closest of `known`, or an empty string when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{matches[0]}'?" if matches else ""
