# SPDX-License-Identifier: Apache-2.0
"""Matrix products: batch dimensions are cut where an operand needs it, and repeated operands are read once.

Grouped attention repeats every key head for a group of query heads: [batch, heads, groups, ...] read as
[batch, heads * groups, ...]. No strides express that, and a copy would move the whole cache in every layer. Cut into
(heads, groups), the repetition is a stride of 0; the group dimension then moves from the batch to the rows of the
product, so each key is read once for all its queries.
"""

from __future__ import annotations

from libtorch_neuronx_lite.hostcc.graph import Op
from libtorch_neuronx_lite.hostcc.lowering import Factored, Lowering, handles
from libtorch_neuronx_lite.hostcc.windows import Window, common_factors, group_factors


@handles("stablehlo.dot_general")
def _dot_general(low: Lowering, op: Op) -> None:
    numbers = op.attributes["dot_dimension_numbers"]
    target = low.temporary(low.type(op.results[0]))
    low.define(op.results[0], target)
    batching = (numbers["lhs_batching"], numbers["rhs_batching"])
    operands = [_only_batch_factored(low, value, dims) for value, dims in zip(op.operands, batching, strict=True)]
    cuts = [
        common_factors(_sizes(operands[0], left), _sizes(operands[1], right))
        for left, right in zip(*batching, strict=True)
    ]
    if None in cuts:  # the two are cut at different places
        plain = [low.window(value) for value in op.operands]
        low.emit("dot_general", plain, [target], dict(numbers))
        return
    contracting = (numbers["lhs_contracting"], numbers["rhs_contracting"])
    _Product(target, operands, batching, contracting, [cut or [] for cut in cuts]).emit(low)


def _only_batch_factored(low: Lowering, value: int, batching: list[int]) -> Factored:
    """Return the operand; copied first when a row, column or contracted dimension is cut, which kernels want whole."""
    operand = low.factored(value)
    if any(len(group) > 1 for dim, group in enumerate(operand.groups) if dim not in batching):
        low.window(value)
        operand = low.factored(value)
    return operand


def _sizes(operand: Factored, dim: int) -> tuple[int, ...]:
    return tuple(operand.window.shape[position] for position in operand.groups[dim])


class _Product:
    """One product with labelled dimensions: equal labels are paired; a step's order follows from where labels stand."""

    def __init__(
        self,
        target: Window,
        operands: list[Factored],
        batching: tuple[list[int], list[int]],
        contracting: tuple[list[int], list[int]],
        cuts: list[list[int]],
    ) -> None:
        self._batch = [(pair, part) for pair, cut in enumerate(cuts) for part in range(max(len(cut), 1))]
        sides = []
        for side, operand in enumerate(operands):
            labels: list[tuple[object, ...]] = []
            factors: list[tuple[int, ...]] = []
            order: list[int] = []
            for dim, group in enumerate(operand.groups):
                if dim in batching[side]:
                    pair = batching[side].index(dim)
                    factors += self._cut(operand, group, cuts[pair])
                    labels += [("batch", pair, part) for part in range(max(len(cuts[pair]), 1))]
                elif dim in contracting[side]:
                    factors += [(operand.window.shape[position],) for position in group] or [()]
                    labels.append(("contract", contracting[side].index(dim)))
                else:
                    factors += [(operand.window.shape[position],) for position in group] or [()]
                    labels.append(("free", side, dim))
                order += group
            sides.append((labels, factors, order, operand))
        self._labels = [side[0] for side in sides]
        self._windows = [self._rebuild(operand, factors, order) for _, factors, order, operand in sides]
        free = [[label for label in labels if label[0] == "free"] for labels in self._labels]
        self._out_labels: list[tuple[object, ...]] = [
            *[("batch", pair, part) for pair, part in self._batch], *free[0], *free[1]
        ]  # fmt: skip
        sizes = dict(zip(self._labels[0], self._windows[0].shape, strict=True))
        sizes.update(zip(self._labels[1], self._windows[1].shape, strict=True))
        out = target.reshape(tuple(sizes[label] for label in self._out_labels))
        assert out is not None  # target is dense
        self._out = out

    @staticmethod
    def _cut(operand: Factored, group: tuple[int, ...], cut: list[int]) -> list[tuple[int, ...]]:
        shape = tuple(operand.window.shape[position] for position in group)
        return group_factors(shape, cut) if group else [()]

    @staticmethod
    def _rebuild(operand: Factored, factors: list[tuple[int, ...]], order: list[int]) -> Window:
        """Return the operand's window cut by `factors`; a group without dimensions is one element."""
        shape: list[int] = []
        strides: list[int] = []
        position = 0
        for parts in factors:
            if not parts:
                shape.append(1)
                strides.append(1)
                continue
            dim = order[position]
            position += 1
            inner = operand.window.strides[dim]
            cut_strides = []
            for size in reversed(parts):
                cut_strides.append(inner)
                inner *= size
            shape += parts
            strides += cut_strides[::-1]
        window = operand.window
        return Window(window.storage, window.dtype, tuple(shape), tuple(strides), window.offset)

    def emit(self, low: Lowering) -> None:
        """Append the step."""
        self._widen_rows()
        left, right = self._labels
        batch = [label for label in left if label[0] == "batch" and label in right]
        contract = [label for label in left if label[0] == "contract"]
        rows = [label for label in left if label not in batch and label not in contract]
        columns = [label for label in right if label not in batch and label not in contract]
        out = self._out.transpose([self._out_labels.index(label) for label in [*batch, *rows, *columns]])
        low.emit(
            "dot_general",
            self._windows,
            [out],
            {
                "lhs_batching": [left.index(label) for label in batch],
                "rhs_batching": [right.index(label) for label in batch],
                "lhs_contracting": [left.index(label) for label in contract],
                "rhs_contracting": [right.index(label) for label in contract],
            },
        )

    def _widen_rows(self) -> None:
        """Turn a batch dimension along which the right operand repeats into rows of the left operand."""
        labels, window = self._labels[1], self._windows[1]
        kept = [
            dim
            for dim, (label, size, stride) in enumerate(zip(labels, window.shape, window.strides, strict=True))
            if not (label[0] == "batch" and size > 1 and stride == 0)
        ]
        self._labels[1] = [labels[dim] for dim in kept]
        self._windows[1] = Window(
            window.storage,
            window.dtype,
            tuple(window.shape[dim] for dim in kept),
            tuple(window.strides[dim] for dim in kept),
            window.offset,
        )
