# SPDX-License-Identifier: Apache-2.0
"""Saving and loading: torch.save and load, map_location, state_dict, pickle, deepcopy, safetensors-style reads."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from fresh_process import FreshPython


def roundtrip(obj: object, **load: object) -> object:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, **load)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64])
def test_a_tensor_comes_back_on_its_device(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).to(dtype).to("neuron:1")
    loaded = roundtrip(tensor)
    assert isinstance(loaded, torch.Tensor)
    assert loaded.device == torch.device("neuron:1")
    assert loaded.dtype == dtype
    assert torch.equal(loaded.cpu(), tensor.cpu())


@pytest.mark.parametrize(
    ("map_location", "device"),
    [
        ("cpu", "cpu"),
        ("neuron:1", "neuron:1"),
        (torch.device("neuron:0"), "neuron:0"),
        ({"neuron:1": "neuron:0"}, "neuron:0"),
        (lambda storage, location: storage, "cpu"),
    ],
)
def test_map_location(map_location: object, device: str) -> None:
    loaded = roundtrip(torch.arange(3.0).to("neuron:1"), map_location=map_location)
    assert isinstance(loaded, torch.Tensor)
    assert loaded.device == torch.device(device)
    assert loaded.cpu().tolist() == [0.0, 1.0, 2.0]


def test_from_the_cpu_to_the_device() -> None:
    loaded = roundtrip({"a": torch.ones(2)}, map_location="neuron:1")
    assert loaded["a"].device == torch.device("neuron:1")  # type: ignore[index]


def test_views_keep_sharing_one_storage() -> None:
    base = torch.arange(10.0).to("neuron")
    first, second = roundtrip([base[2:6], base])  # type: ignore[misc]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    first.fill_(-1)
    assert second.cpu().tolist() == [0, 1, -1, -1, -1, -1, 6, 7, 8, 9]


def test_a_device_that_does_not_exist_here(fresh_python: FreshPython) -> None:
    """A checkpoint of a larger machine: the error names the range, and map_location is the way out."""
    fresh_python(
        """
        import io, torch, libtorch_neuronx_lite
        buffer = io.BytesIO()
        torch.save(torch.ones(2).to("neuron:1"), buffer)
        data = buffer.getvalue().replace(b"neuron:1", b"neuron:6")
        try:
            torch.load(io.BytesIO(data))
        except (RuntimeError, ValueError) as error:
            assert "6" in str(error) and "neuron" in str(error), error
        else:
            raise AssertionError("loaded")
        assert torch.load(io.BytesIO(data), map_location="cpu").tolist() == [1, 1]
        """,
        NEURON_LIBTORCH_EAGER_FALLBACK="allow",
    )


def test_state_dict() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("neuron")
    state = roundtrip(model.state_dict())
    assert all(value.is_neuron for value in state.values())  # type: ignore[attr-defined]
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(state)  # type: ignore[arg-type]
    assert not next(other.parameters()).is_neuron
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.cpu(), theirs)
    fresh = torch.nn.Linear(3, 4, device="meta")
    fresh.load_state_dict({"weight": model[0].weight.detach(), "bias": model[0].bias.detach()}, assign=True)
    assert fresh.weight.is_neuron


def test_optimizer_state() -> None:
    weight = torch.nn.Parameter(torch.ones(3).to("neuron"))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    (weight * 2).sum().backward()
    optimizer.step()
    state = roundtrip(optimizer.state_dict())
    other = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3).to("neuron"))], lr=0.1)
    other.load_state_dict(state)  # type: ignore[arg-type]
    restored = other.state_dict()["state"][0]["exp_avg"]
    assert restored.is_neuron
    assert torch.equal(restored.cpu(), optimizer.state_dict()["state"][0]["exp_avg"].cpu())


def test_pickle_and_deepcopy() -> None:
    tensor = torch.arange(4.0).to("neuron:1")
    for twin in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor), copy.copy(tensor)):
        assert twin.device == tensor.device
        assert torch.equal(twin.cpu(), tensor.cpu())
    deep = copy.deepcopy(tensor)
    deep.fill_(0)
    assert tensor.cpu().tolist() == [0, 1, 2, 3]
    model = torch.nn.Linear(2, 2).to("neuron")
    twin = copy.deepcopy(model)
    assert twin.weight.is_neuron
    assert twin.weight.data_ptr() != model.weight.data_ptr()


def test_a_device_object_pickles() -> None:
    assert pickle.loads(pickle.dumps(torch.device("neuron:1"))) == torch.device("neuron:1")
