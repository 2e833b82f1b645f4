# SPDX-License-Identifier: Apache-2.0
"""StableHLO bytes (MLIR bytecode, portable artifact or text) to a `Graph`, after MLIR's own clean-up passes."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import numpy as np
from torch_mlir import ir, passmanager
from torch_mlir._mlir_libs import _stablehlo, _torchMlir

from libtorch_neuronx_lite.hostcc.attributes import read_attributes
from libtorch_neuronx_lite.hostcc.dtypes import FROM_MLIR, STORAGE, Array, from_numeric, size_of
from libtorch_neuronx_lite.hostcc.graph import Graph, Op, Region, TensorType, location_text
from libtorch_neuronx_lite.worker.errors import JobError

_BYTECODE_MAGIC = b"ML\xefR"
# The order matters: calls are inlined before shapes are refined, because refinement works on one function; operands
# that became constants then turn dynamic ops into static ones.
_PASSES = (
    "func.func(stablehlo-legalize-composite-to-call)",
    "inline",
    "symbol-dce",
    "func.func(shape-legalize-to-stablehlo,stablehlo-legalize-deprecated-ops)",
    "canonicalize",
    "func.func(stablehlo-canonicalize-dynamism)",
    "cse",
)
_SCALAR_TYPE = re.compile(r"^(?:[su]?i\d+|index|bf16|f\d+\w*|complex<f\d+>)$")


# The wheel has no Python module for these dialects, and the bindings search the disk for one at every op they touch. An
# empty module ends the search: it took half of the compile time of a large graph.
for _dialect in ("stablehlo", "chlo"):
    sys.modules.setdefault(f"torch_mlir.dialects.{_dialect}", types.ModuleType(f"torch_mlir.dialects.{_dialect}"))


def new_context() -> ir.Context:
    """Return a context with the dialects and passes that a module may use. Unregistered dialects stay refused."""
    context = ir.Context()
    _stablehlo.register_dialect(context)
    _stablehlo.register_stablehlo_passes()
    _torchMlir.register_dialect(context)
    with context, ir.Location.unknown():
        # CHLO has no registration of its own in the bindings; a pass that depends on it loads it.
        empty = ir.Module.create()
        passmanager.PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))").run(empty.operation)
    return context


def is_portable_artifact(data: bytes) -> bool:
    """Return whether the bytes are a StableHLO portable artifact (MLIR bytecode of the vhlo dialect)."""
    return data.startswith(_BYTECODE_MAGIC) and b"StableHLO_v" in data[:64]


def parse_module(context: ir.Context, data: bytes) -> ir.Module:
    """Parse a module in any of its three forms; raise JobError (kind ``invalid-module``) when it is none."""
    try:
        if is_portable_artifact(data):
            return _stablehlo.deserialize_portable_artifact(context, data)
        with context:
            return ir.Module.parse(data)
    except (ir.MLIRError, ValueError) as error:
        raise JobError("invalid-module", f"the input is not a StableHLO module: {error}") from error


def canonicalize(module: ir.Module) -> None:
    """Inline calls, legalise shape computations and make shapes static, in place."""
    with module.context:
        _run(module, ",".join(_PASSES))


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
    except ir.MLIRError as error:
        location = next((location_text(item.location) for item in error.error_diagnostics), None)
        raise JobError("invalid-module", f"MLIR refused the module: {error}", location=location) from error


def _main_function(module: ir.Module) -> ir.Operation:
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    for function in functions:
        if ir.StringAttr(function.attributes["sym_name"]).value == "main" or len(functions) == 1:
            return function
    names = ", ".join(ir.StringAttr(function.attributes["sym_name"]).value for function in functions) or "none"
    raise JobError("invalid-module", f"the module has no function named main; its functions: {names}")


def legalize_chlo(module: ir.Module) -> None:
    """Expand every CHLO op into StableHLO, in place: for a module that has one without a step of its own."""
    with module.context:
        _run(module, "func.func(chlo-legalize-to-stablehlo),canonicalize,cse")


def read_graph(module: ir.Module, name: str) -> Graph:
    """Turn the module's main function into a `Graph`; raise JobError for what has no static form."""
    try:
        return _Reader(name, module).read(_main_function(module))
    except JobError as error:
        if error.kind != "dynamic-shape":
            raise
    with module.context:  # rare, so it costs nothing where shapes are static already
        _run(module, "stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism),canonicalize")
    return _Reader(name, module).read(_main_function(module))


