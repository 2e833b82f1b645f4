# SPDX-License-Identifier: Apache-2.0
"""The compiler's own form of a module: one function, static shapes, ops as plain records.

Reading an attribute through MLIR's Python bindings costs microseconds to tens of them, so `reader` does it once per op
and every later stage works on these records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from libtorch_neuronx_lite.hostcc.dtypes import Array, size_of
from libtorch_neuronx_lite.worker.errors import JobError


@dataclass(frozen=True, slots=True)
class TensorType:
    """A static tensor type; a scalar has the shape ()."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The size of a dense tensor of this type."""
        return self.elements * size_of(self.dtype)


@dataclass(slots=True)
class Region:
    """The body of a reduction, a scatter or a sort: scalar ops from `arguments` to `results`."""

    arguments: list[int]
    ops: list[Op]
    results: list[int]


@dataclass(slots=True)
class Op:
    """One operation. Values are integers that index `Graph.types`."""

    name: str
    operands: list[int]
    results: list[int]
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    location: Any = None  # an MLIR location; made text only when an error needs it


@dataclass(slots=True)
class Graph:
    """A function in single-assignment form. `constants` holds arrays in storage form (see `dtypes`)."""

    name: str
    replicas: int = 1  # processes that its collectives join
    types: list[TensorType] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)  # output position -> input position
    ops: list[Op] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)
    _producers: dict[int, Op] = field(default_factory=dict, repr=False)

    def producer(self, value: int) -> Op | None:
        """Return the op of `ops` that makes a value, or None for inputs, constants and values of regions."""
        if not self._producers:
            self._producers = {result: op for op in self.ops for result in op.results}
        return self._producers.get(value)

    def replace_ops(self, ops: list[Op]) -> None:
        """Put another list of ops in place."""
        self.ops, self._producers = ops, {}

    def value(self, type_: TensorType) -> int:
        """Return a new value of the given type."""
        self.types.append(type_)
        return len(self.types) - 1

    def constant(self, array: Array, dtype: str) -> int:
        """Return a new value that holds `array`, which is in storage form and may be a broadcast view."""
        value = self.value(TensorType(tuple(array.shape), dtype))
        self.constants[value] = array
        return value


def location_text(location: Any) -> str | None:
    """Return an MLIR location without its ``loc(...)`` wrapper, or None where it is unknown."""
    if location is None:
        return None
    text = str(location)
    if text.startswith("loc(") and text.endswith(")"):
        text = text[4:-1]
    return None if text == "unknown" else text


def refuse(graph: Graph, op: Op, reason: str, kind: str = "unsupported-op") -> JobError:
    """Return the error that refuses `op`: it names the op, the graph and the op's place in the model."""
    return JobError(
        kind, f"{op.name} in graph {graph.name!r}: {reason}", op=op.name, location=location_text(op.location)
    )
