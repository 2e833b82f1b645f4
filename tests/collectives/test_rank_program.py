# SPDX-License-Identifier: Apache-2.0
"""Runs rank_program.py under torchrun and reports each of its checks as a test; then what becomes of a lost rank."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "rank_program.py"
# What the quick run leaves to four ranks, where a mesh has two dimensions.
CHECKS = (
    "reductions_in_a_graph",
    "integers_in_a_graph",
    "exchanges_in_a_graph",
    "updates_in_place_in_a_graph",
    "many_calls_stay_in_step",
    "eager_collectives_on_the_device",
    "functional_collectives_outside_a_graph",
    "distributed_tensors",
    "experts_with_all_to_all",
    "a_llama_model_in_tensor_parallel",
)
LONG_CHECKS = (*CHECKS, "a_mesh_of_tensor_and_data_parallel_groups")
_DEADLINE = 240  # seconds; the machine may be busy

Outcomes = list[dict[str, str]]


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "NEURON_RT_ROOT_COMM_ID"}
    return {**kept, "OMP_NUM_THREADS": "1", "NEURON_LIBTORCH_EAGER_FALLBACK": "allow", **more}


def torchrun(ranks: int, folder: Path, *names: str, **environment: str) -> Outcomes:
    """Run the named checks on so many ranks; return the outcomes of each."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    result = subprocess.run(
        [*command, str(PROGRAM), str(folder), *names],
        env=_environment(**environment),
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
    )
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), f"{result.stdout}\n{result.stderr}"
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of every quick check on two ranks: one launch for all tests."""
    return torchrun(2, tmp_path_factory.mktemp("ranks"), *CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(two_ranks: Outcomes, name: str) -> None:
    for rank, outcomes in enumerate(two_ranks):
        assert outcomes.get(name, "not reached") == "ok", f"rank {rank}: {outcomes.get(name)}"


@pytest.mark.long
def test_four_ranks(tmp_path: Path) -> None:
    for rank, outcomes in enumerate(torchrun(4, tmp_path, *LONG_CHECKS)):
        assert outcomes == dict.fromkeys(LONG_CHECKS, "ok"), f"rank {rank}"


@pytest.mark.long
def test_over_tcp(tmp_path: Path) -> None:
    names = ("reductions_in_a_graph", "exchanges_in_a_graph", "many_calls_stay_in_step")
    outcomes = torchrun(3, tmp_path, *names, NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT="tcp")
    assert outcomes == [dict.fromkeys(names, "ok")] * 3


_LOSES_A_RANK = """
    import os, signal, sys
    import torch, torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    import libtorch_neuronx_lite
    from libtorch_neuronx_lite.compile.native_backend import register

    dist.init_process_group("gloo")
    step = torch.compile(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD), backend=register(), fullgraph=True)
    x = torch.ones(1024).to("neuron")
    with torch.no_grad():
        assert step(x).cpu()[0].item() == 2
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            step(x).cpu()
        except RuntimeError as error:
            print("ERROR:", error, flush=True)
            os._exit(3)
"""


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store, socket.create_server(("127.0.0.1", 0)) as root:
        ports = store.getsockname()[1], root.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_LOSES_A_RANK)],
            env=_environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(ports[0]),
                NEURON_RT_ROOT_COMM_ID=f"127.0.0.1:{ports[1]}",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=_DEADLINE)[0] for process in ranks]
    assert ranks[1].returncode == -signal.SIGKILL, outputs[1]
    assert ranks[0].returncode == 3, outputs[0]
    message = next(line for line in outputs[0].splitlines() if line.startswith("ERROR:"))
    assert "NRT_EXEC_HW_ERR_COLLECTIVES" in message
    assert f"rank 1 (process {ranks[1].pid} at 127.0.0.1)" in message
    assert "ended without closing its runtime" in message


def test_the_backend_neuron_is_refused_with_what_to_write(fresh_python: Callable[..., str]) -> None:
    fresh_python("""
        import warnings
        import torch, torch.distributed as dist
        import libtorch_neuronx_lite
        warnings.simplefilter("default")
        try:
            dist.init_process_group("neuron", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        except RuntimeError as error:
            assert "torch-neuronx" in str(error) and 'init_process_group("gloo")' in str(error), error
        else:
            raise AssertionError("accepted")
    """)


def test_collectives_without_a_meeting_place_say_what_to_set(fresh_python: Callable[..., str]) -> None:
    fresh_python("""
        import warnings
        warnings.simplefilter("default")
        import torch, torch.distributed as dist
        import torch.distributed._functional_collectives as funcol
        from torch.testing._internal.distributed.fake_pg import FakeStore
        import libtorch_neuronx_lite
        from libtorch_neuronx_lite.compile.native_backend import register
        from libtorch_neuronx_lite.distributed import rendezvous

        try:
            rendezvous()
        except RuntimeError as error:
            assert "init_process_group" in str(error), error
        else:
            raise AssertionError("accepted")
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        step = torch.compile(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD), backend=register())
        with torch.no_grad():
            try:
                step(torch.ones(2).to("neuron"))
            except Exception as error:
                assert "NRT_INVALID" in str(error), error
            else:
                raise AssertionError("accepted")
    """)
