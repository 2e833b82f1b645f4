# SPDX-License-Identifier: Apache-2.0
"""What the compiler takes, what it refuses and how, and the container it writes."""

# ruff: noqa: E501 - lines of MLIR are not wrapped

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from host_program_oracle import HostProgram
from stablehlo_reference import check, main, sample, tensor

from libtorch_neuronx_lite import hostcc
from libtorch_neuronx_lite.hostcc.compiler import compile_module
from libtorch_neuronx_lite.hostcc.neff import HEADER_BYTES, write_neff
from libtorch_neuronx_lite.worker import JobError

ADD = "func.func @main(%a: tensor<2x3xbf16>) -> tensor<2x3xbf16> {\n  %r = stablehlo.add %a, %a : tensor<2x3xbf16>\n  return %r : tensor<2x3xbf16>\n}"


def test_equal_modules_give_equal_bytes_in_any_form(tmp_path: Path) -> None:
    from libtorch_neuronx_lite.hostcc.reader import is_portable_artifact, new_context, parse_module

    first = hostcc.compile_stablehlo(ADD.encode(), name="graph")
    assert hostcc.compile_stablehlo(ADD.encode(), name="graph") == first
    artifact = HostProgram(first).files["sg00/module.stablehlo"]
    assert is_portable_artifact(artifact)
    assert HostProgram(hostcc.compile_stablehlo(artifact, name="graph")).program == HostProgram(first).program
    stream = io.BytesIO()
    parse_module(new_context(), ADD.encode()).operation.write_bytecode(stream)
    assert HostProgram(hostcc.compile_stablehlo(stream.getvalue(), name="graph")).program == HostProgram(first).program


def test_the_header_is_true() -> None:
    neff = hostcc.compile_stablehlo(ADD.encode(), name="graph")
    package, header, data, major, minor = struct.unpack_from("<5Q", neff)
    build, cores, digest, uuid, name = struct.unpack_from("<128sI32s16s256s", neff, 40)
    assert (package, header, data, major, minor, cores) == (2, HEADER_BYTES, len(neff) - HEADER_BYTES, 2, 0, 1)
    assert digest == hashlib.sha256(neff[HEADER_BYTES:]).digest()
    assert uuid[6] >> 4 == 8  # RFC 9562's custom version
    assert struct.unpack_from("<I64sQI", neff, 476) == (1, b"\x01".ljust(64, b"\0"), 0, 1)
    assert name.rstrip(b"\0") == b"graph"
    assert build.startswith(b"hostcc ")
    program = HostProgram(neff)
    assert json.loads(program.files["neff.json"])["target"] == "host"
    entry = {"type": "input", "var_id": 0, "size": 12, "dtype": "bf16", "shape": [2, 3]}
    assert program.signature == {"input0": entry, "output0": {**entry, "type": "output"}}


def test_the_uuid_follows_the_content_and_the_order_of_files_does_not() -> None:
    files = {"b": b"2", "a": b"1"}
    first = write_neff("n", files, build_version="x")
    assert first == write_neff("n", dict(reversed(files.items())), build_version="x")
    assert first[204:220] != write_neff("n", {**files, "a": b"3"}, build_version="x")[204:220]
    with tarfile.open(fileobj=io.BytesIO(first[HEADER_BYTES:])) as archive:
        assert [(member.name, member.mtime) for member in archive] == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("name", ["x" * 400, "ü" * 200, "a/b c"])
