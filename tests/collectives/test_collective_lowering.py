# SPDX-License-Identifier: Apache-2.0
"""Functional collectives in StableHLO: their groups, equal programs on all ranks, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from libtorch_neuronx_lite._errors import CompileError
from libtorch_neuronx_lite.compile import tracing
from libtorch_neuronx_lite.fx_passes.collectives import replica_groups
from libtorch_neuronx_lite.fx_passes.prepare import prepare
from libtorch_neuronx_lite.stablehlo.lower import lower

WORLD = 4


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_group_of_a_mesh_tells_the_others(sizes: list[int], data: st.DataObject) -> None:
    world = torch.Size(sizes).numel()
    ranks = torch.arange(world).reshape(sizes)
    dim = data.draw(st.integers(0, len(sizes) - 1))
    groups = ranks.movedim(dim, -1).reshape(-1, sizes[dim]).tolist()
    for group in groups:
        assert sorted(replica_groups(group, world)) == sorted(tuple(other) for other in groups)


@pytest.mark.parametrize("ranks", [[0, 3], [1, 2], [3, 2], [0, 1, 3]])
def test_a_group_of_no_mesh_stands_alone(ranks: list[int]) -> None:
    assert replica_groups(ranks, 4) == (tuple(ranks),)


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """A mesh of two by two in a world of four, as rank 0 or the given one sees it; no other process is there."""
    dist.init_process_group("fake", rank=getattr(request, "param", 0), world_size=WORLD, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    dist.destroy_process_group()


def stablehlo_of(function: Callable[..., Any], *inputs: torch.Tensor, tmp_path: Any) -> str:
    """Return the text of the function's lowering."""
    found: list[str] = []

    def compiler(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        prepared = prepare(gm)
        assert prepared.world is not None
        module = lower(
            prepared.gm, prepared.input_aliases(), name="g", repro_dir=tmp_path, replicas=prepared.world.size
        )
        found.append(module.text())
        return lambda args: tuple(torch.zeros(()) for _ in prepared.results.plan)

    def backend(gm: fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        tracing.trace(gm, example, compiler)
        return lambda *_: (None,) * 9

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return found[0]


@pytest.mark.parametrize("mesh", [0, 3], indirect=True)
def test_every_rank_lowers_to_one_program(mesh: DeviceMesh, tmp_path: Any) -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        summed = funcol.all_reduce(x, "sum", mesh["tensor"])
        gathered = funcol.all_gather_tensor(summed, 0, mesh["data"])
        scattered = funcol.reduce_scatter_tensor(gathered, "max", 0, mesh["tensor"])
        swapped = funcol.all_to_all_single(scattered, None, None, mesh["tensor"])
        return (funcol.broadcast(swapped, 1, mesh["tensor"]),)

    text = stablehlo_of(step, torch.ones(4, 4), tmp_path=tmp_path)
    operations = re.findall(r'"stablehlo\.(\w+)"\(.*?replica_groups = dense<(.*?)> : tensor', text, re.DOTALL)
    rows, columns = "[[0, 1], [2, 3]]", "[[0, 2], [1, 3]]"
    assert operations == [
        ("all_reduce", rows),
        ("all_gather", columns),
        ("reduce_scatter", rows),
        ("all_to_all", rows),
        ("collective_broadcast", "[[1, 0], [3, 2]]"),
    ]
    assert "mhlo.num_replicas = 4" in text


def test_a_group_of_one_leaves_no_collective(mesh: DeviceMesh, tmp_path: Any) -> None:
    alone = dist.new_group([dist.get_rank()])
    text = stablehlo_of(lambda x: (funcol.all_reduce(x, "avg", alone) + 1,), torch.ones(4), tmp_path=tmp_path)
    assert "all_reduce" not in text


def test_unequal_splits_are_refused(mesh: DeviceMesh, tmp_path: Any) -> None:
    with pytest.raises(Exception, match=r"splits \[1, 3\] to \[1, 3\] are not equal.*pad each piece") as raised:
        stablehlo_of(
            lambda x: (funcol.all_to_all_single(x, [1, 3], [1, 3], mesh["tensor"]),), torch.ones(4), tmp_path=tmp_path
        )
    assert "CompileError" in str(raised.value) or isinstance(raised.value, CompileError)


def test_an_average_of_integers_is_refused(mesh: DeviceMesh, tmp_path: Any) -> None:
    with pytest.raises(Exception, match=r"'avg' of torch\.int64 has no exact result"):
        stablehlo_of(lambda x: (funcol.all_reduce(x, "avg", mesh["tensor"]),), torch.arange(4), tmp_path=tmp_path)
