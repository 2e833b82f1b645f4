# SPDX-License-Identifier: Apache-2.0
"""Memory of a program: outputs written where they belong, temporaries that reuse each other's place, no idle steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from libtorch_neuronx_lite.hostcc.lowering import Lowering, Step
from libtorch_neuronx_lite.hostcc.step_names import ELEMENTWISE
from libtorch_neuronx_lite.hostcc.windows import Storage, Window, dense

ALIGNMENT = 64  # bytes: a cache line, and the width of an AVX-512 register


@dataclass(slots=True)
class Plan:
    """The finished memory of a program."""

    steps: list[Step]
    outputs: list[Storage]
    arena_bytes: int
    constant_bytes: int
    constants: list[Storage]


def plan(low: Lowering) -> Plan:
    """Place every storage; `low.steps` must be complete."""
    outputs = _bind_outputs(low)
    steps = _drop_idle(low.steps)
    _reuse_in_place(steps)
    arena_bytes = _place_arena(steps)
    constants, constant_bytes = _place_constants(steps)
    return Plan(steps, outputs, arena_bytes, constant_bytes, constants)


def _bind_outputs(low: Lowering) -> list[Storage]:
    """Make every output hold its value: in place, in a temporary that becomes the output, or by a copy at the end."""
    graph = low.graph
    outputs: list[Storage] = []
    plain: list[tuple[Window, Window]] = []
    into_inputs: list[tuple[Window, Window]] = []
    # Storages whose present content is returned: the copies that do so come last.
    returned = {id(low.window(value).storage) for value in graph.outputs}
    for index, value in enumerate(graph.outputs):
        window = low.window(value)
        storage = window.storage.resolve()
        type_ = graph.types[value]
        if index in graph.aliases:
            home = low.inputs[graph.aliases[index]]
            outputs.append(home)
            target = dense(home, type_.dtype, type_.shape)
            if window.same_elements(target):
                continue
            if id(home) not in returned and _is_private(window) and _may_take_over(low.steps, storage, home):
                storage.merged_into = home
                continue
            into_inputs.append((window, target))
            continue
        if _is_private(window):
            storage.kind, storage.index = "output", index
            outputs.append(storage)
            continue
        own = Storage("output", type_.bytes, index)
        outputs.append(own)
        plain.append((window, dense(own, type_.dtype, type_.shape)))
    for window, target in plain:
        low.emit("copy", [window], [target])
    # Several inputs may exchange their values: what lies in an input that is about to be overwritten moves out first.
    overwritten = {id(target.storage.resolve()) for _, target in into_inputs}
    staged = [
        (low.dense_copy(window) if id(window.storage.resolve()) in overwritten else window, target)
        for window, target in into_inputs
    ]
    for window, target in staged:
        low.emit("copy", [window], [target])
    return outputs


def _is_private(window: Window) -> bool:
    return window.storage.resolve().kind == "arena" and window.covers_storage and window.storage.bytes > 0


def _may_take_over(steps: list[Step], storage: Storage, home: Storage) -> bool:
    """Whether `storage` may live in `home`: all reads of the old value come before the first write of the new one."""
    first_write = next(
        (i for i, step in enumerate(steps) if any(out.storage.resolve() is storage for out in step.outputs)), None
    )
    if first_write is None:
        return False
    for position, step in enumerate(steps):
        if any(out.storage.resolve() is home for out in step.outputs):
            return False
        if position < first_write:
            continue
        for window in step.inputs:
            if window.storage.resolve() is home and not (
                position == first_write
                and step.op in ELEMENTWISE
                and not step.updates
                and all(_lies_alike(window, out) for out in step.outputs if out.storage.resolve() is storage)
            ):
                return False
    return True


def _lies_alike(window: Window, output: Window) -> bool:
    """Whether both would name the same elements, were their storages one memory."""
    twin = Window(output.storage, window.dtype, window.shape, window.strides, window.offset)
    return twin.same_elements(output)


def _drop_idle(steps: list[Step]) -> list[Step]:
    """Leave out steps that nobody reads: from the back, keep what writes a needed storage."""
    needed: set[int] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        storages = [window.storage.resolve() for window in step.outputs]
        if not any(storage.kind != "arena" or id(storage) in needed for storage in storages):
            continue
        needed.update(id(window.storage.resolve()) for window in step.inputs)
        kept.append(step)
    kept.reverse()
    return kept


def _lifetimes(steps: list[Step]) -> dict[int, tuple[Storage, int, int]]:
    lives: dict[int, tuple[Storage, int, int]] = {}
    for position, step in enumerate(steps):
        for window in (*step.inputs, *step.outputs):
            storage = window.storage.resolve()
            if storage.kind == "arena":
                known = lives.get(id(storage))
                lives[id(storage)] = (storage, known[1] if known else position, position)
    return lives


def _reuse_in_place(steps: list[Step]) -> None:
    """Let an elementwise step write over an operand that dies in it and lies exactly as the result does."""
    lives = _lifetimes(steps)
    last = {key: end for key, (_, _, end) in lives.items()}
    for position, step in enumerate(steps):
        if step.op not in ELEMENTWISE or step.updates:
            continue
        output = step.outputs[0]
        target = output.storage.resolve()
        if lives.get(id(target), (None, -1))[1] != position or not output.covers_storage:
            continue  # not a fresh temporary
        for window in step.inputs:
            storage = window.storage.resolve()
            if (
                storage.kind == "arena"
                and storage is not target
                and last[id(storage)] == position
                and storage.bytes == target.bytes
                and all(_lies_alike(other, output) for other in step.inputs if other.storage.resolve() is storage)
            ):
                target.merged_into = storage
                last[id(storage)] = last[id(target)]
                break


def _place_arena(steps: list[Step]) -> int:
    """Give every temporary an offset; large ones first, each at the lowest gap free during its life."""
    lives = sorted(_lifetimes(steps).values(), key=lambda life: (-life[0].bytes, life[1], life[2]))
    count = len(lives)
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    begin, end = np.empty(count, np.int64), np.empty(count, np.int64)
    total = 0
    for index, (storage, born, died) in enumerate(lives):
        size = _aligned(storage.bytes)
        alive = np.flatnonzero((first[:index] <= died) & (last[:index] >= born))
        taken = sorted(zip(begin[alive].tolist(), end[alive].tolist(), strict=True))
        best, best_gap, edge = -1, -1, 0
        for low, high in taken:
            gap = low - edge
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = edge, gap
            edge = max(edge, high)
        storage.offset = best if best >= 0 else edge
        first[index], last[index] = born, died
        begin[index], end[index] = storage.offset, storage.offset + size
        total = max(total, storage.offset + size)
    return total


def _place_constants(steps: list[Step]) -> tuple[list[Storage], int]:
    constants: list[Storage] = []
    seen: set[int] = set()
    offset = 0
    for step in steps:
        for window in step.inputs:
            storage = window.storage.resolve()
            if storage.kind == "constant" and id(storage) not in seen:
                seen.add(id(storage))
                constants.append(storage)
                storage.offset = offset
                offset = _aligned(offset + storage.bytes)
    return constants, offset


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