def test_any_graph_name_fits_the_header(name: str) -> None:
    raw = write_neff(name, {"a": b""}, build_version="x")[220:476].rstrip(b"\0")
    assert raw.decode("ascii") == name.replace("ü", "_")[:255]


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        ('%r = stablehlo.custom_call @mystery(%a0) : (tensor<2x2xf32>) -> tensor<2x2xf32>', "stablehlo.custom_call"),
        ("%r = stablehlo.cholesky %a0, lower = true : tensor<2x2xf32>", "stablehlo.cholesky"),
        (
            """%r = stablehlo.while(%x = %a0) : tensor<2x2xf32>
    cond { %c = stablehlo.constant dense<true> : tensor<i1>
           stablehlo.return %c : tensor<i1> }
    do { %y = stablehlo.add %x, %x : tensor<2x2xf32>
         stablehlo.return %y : tensor<2x2xf32> }""",
            "stablehlo.while",
        ),
        (
            """%z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%a0 init: %z) across dimensions = [0] : (tensor<2x2xf32>, tensor<f32>) -> tensor<2xf32>
    reducer(%x: tensor<f32>, %y: tensor<f32>) { %d = stablehlo.divide %x, %y : tensor<f32>
                                              stablehlo.return %d : tensor<f32> }
  %r = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<2xf32>) -> tensor<2x2xf32>""",
            "stablehlo.reduce",
        ),
        (
            """%i = stablehlo.iota dim = 1 : tensor<2x2xi32>
  %r, %j = "stablehlo.sort"(%a0, %i) <{dimension = 1 : i64}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<i32>, %q: tensor<i32>):
      %c = stablehlo.compare LT, %p, %q, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }) : (tensor<2x2xf32>, tensor<2x2xi32>) -> (tensor<2x2xf32>, tensor<2x2xi32>)""",
            "stablehlo.sort",
        ),
        ("%r = stablehlo.reduce_precision %a0, format = e4m3 : tensor<2x2xf32>", "stablehlo.reduce_precision"),
    ],
)  # fmt: skip
def test_what_has_no_lowering_is_refused_by_name_place_and_graph(op: str, fault: str) -> None:
    module = main([((2, 2), "f32")], ["tensor<2x2xf32>"], op + ' loc("model.py":12:3)', "%r")
    with pytest.raises(JobError, match="in graph 'my graph'") as raised:
        compile_module(module.encode(), "my graph", "test")
    assert raised.value.kind == "unsupported-op"
    assert raised.value.op == fault
    assert raised.value.location is not None
    if "reduce(" not in op:  # the last line's location is the op's
        assert "model.py" in raised.value.location


def test_a_shape_that_stays_unknown_is_refused() -> None:
    module = "func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {\n  return %a : tensor<?xf32>\n}"
    with pytest.raises(JobError, match=r"tensor<\?xf32>: every size must be known") as raised:
        compile_module(module.encode(), "g", "test")
    assert raised.value.kind == "dynamic-shape"


def test_an_element_type_that_the_target_does_not_hold() -> None:
    module = "func.func @main(%a: tensor<2xi4>) -> tensor<2xi4> {\n  return %a : tensor<2xi4>\n}"
    with pytest.raises(JobError, match="elements of type i4; the host target holds i1"):
        compile_module(module.encode(), "g", "test")


def test_dynamic_ops_with_known_operands_become_static() -> None:
    body = """%n = stablehlo.constant dense<[4]> : tensor<1xi64>
  %i = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
  %s = stablehlo.constant dense<[2, 4]> : tensor<2xi64>
  %b = stablehlo.dynamic_broadcast_in_dim %i, %s, dims = [1] : (tensor<?xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  %t = stablehlo.constant dense<[8]> : tensor<1xi64>
  %f = stablehlo.dynamic_reshape %b, %t : (tensor<?x?xf32>, tensor<1xi64>) -> tensor<8xf32>
  %r = stablehlo.add %f, %a0 : tensor<8xf32>"""
    values = sample((8,), "f32", np.random.default_rng(0))
    module = main([((8,), "f32")], ["tensor<8xf32>"], body, "%r")
    (got,) = HostProgram(compile_module(module.encode(), "g", "t")[0]).run([values])
    np.testing.assert_array_equal(got, values + np.tile(np.arange(4, dtype=np.float32), 2))


