# SPDX-License-Identifier: Apache-2.0
"""Scaled dot product attention, found in the form that `fx_passes.attention` gives it, as one op.

    scores  = dot(q, k^T) * scale                          f32
    masked  = select(mask, scores, -inf) | scores + mask   absent without a mask
    top     = max(masked), 0 where that is -inf            the 0 only with a mask
    weights = exp(masked - top)
    total   = sum(weights), 1 where that is 0              the 1 only with a mask
    result  = dot(weights, v) / total                      weights rounded before the product, the result after it

Each line may be separated from the next by reshapes that split or join the rows of grouped heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from libtorch_neuronx_lite.hostcc.dtypes import Array, to_numeric
from libtorch_neuronx_lite.hostcc.graph import Graph, Op, TensorType
from libtorch_neuronx_lite.hostcc.regions import combine_kinds

ATTENTION = "hostcc.attention"
_DTYPES = ("bf16", "f16", "f32")
_PRODUCT = {"lhs_batching": [0], "rhs_batching": [0], "lhs_contracting": [2], "rhs_contracting": [1]}


def fuse_attention(graph: Graph) -> None:
    """Replace every attention whose intermediate values nobody else reads by one `hostcc.attention`.

    Its operands are q [batch, groups * rows, width], k [batch, columns, width], v [batch, columns, value width], scale
    (f32, a scalar constant) and the mask (bool or f32, of the scores' shape), when there is one. Attributes: ``shape``
    is [batch, groups, rows]; ``order``, when there, is the permutation that the one reader of the result applies.
    """
    users: dict[int, list[Op]] = {}
    for op in graph.ops:
        for operand in set(op.operands):
            users.setdefault(operand, []).append(op)
    replaced: dict[int, list[Op]] = {}  # id of the last op of an attention -> what takes its place
    for op in graph.ops:
        if op.name == "stablehlo.divide":
            found = _Matcher(graph).match(op, users)
            if found is not None:
                replaced[id(found.last)] = _ops_of(graph, found, users)
    if replaced:
        graph.replace_ops([new for op in graph.ops for new in replaced.get(id(op), [op])])


@dataclass(slots=True)
class _Attention:
    last: Op
    query: int
    key_transposed: int
    value: int
    scale: float
    mask: int | None
    shape: list[int]


def _ops_of(graph: Graph, found: _Attention, users: dict[int, list[Op]]) -> list[Op]:
    batch, width, columns = graph.types[found.key_transposed].shape
    key = graph.value(TensorType((batch, columns, width), graph.types[found.key_transposed].dtype))
    turn = Op("stablehlo.transpose", [found.key_transposed], [key], {"permutation": [0, 2, 1]}, [], found.last.location)
    scale = graph.constant(np.asarray(found.scale, np.float32), "f32")
    operands = [found.query, key, found.value, scale, *([] if found.mask is None else [found.mask])]
    attributes: dict[str, object] = {"shape": found.shape}
    readers = users.get(found.last.results[0], [])
    if len(readers) == 1 and readers[0].name == "stablehlo.transpose" and found.last.results[0] not in graph.outputs:
        attributes["order"] = readers[0].attributes["permutation"]
    return [turn, Op(ATTENTION, operands, list(found.last.results), attributes, [], found.last.location)]


@dataclass(slots=True)
class _Matcher:
    """Walks from the division to the operands; `seen` collects the ops that the attention is made of."""

    graph: Graph
    seen: list[Op] = field(default_factory=list)

    def match(self, divide: Op, users: dict[int, list[Op]]) -> _Attention | None:
        """Return the attention that ends in `divide` or in the conversion of its result."""
        last = divide
        readers = users.get(divide.results[0], [])
        if len(readers) == 1 and readers[0].name == "stablehlo.convert":
            last = readers[0]
        dtype = self._type(last.results[0]).dtype
        if dtype not in _DTYPES or self._type(divide.results[0]).dtype != "f32":
            return None
        self.seen += [divide] if last is divide else [divide, last]
        found = self._match(divide, last, dtype)
        if found is None:
            return None
        inside = {id(op) for op in self.seen}
        for op in self.seen:
            for result in op.results:
                if op is not last and (
                    result in self.graph.outputs or any(id(user) not in inside for user in users.get(result, []))
                ):
                    return None
        return found

    def _match(self, divide: Op, last: Op, dtype: str) -> _Attention | None:
        product = self._make(divide.operands[0], "dot_general", dtype)
        total = self._make(divide.operands[1], "broadcast_in_dim")
        if product is None or total is None or not self._is_row(total):
            return None
        weights, value = product.operands
        if dtype != "f32":
            narrow = self._make(weights, "convert")
            if narrow is None:
                return None
            weights = narrow.operands[0]
        exponential = self._make(weights, "exponential")
        minus = exponential and self._make(exponential.operands[0], "subtract")
        peak = minus and self._make(minus.operands[1], "broadcast_in_dim")
        if exponential is None or minus is None or peak is None or not self._is_row(peak):
            return None
        scores = minus.operands[0]
        sum_guard, added = self._guarded(total.operands[0], zero=0.0, instead=1.0)
        top_guard, compared = self._guarded(peak.operands[0], zero=-math.inf, instead=0.0)
        if not self._reduces(added, exponential.results[0], "add", 0.0):
            return None
        if not self._reduces(compared, scores, "maximum", -math.inf):
            return None
        mask, scores = self._mask(scores)
        if sum_guard != (mask is not None) or top_guard != (mask is not None):
            return None
        return self._product_of(scores, minus, product, value, mask, dtype, last)

    def _product_of(
        self, scores: int, minus: Op, product: Op, value: int, mask: int | None, dtype: str, last: Op
    ) -> _Attention | None:
        scale = 1.0
        multiply = self._make(scores, "multiply")
        if multiply is not None:
            number = self._scalar(multiply.operands[1])
            if number is None:
                return None
            scale, scores = number, multiply.operands[0]
        first = self._make(scores, "dot_general", dtype)
        if first is None:
            return None
        batch, joint, columns = self._type(first.results[0]).shape
        shape = self._type(minus.results[0]).shape
        rows = shape[-2] if len(shape) > 1 else 0
        if not rows or not columns or joint % rows or math.prod(shape) != batch * joint * columns:
            return None
        if shape[-1] != columns or self._type(product.results[0]).shape[:2] != (batch, joint):
            return None
        if self._type(last.results[0]).shape[:-1] != shape[:-1]:
            return None
        if mask is not None and self._type(mask).shape != shape:
            return None
        return _Attention(last, first.operands[0], first.operands[1], value, scale, mask, [batch, joint // rows, rows])

    def _type(self, value: int) -> TensorType:
        return self.graph.types[value]

    def _make(self, value: int, name: str, operands: str | None = None) -> Op | None:
        """Return the op that makes `value`, reshapes looked through, when it is a `name`.

        A dot_general must be the plain product of a batch with operands of the dtype `operands` and an f32 result.
        """
        passed = []
        producer = self.graph.producer(value)
        while producer is not None and producer.name == "stablehlo.reshape":
            passed.append(producer)
            producer = self.graph.producer(producer.operands[0])
        if producer is None or producer.name != f"stablehlo.{name}":
            return None
        if operands is not None:
            numbers = producer.attributes["dot_dimension_numbers"]
            types = [self._type(operand).dtype for operand in producer.operands]
            if any(numbers[key] != dims for key, dims in _PRODUCT.items()) or types != [operands, operands]:
                return None
            if self._type(producer.results[0]).dtype != "f32":
                return None
        self.seen += [*passed, producer]
        return producer

    def _is_row(self, broadcast: Op) -> bool:
        """Whether the op repeats the one element of the last dimension and nothing else."""
        source, target = self._type(broadcast.operands[0]).shape, self._type(broadcast.results[0]).shape
        rank = len(target)
        return broadcast.attributes["broadcast_dimensions"] == list(range(rank)) and source == (*target[:-1], 1)

    def _scalar(self, value: int) -> float | None:
        array: Array | None = self.graph.constants.get(value)
        if array is None or array.size == 0 or self._type(value).dtype != "f32":
            return None
        first = array[(0,) * array.ndim]
        if any(stride != 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)) and not bool(
            (array == first).all()
        ):
            return None
        return float(to_numeric(np.asarray(first), "f32"))

    def _guarded(self, value: int, zero: float, instead: float) -> tuple[bool, int]:
        """Return whether `value` is ``select(x == zero, instead, x)``, and x; else False and `value`."""
        select = self.graph.producer(value)
        if select is None or select.name != "stablehlo.select":
            return False, value
        compare = self.graph.producer(select.operands[0])
        if (
            compare is None
            or compare.name != "stablehlo.compare"
            or compare.attributes["comparison_direction"] != "EQ"
            or compare.operands[0] != select.operands[2]
            or self._scalar(compare.operands[1]) != zero
            or self._scalar(select.operands[1]) != instead
        ):
            return False, value
        self.seen += [select, compare]
        return True, select.operands[2]

    def _reduces(self, value: int, source: int, kind: str, start: float) -> bool:
        """Whether `value`, reshapes looked through, is `source` reduced over its last dimension."""
        reduce = self._make(value, "reduce")
        return (
            reduce is not None
            and len(reduce.results) == 1
            and reduce.operands[0] == source
            and reduce.attributes["dimensions"] == [len(self._type(source).shape) - 1]
            and self._scalar(reduce.operands[1]) == start
            and combine_kinds(self.graph, reduce.regions[0]) == [kind]
        )

    def _mask(self, scores: int) -> tuple[int | None, int]:
        """Return the mask and the scores before it."""
        producer = self.graph.producer(scores)
        if producer is None:
            return None, scores
        if producer.name == "stablehlo.select" and self._scalar(producer.operands[2]) == -math.inf:
            self.seen.append(producer)
            return producer.operands[0], producer.operands[1]
        if producer.name == "stablehlo.add":
            for mine, other in (producer.operands, producer.operands[::-1]):
                if self._leads_to_product(mine):
                    self.seen.append(producer)
                    return other, mine
        return None, scores

    def _leads_to_product(self, value: int) -> bool:
        return any(op.name == "stablehlo.dot_general" for op in self._line(value))

    def _line(self, value: int) -> Iterable[Op]:
        """The makers of a value behind reshapes and one multiplication by a constant."""
        producer = self.graph.producer(value)
        while producer is not None:
            yield producer
            scaled = producer.name == "stablehlo.multiply" and self._scalar(producer.operands[1]) is not None
            if producer.name != "stablehlo.reshape" and not scaled:
                return
            producer = self.graph.producer(producer.operands[0])