class _Reader:
    def __init__(self, name: str, module: ir.Module) -> None:
        attributes = module.operation.attributes
        replicas = ir.IntegerAttr(attributes["mhlo.num_replicas"]).value if "mhlo.num_replicas" in attributes else 1
        self._graph = Graph(name, replicas)
        self._values: dict[ir.Value, int] = {}
        self._types: dict[ir.Type, TensorType] = {}

    def read(self, function: ir.Operation) -> Graph:
        graph = self._graph
        if len(function.regions[0].blocks) != 1:
            raise JobError(
                "unsupported-op",
                f"graph {graph.name!r}: the main function has branches between blocks; use stablehlo ops",
            )
        block = function.regions[0].blocks[0]
        for argument in block.arguments:
            graph.inputs.append(self._define(argument, function))
        self._read_aliases(function)
        graph.ops, graph.outputs = self._read_block(block)
        for output, position in graph.aliases.items():
            if output >= len(graph.outputs):
                raise JobError(
                    "invalid-module",
                    f"graph {graph.name!r}: input {position} aliases output {output}, but there are "
                    f"{len(graph.outputs)} outputs",
                )
            wanted, given = graph.types[graph.inputs[position]], graph.types[graph.outputs[output]]
            if wanted != given:
                raise JobError(
                    "invalid-module",
                    f"graph {graph.name!r}: input {position} ({wanted.dtype}{list(wanted.shape)}) aliases "
                    f"output {output} of another type ({given.dtype}{list(given.shape)})",
                )
        return graph

    def _read_aliases(self, function: ir.Operation) -> None:
        if "arg_attrs" not in function.attributes:
            return
        for position, dictionary in enumerate(ir.ArrayAttr(function.attributes["arg_attrs"])):
            entry = ir.DictAttr(dictionary)
            if "tf.aliasing_output" not in entry:
                continue
            output = ir.IntegerAttr(entry["tf.aliasing_output"]).value
            if output in self._graph.aliases:
                raise JobError(
                    "invalid-module",
                    f"graph {self._graph.name!r}: inputs {self._graph.aliases[output]} and {position} both alias "
                    f"output {output}",
                )
            self._graph.aliases[output] = position

    def _read_block(self, block: ir.Block) -> tuple[list[Op], list[int]]:
        ops: list[Op] = []
        for view in block.operations:
            operation = view.operation
            name = operation.name
            if name in ("func.return", "stablehlo.return"):
                return ops, [self._values[operand] for operand in operation.operands]
            results = [self._define(result, operation) for result in operation.results]
            if name in ("stablehlo.constant", "arith.constant"):
                self._graph.constants[results[0]] = _read_constant(operation, self._graph.types[results[0]])
                continue
            ops.append(
                Op(
                    name,
                    [self._values[operand] for operand in operation.operands],
                    results,
                    read_attributes(operation, name, self._graph.name),
                    [self._read_region(region) for region in operation.regions],
                    operation.location,
                )
            )
        raise JobError("invalid-module", f"graph {self._graph.name!r}: a block ends without a return")

    def _read_region(self, region: ir.Region) -> Region:
        if len(region.blocks) != 1:  # an absent body, or branches: no op that is lowered has them
            return Region([], [], [])
        block = region.blocks[0]
        arguments = [self._define(argument, region.owner) for argument in block.arguments]
        ops, results = self._read_block(block)
        return Region(arguments, ops, results)

    def _define(self, value: ir.Value, owner: Any) -> int:
        mlir_type = value.type
        type_ = self._types.get(mlir_type)
        if type_ is None:
            type_ = self._types[mlir_type] = self._read_type(mlir_type, owner)
        index = self._graph.value(type_)
        self._values[value] = index
        return index

    def _read_type(self, mlir_type: ir.Type, owner: Any) -> TensorType:
        operation = owner.operation
        where = location_text(operation.location)
        text = str(mlir_type)
        if isinstance(mlir_type, ir.RankedTensorType):
            if not mlir_type.has_static_shape:
                raise JobError(
                    "dynamic-shape",
                    f"{operation.name} in graph {self._graph.name!r} has the type {text}: every size must be known "
                    "when the graph is compiled",
                    op=operation.name,
                    location=where,
                )
            shape, element = tuple(mlir_type.shape), str(mlir_type.element_type)
        elif _SCALAR_TYPE.match(text):
            shape, element = (), text
        else:
            raise JobError(
                "unsupported-type",
                f"{operation.name} in graph {self._graph.name!r} has the type {text}, which this target does not hold",
                op=operation.name,
                location=where,
            )
        if element not in FROM_MLIR:
            raise JobError(
                "unsupported-type",
                f"{operation.name} in graph {self._graph.name!r} has elements of type {element}; the host target holds "
                f"{', '.join(FROM_MLIR)}",
                op=operation.name,
                location=where,
            )
        return TensorType(shape, FROM_MLIR[element])


