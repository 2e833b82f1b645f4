# SPDX-License-Identifier: Apache-2.0
"""Graph to smaller graph, with the same values bit for bit: folded constants, removed identities, one op per value.

torch-mlir's output is legal but wordy: scalars travel as constants that are converted, reshaped and broadcast; `arange`
is a chain of f64 arithmetic; alpha and beta of 1 are multiplied in. One forward pass over the ops removes all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import STORAGE, Array, holds_exactly, to_numeric
from libtorch_neuronx_lite.hostcc.evaluate import can_evaluate, evaluate
from libtorch_neuronx_lite.hostcc.graph import Graph, Op, TensorType
from libtorch_neuronx_lite.hostcc.regions import is_identity
from libtorch_neuronx_lite.hostcc.rewrite_attention import fuse_attention
from libtorch_neuronx_lite.hostcc.rewrite_dot import fuse_dot_converts
from libtorch_neuronx_lite.hostcc.rewrite_indexing import narrow_scatter

# Elements, repeated ones not counted: folding larger constants would trade steps for size of the NEFF.
FOLD_LIMIT = 16384
_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def simplify(graph: Graph) -> None:
    """Simplify `graph` in place."""
    _Simplifier(graph).run()
    fuse_dot_converts(graph)
    drop_unused(graph)  # a reader that is gone does not count
    fuse_attention(graph)
    drop_unused(graph)


def drop_unused(graph: Graph) -> None:
    """Remove ops whose results nobody uses."""
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if needed.isdisjoint(op.results):
            continue
        kept.append(op)
        needed.update(op.operands)
    graph.replace_ops(kept[::-1])


def distinct_elements(array: Array) -> int:
    """Return the number of elements that a broadcast view stores."""
    return int(np.prod([1 if stride == 0 else size for size, stride in zip(array.shape, array.strides, strict=True)]))


class _Simplifier:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._same_as: dict[int, int] = {}  # removed value -> the value that stands for it
        self._made_by: dict[int, Op] = {}
        self._kept: list[Op] = []
        self._seen: dict[tuple[Any, ...], Op] = {}
        self._rules: dict[str, Callable[[Op], bool]] = {
            "optimization_barrier": self._barrier,
            "convert": self._convert,
            "transpose": self._transpose,
            "reshape": self._reshape,
            "dynamic_reshape": self._reshape,
            "broadcast_in_dim": self._broadcast,
            "dynamic_broadcast_in_dim": self._broadcast,
            "slice": self._slice,
            "concatenate": self._concatenate,
            "iota": self._iota,
            "dynamic_iota": self._iota,
            "select": self._select,
            "power": self._power,
            "add": self._neutral_right,
            "subtract": self._neutral_right,
            "multiply": self._neutral_right,
            "divide": self._neutral_right,
            "and": self._neutral_right,
            "or": self._neutral_right,
            "dynamic_slice": self._dynamic_slice,
            "scatter": self._scatter,
            "get_dimension_size": self._dimension_size,
        }

    def run(self) -> None:
        graph = self._graph
        for op in graph.ops:
            self._visit(op)
        graph.outputs = [self._same_as.get(output, output) for output in graph.outputs]
        graph.replace_ops(self._kept)

    def _visit(self, op: Op) -> None:
        op.operands = [self._same_as.get(operand, operand) for operand in op.operands]
        if self._fold(op):
            return
        rule = self._rules.get(op.name.partition(".")[2])
        if (rule is not None and rule(op)) or self._is_repeated(op):
            return
        for result in op.results:
            self._made_by[result] = op
        self._kept.append(op)

    # Each rule returns whether the op is gone. A rule may also change the op in place and return False.

    def _type(self, value: int) -> TensorType:
        return self._graph.types[value]

    def _constant(self, value: int) -> Array | None:
        return self._graph.constants.get(value)

    def _replace(self, op: Op, value: int) -> bool:
        self._same_as[op.results[0]] = value
        return True

    def _set(self, op: Op, array: Array) -> bool:
        self._graph.constants[op.results[0]] = array
        return True

    def _is_repeated(self, op: Op) -> bool:
        if op.regions or op.name == "stablehlo.rng_bit_generator" or not op.results:
            return False
        operands = op.operands
        if op.name.partition(".")[2] in _COMMUTATIVE:
            operands = sorted(operands)
        types = tuple(self._type(result) for result in op.results)
        key = (op.name, *operands, repr(op.attributes) if op.attributes else "", types)
        first = self._seen.setdefault(key, op)
        if first is op:
            return False
        self._same_as.update(zip(op.results, first.results, strict=True))
        return True

    def _fold(self, op: Op) -> bool:
        """Evaluate an elementwise op whose operands are all known."""
        if not op.operands or not can_evaluate(op.name) or op.name == "stablehlo.reshape":
            return False
        known = []
        for operand in op.operands:
            array = self._graph.constants.get(operand)
            if array is None:
                return False
            known.append(array)
        shape = self._type(op.results[0]).shape
        if any(array.shape not in (shape, ()) for array in known):
            return False
        # Where every operand repeats along a dimension the result does: compute it once.
        full = [np.broadcast_to(array, shape) for array in known]
        index = tuple(
            slice(0, 1) if all(array.strides[dim] == 0 for array in full) else slice(None) for dim in range(len(shape))
        )
        small = [array[index] for array in full]
        if small[0].size > FOLD_LIMIT or 0 in shape:
            return False
        types = [self._type(operand) for operand in op.operands]
        if op.name.endswith("bitcast_convert") and known[0].dtype.itemsize != self._item_bytes(op.results[0]):
            return False
        return self._set(op, np.broadcast_to(evaluate(op, small, types, self._type(op.results[0])), shape))

    def _item_bytes(self, value: int) -> int:
        type_ = self._type(value)
        return type_.bytes // type_.elements if type_.elements else 0

    def _barrier(self, op: Op) -> bool:
        self._same_as.update(zip(op.results, op.operands, strict=True))
        return True

    def _convert(self, op: Op) -> bool:
        (operand,), (result,) = op.operands, op.results
        if self._type(operand) == self._type(result):
            return self._replace(op, operand)
        maker = self._made_by.get(operand)
        if maker is not None and maker.name == "stablehlo.convert":
            source = maker.operands[0]
            narrow, wide, target = (self._type(value).dtype for value in (source, operand, result))
            if holds_exactly(wide, narrow):
                if narrow == target:
                    return self._replace(op, source)
                if target != "bool" or narrow != "bool":
                    op.operands = [source]
        return False

    def _transpose(self, op: Op) -> bool:
        permutation = op.attributes["permutation"]
        array = self._constant(op.operands[0])
        if array is not None:
            return self._set(op, np.transpose(array, permutation))
        if permutation == list(range(len(permutation))):
            return self._replace(op, op.operands[0])
        return False

    def _reshape(self, op: Op) -> bool:
        op.operands = op.operands[:1]
        op.name = "stablehlo.reshape"
        shape = self._type(op.results[0]).shape
        array = self._constant(op.operands[0])
        if array is not None:
            if array.size and distinct_elements(array) == 1:
                return self._set(op, np.broadcast_to(array[(0,) * array.ndim], shape))
            if array.size <= FOLD_LIMIT or array.flags.c_contiguous or _same_but_for_ones(array.shape, shape):
                return self._set(op, _reshape_view(array, shape))
        if self._type(op.operands[0]).shape == shape:
            return self._replace(op, op.operands[0])
        maker = self._made_by.get(op.operands[0])
        if maker is not None and maker.name == "stablehlo.reshape":
            op.operands = list(maker.operands)
            if self._type(op.operands[0]).shape == shape:
                return self._replace(op, op.operands[0])
        return False

    def _broadcast(self, op: Op) -> bool:
        op.operands = op.operands[:1]
        op.name = "stablehlo.broadcast_in_dim"
        dims, shape = op.attributes["broadcast_dimensions"], self._type(op.results[0]).shape
        array = self._constant(op.operands[0])
        if array is not None:
            order = sorted(range(len(dims)), key=dims.__getitem__)
            placed = [1] * len(shape)
            for own in order:
                placed[dims[own]] = array.shape[own]
            # Only dimensions of one element are added: the view keeps the strides of the rest.
            view = np.transpose(array, order)[
                tuple(slice(None) if dim in dims else np.newaxis for dim in range(len(shape)))
            ]
            return self._set(op, np.broadcast_to(view.reshape(placed) if view.shape != tuple(placed) else view, shape))
        if dims == list(range(len(shape))) and self._type(op.operands[0]).shape == shape:
            return self._replace(op, op.operands[0])
        return False

    def _slice(self, op: Op) -> bool:
        array = self._constant(op.operands[0])
        starts, limits, strides = (op.attributes[key] for key in ("start_indices", "limit_indices", "strides"))
        if array is not None:
            index = tuple(slice(a, b, s) for a, b, s in zip(starts, limits, strides, strict=True))
            return self._set(op, array[index])
        if self._type(op.operands[0]).shape == self._type(op.results[0]).shape:
            return self._replace(op, op.operands[0])
        return False

    def _dynamic_slice(self, op: Op) -> bool:
        starts = [self._constant(operand) for operand in op.operands[1:]]
        sizes = self._type(op.results[0]).shape
        shape = self._type(op.operands[0]).shape
        known: list[int] = []
        for start, size, total in zip(starts, sizes, shape, strict=True):
            if size == total:
                known.append(0)
            elif start is None:
                return False
            else:
                known.append(min(max(int(start.reshape(())), 0), total - size))
        op.name, op.operands = "stablehlo.slice", op.operands[:1]
        op.attributes = {
            "start_indices": known,
            "limit_indices": [start + size for start, size in zip(known, sizes, strict=True)],
            "strides": [1] * len(known),
        }
        return self._slice(op)

    def _concatenate(self, op: Op) -> bool:
        dim = op.attributes["dimension"]
        op.operands = [value for value in op.operands if self._type(value).shape[dim] != 0] or op.operands[:1]
        if len(op.operands) == 1:
            return self._replace(op, op.operands[0])
        arrays = [self._constant(operand) for operand in op.operands]
        type_ = self._type(op.results[0])
        if type_.elements <= FOLD_LIMIT and all(array is not None for array in arrays):
            return self._set(op, np.concatenate([array for array in arrays if array is not None], dim))
        return False

    def _iota(self, op: Op) -> bool:
        op.name, op.operands = "stablehlo.iota", []
        type_, dim = self._type(op.results[0]), op.attributes["iota_dimension"]
        if type_.dtype[0] not in "iu" or type_.shape[dim] > FOLD_LIMIT or type_.elements == 0:
            return False
        line = np.arange(type_.shape[dim]).astype(STORAGE[type_.dtype])
        placed = line[tuple(slice(None) if d == dim else np.newaxis for d in range(len(type_.shape)))]
        return self._set(op, np.broadcast_to(placed, type_.shape))

    def _select(self, op: Op) -> bool:
        predicate, on_true, on_false = op.operands
        if on_true == on_false:
            return self._replace(op, on_true)
        array = self._constant(predicate)
        if array is not None and array.size and distinct_elements(array) == 1:
            return self._replace(op, on_true if bool(array[(0,) * array.ndim]) else on_false)
        return False

    def _scalar(self, value: int) -> Array | None:
        """Return the one element that a constant repeats, else None."""
        array = self._constant(value)
        if array is None or array.size == 0 or distinct_elements(array) != 1:
            return None
        return np.asarray(array[(0,) * array.ndim])

    def _power(self, op: Op) -> bool:
        exponent = self._scalar(op.operands[1])
        dtype = self._type(op.operands[1]).dtype
        if exponent is None or dtype in ("c64", "c128"):
            return False
        number = float(to_numeric(exponent, dtype))
        if number == 1:
            return self._replace(op, op.operands[0])
        if number == 2:
            op.name, op.operands = "stablehlo.multiply", [op.operands[0]] * 2
        elif number == 0.5 and dtype in ("f32", "f64", "f16", "bf16"):
            op.name, op.operands = "stablehlo.sqrt", op.operands[:1]
        return False

    def _neutral_right(self, op: Op) -> bool:
        """Remove x + 0, x - 0, x * 1, x / 1, x and true, x or false; a float 0 where it keeps -0 (-0.0 in a sum)."""
        kind = op.name.partition(".")[2]
        dtype = self._type(op.results[0]).dtype
        if kind in ("and", "or") and dtype != "bool":
            return False
        candidates = [(0, 1), (1, 0)] if kind in _COMMUTATIVE else [(0, 1)]
        for kept, neutral in candidates:
            scalar = self._scalar(op.operands[neutral])
            if scalar is None:
                continue
            if kind in ("multiply", "divide"):
                fits = is_identity(scalar, dtype, "multiply")
            elif kind == "and":
                fits = bool(scalar)
            else:
                fits = is_identity(scalar, dtype, "add")
                if fits and dtype not in ("bool",) and dtype[0] not in "iu":
                    fits = _is_negative_zero(scalar, dtype) == (kind == "add")
            if fits:
                return self._replace(op, op.operands[kept])
        return False

    def _scatter(self, op: Op) -> bool:
        for added in narrow_scatter(self._graph, op, self._made_by):
            self._visit(added)
        op.operands = [self._same_as.get(operand, operand) for operand in op.operands]
        return False

    def _dimension_size(self, op: Op) -> bool:
        size = self._type(op.operands[0]).shape[op.attributes["dimension"]]
        return self._set(op, np.asarray(size, np.int32))


def _is_negative_zero(scalar: Array, dtype: str) -> bool:
    number = to_numeric(scalar, dtype)
    return bool(np.signbit(number.real)) and (not np.iscomplexobj(number) or bool(np.signbit(number.imag)))


def _same_but_for_ones(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes differ by dimensions of one element alone."""
    return [size for size in a if size != 1] == [size for size in b if size != 1]


def _reshape_view(array: Array, shape: tuple[int, ...]) -> Array:
    """Reshape; dimensions that repeat stay repeated where only dimensions of one element come or go."""
    if _same_but_for_ones(array.shape, shape):
        strides = iter([stride for size, stride in zip(array.shape, array.strides, strict=True) if size != 1])
        return np.lib.stride_tricks.as_strided(
            array, shape, tuple(next(strides) if size != 1 else 0 for size in shape), writeable=False
        )
    return array.reshape(shape)