def test_a_chain_of_f64_constants_leaves_no_f64() -> None:
    body = """%one = stablehlo.constant dense<1> : tensor<i64>
  %eight = stablehlo.constant dense<8> : tensor<i64>
  %a = stablehlo.convert %one : (tensor<i64>) -> tensor<f64>
  %b = stablehlo.convert %eight : (tensor<i64>) -> tensor<f64>
  %d = stablehlo.divide %b, %a : tensor<f64>
  %c = stablehlo.ceil %d : tensor<f64>
  %n = stablehlo.convert %c : (tensor<f64>) -> tensor<i64>
  %s = stablehlo.reshape %n : (tensor<i64>) -> tensor<1xi64>
  %i = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<8xi64>
  %m = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<i64>) -> tensor<8xi64>
  %p = stablehlo.multiply %i, %m : tensor<8xi64>
  %q = stablehlo.compare LE, %p, %a0, SIGNED : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi1>"""
    types = [((8,), "i64")]
    program = check(main(types, ["tensor<8xi1>"], body, "%q"), types)
    assert program.ops() == ["compare"]
    assert len(program.constants) == 64  # the eight numbers


def test_alpha_and_beta_of_one_cost_nothing() -> None:
    body = """%one = arith.constant dense<1.000000e+00> : tensor<1xf64>
  %f = stablehlo.convert %one : (tensor<1xf64>) -> tensor<1xf32>
  %s = stablehlo.reshape %f : (tensor<1xf32>) -> tensor<f32>
  %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  %x = stablehlo.multiply %a0, %b : tensor<3x4xf32>
  %y = stablehlo.multiply %b, %a1 : tensor<3x4xf32>
  %r = stablehlo.add %x, %y : tensor<3x4xf32>"""
    types = [((3, 4), "f32")] * 2
    rng = np.random.default_rng(0)
    inputs = [sample((3, 4), "f32", rng), sample((3, 4), "f32", rng)]
    program = HostProgram(compile_module(main(types, ["tensor<3x4xf32>"], body, "%r").encode(), "g", "t")[0])
    assert program.ops() == ["add"]
    np.testing.assert_array_equal(program.run(inputs)[0], inputs[0] + inputs[1])


def test_minus_zero_survives() -> None:
    body = """%z = stablehlo.constant dense<0.0> : tensor<2xf32>
  %r = stablehlo.add %a0, %z : tensor<2xf32>
  %m = stablehlo.constant dense<-0.0> : tensor<2xf32>
  %q = stablehlo.add %a0, %m : tensor<2xf32>"""
    types = [((2,), "f32")]
    values = np.array([-0.0, 0.0], np.float32)
    program = HostProgram(compile_module(main(types, ["tensor<2xf32>"] * 2, body, "%r, %q").encode(), "g", "t")[0])
    plus, minus = program.run([values])
    assert not np.signbit(plus).any()
    assert np.signbit(minus).tolist() == [True, False]


def test_a_bf16_round_trip_that_loses_bits_stays() -> None:
    body = """%n = stablehlo.convert %a0 : (tensor<9xf32>) -> tensor<9xbf16>
  %w = stablehlo.convert %n : (tensor<9xbf16>) -> tensor<9xf32>
  %e = stablehlo.convert %w : (tensor<9xf32>) -> tensor<9xbf16>"""
    types = [((9,), "f32")]
    program = check(main(types, ["tensor<9xf32>", "tensor<9xbf16>"], body, "%w, %e"), types)
    (step,) = (step for step in program.program["steps"] if step["op"] == "fused")
    assert step["attrs"]["program"] == [["convert", "bf16", 0], ["convert", "f32", 1]]


@pytest.mark.parametrize("name", ["erf", "lgamma", "sinh", "erf_inv", "is_inf"])
def test_chlo_ops_are_steps(name: str) -> None:
    result = "tensor<4xi1>" if name == "is_inf" else "tensor<4xf32>"
    module = main([((4,), "f32")], [result], f"%r = chlo.{name} %a0 : tensor<4xf32> -> {result}", "%r")
    assert HostProgram(compile_module(module.encode(), "g", "t")[0]).ops() == [name]


