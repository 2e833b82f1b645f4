# SPDX-License-Identifier: Apache-2.0
"""From a graph to steps over windows: the frame that the tables of `lower_*` fill.

Note: when an update may happen in place
    A value is a view when its window lies on its operand's storage; `roots` joins a value with all its views. An
    update (scatter, dynamic_update_slice) may write into its operand's memory when that memory is ours to write (a
    temporary, or an input that an output aliases) and no later op and no other operand of the same op reads the
    root. In any other case the old value is copied first. The result is a new root on the same storage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import Array
from libtorch_neuronx_lite.hostcc.graph import Graph, Op, TensorType, refuse
from libtorch_neuronx_lite.hostcc.windows import Storage, Window, dense


@dataclass(slots=True)
class Step:
    """One step of the program. `updates` says that the outputs are read as well (scatter, dynamic_update_slice)."""

    op: str
    inputs: list[Window]
    outputs: list[Window]
    attributes: dict[str, Any] = field(default_factory=dict)
    updates: bool = False


@dataclass(frozen=True, slots=True)
class Factored:
    """A value that no strides express in its own shape: a window whose dimensions are cut finer.

    Dimension i of the value is ``groups[i]``, a run of the window's dimensions. Repeated heads are the usual case:
    [batch, heads, groups, ...] read as [batch, heads * groups, ...].
    """

    window: Window
    groups: tuple[tuple[int, ...], ...]


Handler = Callable[["Lowering", Op], None]
HANDLERS: dict[str, Handler] = {}
# Ops whose result may be a window on operand 0. A handler that makes a view must be listed here: `roots` reads it.
VIEW_OPS: set[str] = set()


def handles(*names: str, view: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for ops; `view` when their result may share memory with operand 0."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
            if view:
                VIEW_OPS.add(name)
        return handler

    return register


class Lowering:
    """State of one lowering: where each value is, the steps so far, and who reads what until when."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.inputs = [Storage("input", graph.types[value].bytes, index) for index, value in enumerate(graph.inputs)]
        self.aliased_inputs = set(graph.aliases.values())
        self._windows: dict[int, Window] = {}
        self._factored: dict[int, Factored] = {}
        self._constants: dict[tuple[str, bytes], Storage] = {}
        self._position = 0
        self._roots = list(range(len(graph.types)))
        self._last_read: dict[int, int] = {}
        self._readers: dict[int, int] = {}  # root -> how many ops, views included, and outputs read it
        self._made_by: dict[int, Step | None] = {}  # id of a storage -> the one step that writes it
        for storage, value in zip(self.inputs, graph.inputs, strict=True):
            type_ = graph.types[value]
            self._windows[value] = dense(storage, type_.dtype, type_.shape)
        self._find_last_reads()

    def _find_last_reads(self) -> None:
        for position, op in enumerate(self.graph.ops):
            if op.name in VIEW_OPS:
                self._roots[op.results[0]] = self._roots[op.operands[0]]
                readers = op.operands[1:]
            else:
                readers = op.operands
            for operand in readers:
                self._last_read[self._roots[operand]] = position
            for operand in set(op.operands):
                root = self._roots[operand]
                self._readers[root] = self._readers.get(root, 0) + 1
        for output in self.graph.outputs:
            self._readers[self._roots[output]] = self._readers.get(self._roots[output], 0) + 1
            self._last_read[self._roots[output]] = len(self.graph.ops)

    def run(self) -> None:
        """Lower every op in order."""
        for position, op in enumerate(self.graph.ops):
            self._position = position
            handler = HANDLERS.get(op.name)
            if handler is None:
                raise refuse(self.graph, op, "the host target has no lowering for this op")
            handler(self, op)

    # What handlers use.

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        return self.graph.types[value]

    def window(self, value: int) -> Window:
        """Return where a value is; constants enter the pool, and factored values are copied, when first asked for."""
        window = self._windows.get(value)
        if window is None and value in self._factored:
            window = self.dense_copy(self._factored[value].window).reshape(self.type(value).shape)
            assert window is not None
            self._windows[value] = window
        if window is None:
            window = self._windows[value] = self.constant(self.graph.constants[value], self.type(value).dtype)
        return window

    def constant(self, array: Array, dtype: str) -> Window:
        """Return a window on pooled constant data: equal bytes are stored once, repetition is a stride of 0."""
        if array.size == 0:
            return dense(Storage("arena", 0), dtype, array.shape)
        repeated = tuple(stride == 0 for stride in array.strides)
        compact = np.ascontiguousarray(array[tuple(slice(0, 1) if zero else slice(None) for zero in repeated)])
        key = (dtype, compact.tobytes())
        storage = self._constants.get(key)
        if storage is None:
            storage = self._constants[key] = Storage("constant", compact.nbytes, data=compact)
        base = dense(storage, dtype, compact.shape)
        return base.broadcast(array.shape, list(range(array.ndim)))

    def constant_value(self, value: int) -> Array | None:
        """Return the elements of a value that is known now, in storage form, else None."""
        return self.graph.constants.get(value)

    def temporary(self, type_: TensorType) -> Window:
        """Return a fresh dense window in the arena."""
        return dense(Storage("arena", type_.bytes), type_.dtype, type_.shape)

    def factored(self, value: int) -> Factored:
        """Return a value without copying it: factored, or its window with one dimension per group."""
        if value not in self._windows and value in self._factored:
            return self._factored[value]
        window = self.window(value)
        return Factored(window, tuple((dim,) for dim in range(len(window.shape))))

    def is_factored(self, value: int) -> bool:
        """Return whether a plain window of the value would cost a copy."""
        return value not in self._windows and value in self._factored

    def define_factored(self, value: int, factored: Factored) -> None:
        """Say where a result is when its own shape has no strides."""
        self._factored[value] = factored

    def define(self, value: int, window: Window) -> None:
        """Say where a result is."""
        self._windows[value] = window

    def emit(
        self,
        name: str,
        inputs: list[Window],
        outputs: list[Window],
        attributes: dict[str, Any] | None = None,
        *,
        updates: bool = False,
    ) -> None:
        """Append a step; one that writes no element is left out."""
        if all(output.elements == 0 for output in outputs):
            return
        made = Step(name, inputs, outputs, attributes or {}, updates)
        self.steps.append(made)
        for output in outputs:
            # None: more than one step writes there, so no single one can be redirected.
            self._made_by[id(output.storage)] = None if id(output.storage) in self._made_by else made

    def step(self, op: Op, name: str, inputs: list[Window], attributes: dict[str, Any] | None = None) -> None:
        """Append a step that computes all results of `op` into fresh memory."""
        outputs = [self.temporary(self.type(result)) for result in op.results]
        for result, window in zip(op.results, outputs, strict=True):
            self.define(result, window)
        self.emit(name, inputs, outputs, attributes)

    def dense_copy(self, window: Window) -> Window:
        """Copy a window into fresh dense memory."""
        copy = self.temporary(TensorType(window.shape, window.dtype))
        self.emit("copy", [window], [copy])
        return copy

    def write_elsewhere(self, value: int, window: Window) -> bool:
        """Let the step that makes `value` write into `window` instead, when only the present op reads the value.

        Returns whether it does; the value then has no memory of its own.
        """
        old = self._windows[value]
        root = self._roots[value]
        producer = self._made_by.get(id(old.storage))
        if (
            producer is None
            or producer.updates
            or len(producer.outputs) != 1
            or producer.outputs[0] != old
            or self._readers.get(root, 0) != 1
        ):
            return False
        producer.outputs[0] = window
        self._made_by[id(window.storage)] = None  # several steps write there now
        return True

    def update_target(self, op: Op, operand: int) -> Window:
        """Return memory that holds `operand`'s value and that `op` may overwrite (see the note at the top)."""
        window = self.window(operand)
        root = self._roots[operand]
        storage = window.storage
        ours = storage.kind == "arena" or (storage.kind == "input" and storage.index in self.aliased_inputs)
        shared = any(self._roots[other] == root for other in op.operands if other != operand)
        shared = shared or op.operands.count(operand) > 1
        if ours and not shared and self._last_read.get(root, -1) <= self._position and window.is_injective:
            return window
        return self.dense_copy(window)
