# SPDX-License-Identifier: Apache-2.0
"""The passes by themselves: what is taken out of a graph, and what is said about it."""

from __future__ import annotations

import pytest
import torch
from graph_tracing import inference_graph
from torch import fx

from libtorch_neuronx_lite._errors import CompileError
from libtorch_neuronx_lite.fx_passes import constants, editing, mutation
from libtorch_neuronx_lite.fx_passes.prepare import PreparedGraph, prepare
from libtorch_neuronx_lite.fx_passes.rng import threefry2x32


def _targets(prepared: PreparedGraph) -> list[str]:
    return [str(node.target) for node in prepared.gm.graph.nodes if node.op == "call_function"]


def _int32(word: int) -> torch.Tensor:
    return torch.tensor(word - (1 << 32) if word >> 31 else word, dtype=torch.int32)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_vectors(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    """The known-answer tests of Random123 for threefry2x32 with 20 rounds."""
    words = threefry2x32((_int32(key[0]), _int32(key[1])), (_int32(counter[0]), _int32(counter[1])))
    assert tuple(word.item() & 0xFFFFFFFF for word in words) == expected


def test_a_closing_copy_becomes_an_alias() -> None:
    def f(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return x * 2

    prepared = inference_graph(f, torch.ones(3), torch.ones(3), then=prepare)
    assert prepared.input_aliases() == {0: 0}
    assert prepared.results.plan == [("output", 1)]
    assert not any("copy_" in target and "_to_copy" not in target for target in _targets(prepared))


def test_a_returned_update_is_the_argument() -> None:
    prepared = inference_graph(lambda x, y: x.add_(y), torch.ones(3), torch.ones(3), then=prepare)
    assert prepared.results.plan == [("input", 0)]
    assert len(prepared.results.outputs) == 1


def test_a_write_into_a_value_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    value = graph.call_function(torch.ops.aten.add.Tensor, (x, x))
    graph.output((graph.call_function(torch.ops.aten.copy_.default, (value, x)),))
    with pytest.raises(CompileError, match="not an input of the graph"):
        mutation.take_mutations(fx.GraphModule({}, graph))


def test_unused_arguments_are_dropped_and_remembered() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        b.shape  # noqa: B018  (read, so that Dynamo passes it)
        return a + c

    def then(gm: fx.GraphModule) -> tuple[int, PreparedGraph]:
        return sum(node.op == "placeholder" for node in gm.graph.nodes), prepare(gm)

    count, prepared = inference_graph(f, torch.ones(2), torch.ones(5), torch.ones(2), then=then)
    assert prepared.argument_count == count
    assert len(prepared.arguments) == 2


def test_the_seed_is_the_last_input() -> None:
    prepared = inference_graph(lambda x: torch.rand_like(x) + x, torch.ones(3), then=prepare)
    placeholders = [node for node in prepared.gm.graph.nodes if node.op == "placeholder"]
    assert prepared.has_rng_seed
    assert prepared.arguments == [0]
    assert placeholders[-1].meta["val"].shape == (2,)
    assert placeholders[-1].meta["val"].dtype == torch.int64
    assert not any("rand" in target for target in _targets(prepared))


def test_large_constants_become_arguments_and_small_ones_literals() -> None:
    large, small, one = torch.randn(64, 64), torch.randn(3), torch.tensor(2.5)

    def then(gm: fx.GraphModule) -> tuple[list[torch.Tensor], fx.GraphModule]:
        for name, tensor in (("large", large), ("small", small), ("one", one)):
            gm.register_buffer(name, tensor)
            node = next(n for n in gm.graph.nodes if n.op == "call_function")
            with gm.graph.inserting_before(node):
                read = gm.graph.get_attr(name)
            with gm.graph.inserting_before(node):
                gm.graph.call_function(torch.ops.aten.neg.default, (read,))
        return constants.take_constants(gm), gm

    taken, gm = inference_graph(lambda x: x + 1, torch.ones(2), then=then)
    (constant,) = taken
    assert torch.equal(constant, large)
    assert sum(node.op == "get_attr" for node in gm.graph.nodes) == 1
    assert any(node.target is torch.ops.aten.full.default for node in gm.graph.nodes)


def test_no_graph_holds_f64_or_a_number_as_an_operand() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 0.3, i > 0.5, x.bfloat16() + 0.1, i / 2, x // 0.3

    prepared = inference_graph(f, torch.ones(3), torch.arange(3), then=prepare)
    for node in prepared.gm.graph.nodes:
        value = node.meta.get("val")
        assert not isinstance(value, torch.Tensor) or value.dtype != torch.float64
        if str(node.target).startswith(("aten.add", "aten.mul", "aten.gt", "aten.div")):
            assert all(isinstance(arg, fx.Node) for arg in node.args[:2])


def test_the_users_line_is_found() -> None:
    def line(gm: fx.GraphModule) -> str | None:
        return editing.source_line(next(n for n in gm.graph.nodes if n.op == "call_function"))

    found = inference_graph(lambda x: x.exp(), torch.ones(3), then=line)
    assert found is not None
    assert "test_passes.py:" in found
    assert "x.exp()" in found