def _read_constant(operation: ir.Operation, type_: TensorType) -> Array:
    """Return the constant in storage form; a splat is a broadcast view of one element."""
    try:
        attribute = operation.attributes["value"]
    except TypeError:  # complex elements: the bindings have no class for them
        return _parse_elements(operation.get_asm(), type_)
    if isinstance(attribute, ir.DenseElementsAttr):
        return read_elements(attribute, type_)
    if isinstance(attribute, (ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr)):
        return _splat(attribute, type_.dtype)
    return _read_resource(operation, str(attribute), type_)


def read_elements(attribute: ir.DenseElementsAttr, type_: TensorType) -> Array:
    """Return a dense attribute's elements in storage form; a splat is a broadcast view of one element."""
    if attribute.is_splat:
        return np.broadcast_to(_splat(attribute.get_splat_value(), type_.dtype), type_.shape)
    if type_.dtype in ("bf16", "f8e4m3fn", "f8e5m2"):  # no buffer for these
        return _parse_elements(str(attribute), type_)
    return np.array(attribute).astype(STORAGE[type_.dtype], copy=False).reshape(type_.shape)


def _splat(element: Any, dtype: str) -> Array:
    text = str(element)
    if text.startswith("0x"):  # a NaN or an infinity, printed as its bits
        return _from_bytes(int(text.split()[0], 16).to_bytes(size_of(dtype), "little"), dtype).reshape(())
    value = element.value
    return from_numeric(np.asarray(value, np.float64 if isinstance(value, float) else None), dtype)


def _from_bytes(data: bytes, dtype: str) -> Array:
    return np.frombuffer(data, STORAGE[dtype]).copy()


def _parse_elements(text: str, type_: TensorType) -> Array:
    """Read the elements of a printed ``dense<...>``; MLIR prints large ones as hexadecimal bytes."""
    body = text[text.index("dense<") + 6 : text.rindex(">", 0, text.rindex(": tensor"))]
    if body.startswith('"0x'):
        data = _from_bytes(bytes.fromhex(body[3:-1]), type_.dtype)
        return np.broadcast_to(data.reshape(()), type_.shape) if data.size == 1 else data.reshape(type_.shape)
    words = re.findall(r"[^\s,\[\]()]+", body)
    complex_type = type_.dtype in ("c64", "c128")
    part = {"c64": "f32", "c128": "f64"}.get(type_.dtype, type_.dtype)
    width = size_of(part)
    parts = [
        _from_bytes(int(word, 16).to_bytes(width, "little"), part)[0]
        if word.startswith("0x")
        else from_numeric(np.asarray(word, np.float64), part)[()]
        for word in words
    ]
    data = np.array(parts, STORAGE[part])
    if complex_type:
        data = data.view(STORAGE[type_.dtype])
    return np.broadcast_to(data.reshape(()), type_.shape) if data.size == 1 else data.reshape(type_.shape)


def _read_resource(operation: ir.Operation, attribute: str, type_: TensorType) -> Array:
    """Read a ``dense_resource``: the bindings show its bytes only in the printed form of the operation."""
    match = re.match(r"dense_resource<([^>]+)>", attribute)
    if match is None:
        raise JobError(
            "unsupported-op",
            f"a constant of the form {attribute[:80]} cannot be read",
            op=operation.name,
            location=location_text(operation.location),
        )
    # The blob is printed after the module, as `name: "0x<alignment, 4 bytes><data>"`.
    module = operation
    while module.parent is not None:
        module = module.parent.operation
    text = module.get_asm(large_resource_limit=None)
    found = re.search(rf'\b{re.escape(match[1])}: "0x([0-9A-Fa-f]+)"', text)
    if found is None:
        raise JobError(
            "invalid-module",
            f"the bytes of the constant {match[1]} are not in the module",
            op=operation.name,
            location=location_text(operation.location),
        )
    return _from_bytes(bytes.fromhex(found[1][8:]), type_.dtype).reshape(type_.shape)