def test_chlo_ops_without_a_step_are_expanded() -> None:
    body = "%r = chlo.broadcast_add %a0, %a1 : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>"
    module = main([((3, 4), "f32"), ((4,), "f32")], ["tensor<3x4xf32>"], body, "%r")
    assert HostProgram(compile_module(module.encode(), "g", "t")[0]).ops() == ["add"]


def test_top_k() -> None:
    body = "%r:2 = chlo.top_k(%a0, k = 2) : tensor<3x5xf32> -> (tensor<3x2xf32>, tensor<3x2xi32>)"
    module = main([((3, 5), "f32")], ["tensor<3x2xf32>", "tensor<3x2xi32>"], body, "%r#0, %r#1")
    program = HostProgram(compile_module(module.encode(), "g", "t")[0])
    values, indices = program.run([np.array([[1, 5, 5, 0, 2], [3, 3, 3, 3, 3], [0, 1, 2, 3, 4]], np.float32)])
    assert values.tolist() == [[5, 5], [3, 3], [4, 3]]
    assert indices.tolist() == [[1, 2], [0, 1], [4, 3]]


def test_constants_kept_as_resources() -> None:
    module = (
        f"{main([], [tensor((2, 2), 'f32')], '%r = stablehlo.constant dense_resource<w> : tensor<2x2xf32>', '%r')}\n"
        '{-# dialect_resources: { builtin: { w: "0x040000000000803f000000400000404000008040" } } #-}'
    )
    (got,) = HostProgram(compile_module(module.encode(), "g", "t")[0]).run([])
    assert got.tolist() == [[1, 2], [3, 4]]


def test_equal_constants_are_stored_once_and_splats_as_one_element() -> None:
    body = """%c = stablehlo.constant dense<2.5> : tensor<64x64xf32>
  %d = stablehlo.constant dense<2.5> : tensor<8xf32>
  %e = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %f = stablehlo.constant dense<[[1.0, 2.0, 3.0]]> : tensor<1x3xf32>
  %x = stablehlo.multiply %a0, %c : tensor<64x64xf32>"""
    types = [((64, 64), "f32")]
    results = ["tensor<64x64xf32>", "tensor<8xf32>", "tensor<3xf32>", "tensor<1x3xf32>"]
    assert len(check(main(types, results, body, "%x, %d, %e, %f"), types).constants) == 128


def test_temporaries_reuse_memory() -> None:
    lines = ["%v0 = stablehlo.transpose %a0, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>"]
    for i in range(1, 20):
        lines.append(
            f"%v{i} = stablehlo.dot_general %v{i - 1}, %a0, contracting_dims = [1] x [0] : "
            "(tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>"
        )
    types = [((64, 64), "f32")]
    body = "\n".join(lines)
    neff, info = compile_module(main(types, ["tensor<64x64xf32>"], body, "%v19").encode(), "g", "t")
    assert info["arena_bytes"] == 2 * 64 * 64 * 4
    assert HostProgram(neff).ops() == ["dot_general"] * 19


def test_elementwise_chains_work_in_one_place() -> None:
    lines = ["%v0 = stablehlo.negate %a0 : tensor<100xf64>"]
    lines += [f"%v{i} = stablehlo.multiply %v{i - 1}, %a1 : tensor<100xf64>" for i in range(1, 10)]
    lines.append("%z = stablehlo.constant dense<0.0> : tensor<f64>")
    lines.append(
        "%r = stablehlo.reduce(%v9 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<100xf64>, tensor<f64>) -> tensor<f64>"
    )
    types = [((100,), "f64")] * 2
    _, info = compile_module(main(types, ["tensor<f64>"], "\n".join(lines), "%r").encode(), "g", "t")
    assert info["arena_bytes"] == 832  # one vector of 800 bytes, aligned; f64 is not fused
