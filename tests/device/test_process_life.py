# SPDX-License-Identifier: Apache-2.0
"""The first use, fork, close and exit: no hang, no crash, one clear sentence."""

from __future__ import annotations

import pytest

from fresh_process import FreshPython

ALLOW = {"NEURON_LIBTORCH_EAGER_FALLBACK": "allow"}


def test_a_forked_child_is_told(fresh_python: FreshPython) -> None:
    out = fresh_python(
        """
        import multiprocessing, torch, libtorch_neuronx_lite

        def child(queue, tensor):
            said = [str(torch.neuron._is_in_bad_fork())]
            for use in (lambda: torch.zeros(1).to("neuron"), lambda: torch.empty(1, device="neuron"),
                        lambda: tensor.cpu(), lambda: torch.neuron.synchronize(), lambda: torch.neuron.init(),
                        lambda: torch.neuron.mem_get_info(), lambda: torch.ones(4).pin_memory()):
                try:
                    use()
                    said.append("worked")
                except RuntimeError as error:
                    said.append(str(error))
            said.append(str(pinned.is_pinned()))
            torch.manual_seed(3)                       # must stay quiet in the child
            said.append(str(torch.ones(3).sum().item()))
            del tensor                                 # freeing the parent's memory is harmless
            queue.put(said)

        tensor = torch.ones(4).to("neuron")
        pinned = torch.ones(4).pin_memory()
        torch.ones(4).pin_memory()                     # a cached buffer, which the child must not be given
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue, tensor))
        process.start()
        said = queue.get(timeout=60)
        process.join(60)
        assert process.exitcode == 0, process.exitcode
        assert said[0] == "True", said
        for text in said[1:-2]:
            assert "fork" in text and "spawn" in text, text
        assert said[-2:] == ["False", "3.0"], said
        assert pinned.is_pinned()
        assert tensor.cpu().tolist() == [1, 1, 1, 1]
        assert not torch.neuron._is_in_bad_fork()
        print("done")
        """,
        **ALLOW,
    )
    assert "done" in out


def test_fork_before_the_first_use_is_fine(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import os, torch, libtorch_neuronx_lite
        assert torch.neuron.device_count() == 2
        torch.manual_seed(1)
        pid = os.fork()
        if pid == 0:
            good = not torch.neuron._is_in_bad_fork() and torch.ones(2).to("neuron").cpu().tolist() == [1, 1]
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """,
        **ALLOW,
    )


def test_a_data_loader_with_forked_workers(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        from torch.utils.data import DataLoader, TensorDataset
        torch.ones(1).to("neuron")
        loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1, pin_memory=True,
                            multiprocessing_context="fork")
        batches = [batch.to("neuron").cpu().tolist() for (batch,) in loader]
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]], batches
        """,
        **ALLOW,
    )


def test_after_close(fresh_python: FreshPython) -> None:
    fresh_python(
        """
        import gc, torch, libtorch_neuronx_lite
        from libtorch_neuronx_lite import _C
        tensor = torch.ones(1000).to("neuron")
        view = tensor[5:]
        pinned = torch.ones(4).pin_memory()
        graph = (tensor.requires_grad_() * 2).sum()
        stream, event = torch.Stream("neuron"), torch.Event("neuron")
        event.record()
        _C.close_runtime()
        _C.close_runtime()
        assert not torch.neuron.is_initialized()
        for use in (lambda: tensor.cpu(), lambda: view[0].item(), lambda: torch.empty(3, device="neuron"),
                    lambda: view.detach().fill_(2), lambda: torch.empty(0, device="neuron"),
                    lambda: torch.zeros(2).to("neuron"), lambda: torch.neuron.init(),
                    lambda: torch.neuron.mem_get_info(), lambda: torch.ones(1 << 20).pin_memory()):
            try:
                use()
            except RuntimeError as error:
                assert "closed" in str(error), error
            else:
                raise AssertionError(f"line {use.__code__.co_firstlineno} worked after close")
        assert pinned.sum().item() == 4
        del tensor, view, graph, stream, event
        gc.collect()
        torch.accelerator.empty_host_cache()
        assert torch.neuron.device_count() == 2
        """,
        **ALLOW,
    )


