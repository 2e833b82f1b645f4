# SPDX-License-Identifier: Apache-2.0
"""What every rank of the tests runs, under torchrun: named checks, whose outcomes go to a file for each rank."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import libtorch_neuronx_lite  # noqa: F401
from libtorch_neuronx_lite.compile.native_backend import register
from libtorch_neuronx_lite.distributed import rendezvous

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Add a check under its name."""
    CHECKS[function.__name__] = function
    return function


def rank_tensor(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the tensor that `rank` starts with: small whole numbers, so that every sum is exact."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def everyone(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return what all ranks start with."""
    return [rank_tensor(rank, *shape, dtype=dtype) for rank in range(dist.get_world_size())]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for the device; no part may run elsewhere."""
    return torch.compile(function, backend=register(), fullgraph=True, dynamic=False)


def all_ranks() -> dist.ProcessGroup:
    """Return the default group."""
    group = dist.group.WORLD
    assert group is not None
    return group


@check
def reductions_in_a_graph() -> None:
    world = all_ranks()

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(funcol.all_reduce(x * 1, kind, world) for kind in ("sum", "avg", "max", "min", "product"))

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        parts = torch.stack(everyone(5, 7, dtype=dtype))
        wide = parts.float()
        found = compiled(step)(parts[dist.get_rank()].to("neuron"))
        expected = (wide.sum(0), wide.mean(0), wide.amax(0), wide.amin(0), wide.prod(0))
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(value.cpu(), wanted.to(dtype), rtol=0, atol=0)


@check
def integers_in_a_graph() -> None:
    world = all_ranks()

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(funcol.all_reduce(x + 0, kind, world) for kind in ("sum", "max", "band", "bor", "bxor"))

    parts = torch.stack(everyone(33, dtype=torch.int64))
    found = compiled(step)(parts[dist.get_rank()].to("neuron"))
    fold = [parts.sum(0), parts.amax(0), parts[0], parts[0], parts[0]]
    for part in parts[1:]:
        fold[2:] = [fold[2] & part, fold[3] | part, fold[4] ^ part]
    for value, wanted in zip(found, fold, strict=True):
        torch.testing.assert_close(value.cpu(), wanted, rtol=0, atol=0)


@check
def exchanges_in_a_graph() -> None:
    world = all_ranks()
    size, rank = dist.get_world_size(), dist.get_rank()

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = funcol.all_gather_tensor(x, 0, world)
        columns = funcol.all_gather_tensor(x, 1, world)
        scattered = funcol.reduce_scatter_tensor(x, "sum", 1, world)
        swapped = funcol.all_to_all_single(x, None, None, world)
        sent = funcol.broadcast(x, size - 1, world)
        pair = funcol.all_reduce_coalesced([x, x * 2], "sum", world)
        return gathered, columns, scattered, swapped, sent, pair[1]

    parts = everyone(2 * size, 3 * size)
    found = compiled(step)(parts[rank].to("neuron"))
    total = torch.stack(parts).sum(0)
    expected = (
        torch.cat(parts, 0),
        torch.cat(parts, 1),
        total.chunk(size, 1)[rank],
        torch.cat([part.chunk(size, 0)[rank] for part in parts], 0),
        parts[-1],
        total * 2,
    )
    for value, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(value.cpu(), wanted, rtol=0, atol=0)


@check
def updates_in_place_in_a_graph() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    parts = everyone(4, 4)
    x = parts[dist.get_rank()].to("neuron")
    y = compiled(step)(x)
    total = torch.stack(parts).sum(0)
    torch.testing.assert_close(x.cpu(), total, rtol=0, atol=0)
    torch.testing.assert_close(y.cpu(), total + 1, rtol=0, atol=0)


@check
def many_calls_stay_in_step() -> None:
    world = all_ranks()
    step = compiled(lambda x: funcol.all_reduce(x, "sum", world) * 0.5)
    x, expected = torch.ones(64).to("neuron"), torch.ones(64)
    for _ in range(200):
        x = step(x)
        expected = torch.stack([expected] * dist.get_world_size()).sum(0) * 0.5
    torch.testing.assert_close(x.cpu(), expected)


@check
def eager_collectives_on_the_device() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = everyone(4, 2)
    x = parts[rank].to("neuron")
    dist.all_reduce(x)
    total = torch.stack(parts).sum(0)
    torch.testing.assert_close(x.cpu(), total, rtol=0, atol=0)

    x = parts[rank].to("neuron")
    dist.broadcast(x, src=size - 1)
    torch.testing.assert_close(x.cpu(), parts[-1], rtol=0, atol=0)

    x = parts[rank].to("neuron")
    gathered = torch.empty(4 * size, 2, device="neuron")
    work = dist.all_gather_into_tensor(gathered, x, async_op=True)
    assert work is not None
    work.wait()
    torch.testing.assert_close(gathered.cpu(), torch.cat(parts), rtol=0, atol=0)

    listed = [torch.empty(4, 2, device="neuron") for _ in range(size)]
    dist.all_gather(listed, x)
    torch.testing.assert_close(torch.stack([part.cpu() for part in listed]), torch.stack(parts), rtol=0, atol=0)

    mine = torch.empty(4, 2, device="neuron")
    dist.scatter(mine, [part.to("neuron") for part in parts] if rank == 0 else None, src=0)
    torch.testing.assert_close(mine.cpu(), parts[rank], rtol=0, atol=0)

    swapped = torch.empty(2 * size, device="neuron")
    dist.all_to_all_single(swapped, torch.arange(2.0 * size).to("neuron") + 100 * rank)
    expected = torch.cat([torch.arange(2.0) + 2 * rank + 100 * other for other in range(size)])
    torch.testing.assert_close(swapped.cpu(), expected, rtol=0, atol=0)

    received = torch.zeros(4, 2, device="neuron")
    works = [dist.irecv(received, (rank - 1) % size), dist.isend(x, (rank + 1) % size)]
    for pending in works:
        assert pending is not None
        pending.wait()
    torch.testing.assert_close(received.cpu(), parts[(rank - 1) % size], rtol=0, atol=0)
    dist.barrier()


@check
def functional_collectives_outside_a_graph() -> None:
    parts = everyone(6)
    value = funcol.all_reduce(parts[dist.get_rank()].to("neuron"), "sum", all_ranks())
    torch.testing.assert_close(value.cpu(), torch.stack(parts).sum(0), rtol=0, atol=0)


@check
def distributed_tensors() -> None:
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))
    whole = torch.arange(24.0).reshape(dist.get_world_size() * 2, -1)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().device.type == "neuron"
    assert sharded.to_local().shape[0] == 2
    torch.testing.assert_close(sharded.full_tensor().cpu(), whole, rtol=0, atol=0)
    torch.testing.assert_close(sharded.redistribute(mesh, [Replicate()]).to_local().cpu(), whole, rtol=0, atol=0)


@check
def a_llama_model_in_tensor_parallel() -> None:
    from transformers import LlamaConfig, LlamaModel

    size = dist.get_world_size()
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=96, max_position_embeddings=64, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(7)
    model = LlamaModel(config).eval()
    ids = torch.arange(12).reshape(2, 6) * 5 % 96
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        mesh = init_device_mesh("neuron", (size,))
        model.to("neuron")
        for layer in model.layers:
            parallelize_module(
                layer,
                mesh,
                {
                    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
                    "self_attn.o_proj": RowwiseParallel(),
                    "mlp.gate_proj": ColwiseParallel(),
                    "mlp.up_proj": ColwiseParallel(),
                    "mlp.down_proj": RowwiseParallel(),
                },
            )
        found = compiled(lambda ids: model(ids).last_hidden_state)(ids.to("neuron"))
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-5, atol=2e-5)


@check
def a_mesh_of_tensor_and_data_parallel_groups() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    rows, columns = (2, size // 2) if size % 2 == 0 else (1, size)
    mesh = init_device_mesh("neuron", (rows, columns), mesh_dim_names=("data", "tensor"))

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return funcol.all_reduce(x, "sum", mesh["tensor"]), funcol.all_reduce(x, "sum", mesh["data"])

    parts = everyone(3)
    tensor, data = compiled(step)(parts[rank].to("neuron"))
    grid = torch.stack(parts).reshape(rows, columns, 3)
    torch.testing.assert_close(tensor.cpu(), grid[rank // columns].sum(0), rtol=0, atol=0)
    torch.testing.assert_close(data.cpu(), grid[:, rank % columns].sum(0), rtol=0, atol=0)


@check
def experts_with_all_to_all() -> None:
    world = all_ranks()
    size, rank = dist.get_world_size(), dist.get_rank()
    weights = [torch.eye(4) * (expert + 2) for expert in range(size)]  # expert e lives on rank e
    own = weights[rank].to("neuron")

    def step(tokens: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        dispatched = funcol.all_to_all_single(tokens, None, None, world)
        return funcol.all_to_all_single(dispatched @ expert, None, None, world)

    tokens = rank_tensor(rank, size * 3, 4)  # three for each expert
    found = compiled(step)(tokens.to("neuron"), own)
    expected = torch.cat([part @ weights[e] for e, part in enumerate(tokens.chunk(size))])
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def main() -> None:
    """Run the checks that the command line names, all without a name."""
    folder = Path(sys.argv[1])
    names = sys.argv[2:] or list(CHECKS)
    dist.init_process_group("gloo")
    rendezvous()
    outcomes: dict[str, str] = {}
    for name in names:
        try:
            with torch.no_grad():
                CHECKS[name]()
            outcomes[name] = "ok"
        except Exception:  # the test that asks for this check shows it
            outcomes[name] = traceback.format_exc()
        (folder / f"{dist.get_rank()}.json").write_text(json.dumps(outcomes))
        if outcomes[name] != "ok":
            break  # ranks are out of step from here on
    os._exit(0 if all(outcome == "ok" for outcome in outcomes.values()) else 1)


if __name__ == "__main__":
    main()
