# SPDX-License-Identifier: Apache-2.0
"""One compiled function or module called in the ways programs do: threads, devices, copies, modes, state."""

from __future__ import annotations

import copy
import threading

import torch
from eager_oracle import DEVICE, compiled


class Counter(torch.nn.Module):
    """Tied weights, a counter buffer and a buffer written through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.out = torch.nn.Linear(8, 10, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(3, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.embed(ids)
        self.seen[1] = hidden.mean(0)
        self.seen.narrow(0, 2, 1).copy_(hidden[:1])
        return self.out(hidden) + self.calls


def test_several_threads() -> None:
    run = compiled(lambda x: (x @ x.t()).relu().sum(1))
    failures: list[BaseException] = []

    def call(number: int) -> None:
        try:
            for step in range(10):
                x = torch.full((4, 4), float(number + step))
                torch.testing.assert_close(run(x.to(DEVICE)).cpu(), (x @ x.t()).relu().sum(1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert failures == []


def test_two_devices_and_the_cpu() -> None:
    run = compiled(lambda x: x * 2 + torch.ones(5, device=x.device))
    x = torch.randn(5)
    for place in ("neuron:0", "neuron:1", "cpu", "neuron:0"):
        result = run(x.to(place))
        assert result.device == torch.device(place)
        torch.testing.assert_close(result.cpu(), x * 2 + 1)


def test_a_copy_of_a_compiled_module_has_its_own_state() -> None:
    module = Counter().eval().requires_grad_(False)
    run = compiled(copy.deepcopy(module).to(DEVICE))
    ids = torch.tensor([1, 3])
    with torch.no_grad():
        first = module(ids)
        torch.testing.assert_close(run(ids.to(DEVICE)).cpu(), first)
        twin = copy.deepcopy(run)
        second = module(ids)
        torch.testing.assert_close(twin(ids.to(DEVICE)).cpu(), second)
        torch.testing.assert_close(run(ids.to(DEVICE)).cpu(), second)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(run._orig_mod.state_dict()[name].cpu(), value)


def test_inference_mode_and_tensors_born_in_it() -> None:
    module = Counter().eval().requires_grad_(False)
    run = compiled(copy.deepcopy(module).to(DEVICE))
    ids = torch.tensor([1, 3])
    with torch.inference_mode():
        torch.testing.assert_close(run(ids.to(DEVICE)).cpu(), module(ids))
    with torch.no_grad():
        torch.testing.assert_close(run(ids.to(DEVICE)).cpu(), module(ids))