def test_tensors_alive_at_exit(fresh_python: FreshPython) -> None:
    """In module globals, in a cycle, in another thread's frame, with work still queued."""
    fresh_python(
        """
        import sys, threading, torch, libtorch_neuronx_lite
        kept = [torch.ones(100).to("neuron") for _ in range(10)]
        kept.append(kept)
        sys.kept = kept
        kept[0].copy_(torch.ones(100).pin_memory(), non_blocking=True)
        event = torch.Event("neuron", enable_timing=True)
        event.record()
        held = threading.Event()
        def hold():
            mine = torch.ones(5).to("neuron")
            held.set()
            threading.Event().wait(30)
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        generator = torch.neuron.default_generators
        """,
        NEURON_LIBTORCH_HOST_FAULTS="delay_ms:tensor_write=100",
        **ALLOW,
    )


@pytest.mark.parametrize("attempt", range(3))
def test_exit_right_after_a_backward_pass(fresh_python: FreshPython, attempt: int) -> None:
    """torch's autograd thread may still want the GIL when the interpreter ends."""
    fresh_python(
        """
        import torch, libtorch_neuronx_lite
        model = torch.nn.Linear(4, 2).to("neuron")
        model(torch.ones(1, 4).to("neuron")).sum().backward()
        """,
        **ALLOW,
    )


def test_an_unknown_variable_is_named_at_first_use_not_at_import(fresh_python: FreshPython) -> None:
    result = fresh_python.run(
        """
        import sys, torch, libtorch_neuronx_lite
        print("imported", file=sys.stderr, flush=True)
        torch.empty(1, device="neuron")
        torch.empty(1, device="neuron:1")
        """,
        NEURON_LIBTORCH_EAGER_FALBACK="warn",
    )
    assert result.returncode == 0, result.stderr
    before, _, after = result.stderr.partition("imported")
    assert "FALBACK" not in before
    assert after.count("NEURON_LIBTORCH_EAGER_FALBACK") == 1
    assert "NEURON_LIBTORCH_EAGER_FALLBACK" in after


def test_a_runtime_that_does_not_load_is_an_error_at_first_use(fresh_python: FreshPython) -> None:
    out = fresh_python(
        """
        import torch, libtorch_neuronx_lite
        assert not torch.neuron.is_available()
        assert torch.neuron.device_count() == 0
        assert not torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator(check_available=True) is None
        torch.manual_seed(1)
        try:
            torch.empty(1, device="neuron")
        except RuntimeError as error:
            print(error)
        """,
        NEURON_LIBTORCH_RUNTIME="nrt",
        NEURON_LIBTORCH_NRT_LIBRARY="/nowhere/libnrt.so.1",
    )
    assert "/nowhere/libnrt.so.1" in out


def test_the_gil_is_not_held_while_waiting(fresh_python: FreshPython) -> None:
    """A thread that waits for the device lets other Python threads run."""
    fresh_python(
        """
        import threading, time, torch, libtorch_neuronx_lite
        device = torch.zeros(10).to("neuron")
        for wait in (torch.neuron.synchronize, torch.neuron.empty_cache, lambda: torch.neuron.empty_cache(0),
                     lambda: event.synchronize()):
            device.copy_(torch.ones(10).pin_memory(), non_blocking=True)
            event = torch.Event("neuron")
            event.record()
            steps = 0
            done = threading.Event()
            def count():
                global steps
                while not done.is_set():
                    steps += 1
                    time.sleep(0.005)
            thread = threading.Thread(target=count)
            thread.start()
            steps = 0
            wait()
            seen = steps
            done.set()
            thread.join()
            assert event.query()
            assert seen >= 5, (wait, seen)
        """,
        NEURON_LIBTORCH_HOST_FAULTS="delay_ms:tensor_write=300",
        **ALLOW,
    )
