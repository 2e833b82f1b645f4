# SPDX-License-Identifier: Apache-2.0
"""Attributes of StableHLO and CHLO ops as plain Python: a reader per attribute name, the rest ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from libtorch_neuronx_lite.hostcc.graph import location_text
from libtorch_neuronx_lite.worker.errors import JobError


def _integers(attribute: ir.Attribute) -> list[int]:
    if isinstance(attribute, ir.DenseElementsAttr):  # the form of StableHLO before 0.15
        return [int(value) for value in np.array(attribute).ravel()]
    return [int(value) for value in attribute]


def _integer(attribute: ir.Attribute) -> int:
    return int(ir.IntegerAttr(attribute).value)


def _boolean(attribute: ir.Attribute) -> bool:
    return bool(ir.BoolAttr(attribute).value)


def _replica_groups(attribute: ir.Attribute) -> list[list[int]]:
    kind = ir.ShapedType(ir.DenseElementsAttr(attribute).type)
    return np.broadcast_to(np.array(attribute), kind.shape).tolist()  # type: ignore[no-any-return]


def _pairs(attribute: ir.Attribute) -> list[list[int]]:
    return [[int(low), int(high)] for low, high in np.array(attribute)]


def _booleans(attribute: ir.Attribute) -> list[bool]:
    if isinstance(attribute, ir.DenseElementsAttr):
        return [bool(value) for value in np.array(attribute).ravel()]
    return [bool(value) for value in attribute]


def _string(attribute: ir.Attribute) -> str:
    return str(ir.StringAttr(attribute).value)


def _dot(attribute: ir.Attribute) -> dict[str, list[int]]:
    numbers = _stablehlo.DotDimensionNumbers(attribute)
    return {
        "lhs_batching": list(numbers.lhs_batching_dimensions),
        "rhs_batching": list(numbers.rhs_batching_dimensions),
        "lhs_contracting": list(numbers.lhs_contracting_dimensions),
        "rhs_contracting": list(numbers.rhs_contracting_dimensions),
    }


def _gather(attribute: ir.Attribute) -> dict[str, Any]:
    numbers = _stablehlo.GatherDimensionNumbers(attribute)
    return {
        "offset_dims": list(numbers.offset_dims),
        "collapsed_slice_dims": list(numbers.collapsed_slice_dims),
        "operand_batching_dims": list(numbers.operand_batching_dims),
        "start_indices_batching_dims": list(numbers.start_indices_batching_dims),
        "start_index_map": list(numbers.start_index_map),
        "index_vector_dim": numbers.index_vector_dim,
    }


def _scatter(attribute: ir.Attribute) -> dict[str, Any]:
    numbers = _stablehlo.ScatterDimensionNumbers(attribute)
    return {
        "update_window_dims": list(numbers.update_window_dims),
        "inserted_window_dims": list(numbers.inserted_window_dims),
        "input_batching_dims": list(numbers.input_batching_dims),
        "scatter_indices_batching_dims": list(numbers.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": list(numbers.scattered_dims_to_operand_dims),
        "index_vector_dim": numbers.index_vector_dim,
    }


def _convolution(attribute: ir.Attribute) -> dict[str, Any]:
    numbers = _stablehlo.ConvDimensionNumbers(attribute)
    return {
        "input_batch": numbers.input_batch_dimension,
        "input_feature": numbers.input_feature_dimension,
        "input_spatial": list(numbers.input_spatial_dimensions),
        "kernel_input_feature": numbers.kernel_input_feature_dimension,
        "kernel_output_feature": numbers.kernel_output_feature_dimension,
        "kernel_spatial": list(numbers.kernel_spatial_dimensions),
        "output_batch": numbers.output_batch_dimension,
        "output_feature": numbers.output_feature_dimension,
        "output_spatial": list(numbers.output_spatial_dimensions),
    }


_READERS: dict[str, Callable[[ir.Attribute], Any]] = {
    "all_gather_dim": _integer,
    "base_dilations": _integers,
    "batch_group_count": _integer,
    "broadcast_dimensions": _integers,
    "call_target_name": _string,
    "concat_dimension": _integer,
    "compare_type": lambda attribute: _stablehlo.ComparisonTypeAttr(attribute).value,
    "comparison_direction": lambda attribute: _stablehlo.ComparisonDirectionAttr(attribute).value,
    "dimension": _integer,
    "dimensions": _integers,
    "dot_dimension_numbers": _dot,
    "edge_padding_high": _integers,
    "edge_padding_low": _integers,
    "exponent_bits": _integer,
    "feature_group_count": _integer,
    "fft_length": _integers,
    "fft_type": lambda attribute: _stablehlo.FftTypeAttr(attribute).value,
    "index": _integer,
    "interior_padding": _integers,
    "iota_dimension": _integer,
    "is_stable": _boolean,
    "k": _integer,
    "lhs_dilation": _integers,
    "limit_indices": _integers,
    "mantissa_bits": _integer,
    "padding": _pairs,
    "permutation": _integers,
    "replica_groups": _replica_groups,
    "rhs_dilation": _integers,
    "rng_algorithm": lambda attribute: _stablehlo.RngAlgorithmAttr(attribute).value,
    "scatter_dimension": _integer,
    "scatter_dimension_numbers": _scatter,
    "slice_sizes": _integers,
    "split_count": _integer,
    "split_dimension": _integer,
    "start_indices": _integers,
    "strides": _integers,
    "window_dilations": _integers,
    "window_dimensions": _integers,
    "window_reversal": _booleans,
    "window_strides": _integers,
}
_DIMENSION_NUMBERS = {
    "stablehlo.convolution": _convolution,
    "stablehlo.dynamic_conv": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.dynamic_gather": _gather,
}


def read_attributes(operation: ir.Operation, name: str, graph: str) -> dict[str, Any]:
    """Return the op's attributes that lowering reads, as integers, lists, strings and dictionaries."""
    attributes: dict[str, Any] = {}
    mapping = operation.attributes
    for key in mapping:
        reader = _READERS.get(key) or (_DIMENSION_NUMBERS.get(name) if key == "dimension_numbers" else None)
        if reader is None:
            continue
        try:
            attributes[key] = reader(mapping[key])
        except (TypeError, ValueError) as error:
            raise JobError(
                "unsupported-op",
                f"{name} in graph {graph!r}: its attribute {key} cannot be read: {error}",
                op=name,
                location=location_text(operation.location),
            ) from error
    return attributes
