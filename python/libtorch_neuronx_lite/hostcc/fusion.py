# SPDX-License-Identifier: Apache-2.0
"""Chains of elementwise steps and row reductions as one `fused` step: their values stay in the first-level cache.

Groups grow while the steps are read in order. A step joins the groups whose results it reads when it walks the same
rows; any other step that touches what a group reads or writes closes that group, which is then written out at this
place. Between its first and its last step a group thus meets nobody that could see the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import to_numeric
from libtorch_neuronx_lite.hostcc.lowering import Lowering, Step
from libtorch_neuronx_lite.hostcc.windows import Window, canonical_strides

_UNARY = frozenset({"convert", "negate", "abs", "exponential", "logistic", "tanh", "erf", "sqrt", "rsqrt"})
_BINARY = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum"})
_REDUCE = {"add": ("sum", 0.0), "maximum": ("max", -math.inf)}
_FLOATS = frozenset({"bf16", "f16", "f32"})
_MOST_STEPS = 64
# Below this many elements a row costs more to set up than the fusion saves, unless there are few rows.
_SHORT_ROW, _FEW_ROWS = 48, 16


def fuse_elementwise(low: Lowering) -> None:
    """Replace chains in `low.steps`, which must be complete but not planned yet."""
    returned = {id(low.window(value).storage.resolve()) for value in low.graph.outputs}
    low.steps = _Fusion(low.steps, returned).run()


@dataclass(eq=False, slots=True)
class _Group:
    """Steps over rows of the same shape, in order."""

    shape: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    written: dict[int, Window] = field(default_factory=dict)  # id of a storage -> what a step of the group wrote there
    read: set[int] = field(default_factory=set)  # ids of storages read from memory

    def find(self, window: Window) -> bool:
        """Whether `window` is exactly a result of the group: the same elements, or a number repeated along the row."""
        written = self.written.get(id(window.storage.resolve()))
        if written is None or window.dtype != written.dtype:
            return False
        return window.same_elements(written) or _repeats(window, written, self.shape)

    def conflicts(self, step: Step) -> bool:
        """Whether the step must see the group done."""
        inputs = {id(window.storage.resolve()) for window in step.inputs}
        outputs = {id(window.storage.resolve()) for window in step.outputs}
        return not (inputs | outputs).isdisjoint(self.written) or not outputs.isdisjoint(self.read)


def _repeats(window: Window, written: Window, shape: tuple[int, ...]) -> bool:
    """Whether `written` holds one number per row and `window` reads that number all along each row."""
    lead = shape[:-1]
    if written.shape not in (lead, (*lead, 1)) or written.shape == shape:
        return False
    if window.shape not in (shape, (*lead, 1)) or (window.shape[-1] > 1 and window.strides[-1] != 0):
        return False
    pairs = zip(lead, window.strides[:-1], written.strides, strict=False)
    return window.offset == written.offset and all(size == 1 or a == b for size, a, b in pairs)


def _rows(step: Step) -> tuple[int, ...] | None:
    """Return the shape whose last dimension is the row that the step walks, or None when it cannot be fused."""
    if step.updates or len(step.outputs) != 1:
        return None
    output = step.outputs[0]
    if any(window.dtype not in _FLOATS for window in (*step.inputs, output)):
        return None
    if step.op in _UNARY or step.op in _BINARY:
        shape = output.shape
    elif step.op == "reduce" and step.attributes["kind"] in _REDUCE:
        shape = step.inputs[0].shape
        if step.attributes["dims"] != [len(shape) - 1] or not _starts_neutral(step):
            return None
    else:
        return None
    return shape if len(shape) > 0 and 0 not in shape else None


def _starts_neutral(step: Step) -> bool:
    init = step.inputs[1]
    data = init.storage.resolve().data
    if data is None or data.size != 1:
        return False
    return float(to_numeric(np.asarray(data).reshape(()), init.dtype)) == _REDUCE[step.attributes["kind"]][1]


class _Fusion:
    def __init__(self, steps: list[Step], returned: set[int]) -> None:
        self._steps = steps
        self._returned = returned
        self._done: list[Step] = []
        self._open: list[_Group] = []
        self._touched: dict[int, set[int]] = {}  # id of a storage -> ids of the steps that read or write it
        for step in steps:
            for window in (*step.inputs, *step.outputs):
                self._touched.setdefault(id(window.storage.resolve()), set()).add(id(step))

    def run(self) -> list[Step]:
        """Return the new list of steps."""
        for step in self._steps:
            shape = _rows(step)
            joined = None if shape is None else self._join(step, shape)
            for group in [group for group in self._open if group is not joined and group.conflicts(step)]:
                self._close(group)
            if joined is not None:
                self._add(joined, step)
            elif shape is not None and shape[-1] > 1:
                group = _Group(shape)
                self._open.append(group)
                self._add(group, step)
            else:
                self._done.append(step)
        for group in list(self._open):
            self._close(group)
        return self._done

    def _join(self, step: Step, shape: tuple[int, ...]) -> _Group | None:
        """Return the group that the step belongs to; groups that it brings together become one."""
        found = [group for group in self._open if any(group.find(window) for window in step.inputs)]
        found = [group for group in found if self._fits(group, step, shape)]
        if not found or sum(len(group.steps) for group in found) >= _MOST_STEPS:
            return None
        first, *others = found
        for other in others:
            if other.shape != first.shape:
                continue
            first.steps += other.steps
            first.written.update(other.written)
            first.read |= other.read
            self._open.remove(other)
        return first

    @staticmethod
    def _fits(group: _Group, step: Step, shape: tuple[int, ...]) -> bool:
        if shape != group.shape and (step.op == "reduce" or shape != (*group.shape[:-1], 1)):
            return False
        for window in step.inputs:
            if id(window.storage.resolve()) in group.written and not group.find(window):
                return False
        target = id(step.outputs[0].storage.resolve())
        return target not in group.written and target not in group.read

    @staticmethod
    def _add(group: _Group, step: Step) -> None:
        inputs = step.inputs[:1] if step.op == "reduce" else step.inputs
        group.read.update(id(w.storage.resolve()) for w in inputs if not group.find(w))
        group.written[id(step.outputs[0].storage.resolve())] = step.outputs[0]
        group.steps.append(step)

    def _close(self, group: _Group) -> None:
        self._open.remove(group)
        fused = None
        if len(group.steps) > 1:
            fused = _Chain(group, self._needed(group)).step()
            if fused is not None:
                length = max(window.shape[-1] for window in (*fused.inputs, *fused.outputs))
                rows = math.prod(group.shape) // length
                if length < _SHORT_ROW and rows > _FEW_ROWS:
                    fused = None
        self._done += group.steps if fused is None else [fused]

    def _needed(self, group: _Group) -> set[int]:
        """Return the ids of the storages that somebody outside the group reads."""
        inside = {id(step) for step in group.steps}
        return {
            key
            for key, window in group.written.items()
            if window.storage.resolve().kind != "arena" or key in self._returned or not self._touched[key] <= inside
        }


class _Chain:
    """A closed group as one step: values 0, 1, ... are what it reads from memory, then what its operations make."""

    def __init__(self, group: _Group, needed: set[int]) -> None:
        self._group = group
        self._inputs: list[Window] = []
        self._made: dict[int, int] = {}  # id of a storage -> position of the operation that writes it
        self._needed = needed

    def step(self) -> Step | None:
        """Return the step, or None when the group writes nothing that is needed."""
        group = self._group
        operands: list[list[tuple[bool, int]]] = []  # per operation: (made by the group, position)
        for position, step in enumerate(group.steps):
            windows = step.inputs[:1] if step.op == "reduce" else step.inputs
            operands.append([self._operand(window) for window in windows])
            self._made[id(step.outputs[0].storage.resolve())] = position
        count = len(self._inputs)
        program = []
        for step, values in zip(group.steps, operands, strict=True):
            name = _REDUCE[step.attributes["kind"]][0] if step.op == "reduce" else step.op
            numbers = [count + position if made else position for made, position in values]
            program.append([name, step.outputs[0].dtype, *numbers])
        results = [position for key, position in self._made.items() if key in self._needed]
        if not results:
            return None
        outputs = [self._with_row(group.steps[position].outputs[0]) for position in results]
        attributes: dict[str, Any] = {"program": program, "results": [count + position for position in results]}
        inputs, outputs = self._merged(outputs)
        return Step("fused", inputs, outputs, attributes)

    def _operand(self, window: Window) -> tuple[bool, int]:
        made = self._made.get(id(window.storage.resolve()))
        if made is not None:
            return True, made
        window = self._with_row(window)
        for position, known in enumerate(self._inputs):
            if known.dtype == window.dtype and known.same_elements(window):
                return False, position
        self._inputs.append(window)
        return False, len(self._inputs) - 1

    def _with_row(self, window: Window) -> Window:
        """Return a window of one number per row with a last dimension of one element, any other as it is."""
        if window.shape == self._group.shape[:-1]:
            return replace(window, shape=(*window.shape, 1), strides=(*window.strides, 1))
        return window

    def _merged(self, outputs: list[Window]) -> tuple[list[Window], list[Window]]:
        """Return inputs and outputs with neighbouring dimensions joined where all of them step through both as one.

        Rows that are reduced, or that have a number of their own, stay as they are.
        """
        shape = self._group.shape
        windows = [*self._inputs, *outputs]
        keep_row = any(step.op == "reduce" for step in self._group.steps) or any(w.shape != shape for w in windows)
        strides = [canonical_strides(w.shape, w.strides) for w in windows]
        runs: list[list[int]] = []  # dimensions that become one
        for dim, size in enumerate(shape):
            last = dim == len(shape) - 1
            if size == 1 and not last:
                continue
            joins = bool(runs) and not (last and keep_row) and all(s[runs[-1][-1]] == s[dim] * size for s in strides)
            if joins:
                runs[-1].append(dim)
            else:
                runs.append([dim])

        def join(window: Window, steps: tuple[int, ...]) -> Window:
            return replace(
                window,
                shape=tuple(math.prod(window.shape[dim] for dim in run) for run in runs),
                strides=tuple(steps[run[-1]] for run in runs),
            )

        joined = [join(window, steps) for window, steps in zip(windows, strides, strict=True)]
        return joined[: len(self._inputs)], joined[len(self._inputs) :]
