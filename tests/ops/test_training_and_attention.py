# SPDX-License-Identifier: Apache-2.0
"""Autograd over eager operators: small models train as on the CPU, and attention takes the CPU's path."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 2)), (8, 6)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2)),
        (2, 3, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "gru": (lambda: nn.GRU(4, 6, num_layers=2), (5, 2, 4)),
    "lstm": (lambda: nn.LSTM(4, 6, bidirectional=True), (5, 2, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_follows_the_cpu(name: str) -> None:
    make, shape = MODELS[name]
    host_model = make()
    device_model = copy.deepcopy(host_model).to("neuron")
    data = torch.randn(shape)

    def train(model: nn.Module, x: torch.Tensor) -> list[float]:
        torch.manual_seed(2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            result = model(x)
            loss = (result[0] if isinstance(result, tuple) else result).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    torch.testing.assert_close(train(device_model, data.to("neuron")), train(host_model, data), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(device_model.parameters(), host_model.parameters(), strict=True):
        assert ours.device.type == "neuron"
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "grouped"])
def test_attention_equals_the_cpus(kind: str, dtype: torch.dtype) -> None:
    torch.neuron.reset_fallback_counts()
    key_heads = 2 if kind == "grouped" else 4
    tensors = [torch.randn(2, heads, 7, 16, dtype=dtype) for heads in (4, key_heads, key_heads)]
    mask = torch.randn(7, 7, dtype=dtype) if kind == "mask" else None
    results, gradients = [], []
    for device in ("cpu", "neuron"):
        q, k, v = (t.detach().to(device).requires_grad_() for t in tensors)
        out = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=None if mask is None else mask.to(device), is_causal=kind == "causal",
            enable_gqa=kind == "grouped",
        )  # fmt: skip
        out.float().square().sum().backward()
        results.append(out.detach().cpu())
        gradients.append([q.grad.cpu(), k.grad.cpu(), v.grad.cpu()])
    assert torch.equal(results[1], results[0])
    assert all(torch.equal(a, b) for a, b in zip(gradients[1], gradients[0], strict=True))
    if kind == "plain":
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in torch.neuron.fallback_counts()


def test_attention_with_dropout_repeats_with_the_seed() -> None:
    q = torch.randn(1, 2, 5, 8, device="neuron")
    torch.manual_seed(4)
    first = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(4)
    assert torch.equal(nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5), first)
    assert not torch.equal(nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5), first)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_higher_order_and_forward_mode_gradients() -> None:
    x = torch.tensor([0.3, -1.2], device="neuron", requires_grad=True)
    (first,) = torch.autograd.grad(nn.functional.silu(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    host = x.detach().cpu().requires_grad_()
    (host_first,) = torch.autograd.grad(nn.functional.silu(host).sum(), host, create_graph=True)
    (host_second,) = torch.autograd.grad(host_first.sum(), host)
    torch.testing.assert_close(second.cpu(), host_second)
    _, tangent = torch.func.jvp(torch.sin, (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close(tangent.cpu(), torch.cos(host.detach()))


def test_inference_mode_and_autocast() -> None:
    layer = nn.Linear(4, 4).to("neuron")
    with torch.inference_mode():
        y = layer(torch.ones(2, 4, device="neuron"))
        y.add_(1)
    assert y.is_inference()
    with torch.autocast("neuron", dtype=torch.bfloat16):
        x = torch.ones(2, 4, device="neuron")
        assert layer(x).dtype == torch.bfloat16
        assert torch.softmax(layer(x), 1).dtype == torch.float32
    assert layer(x).dtype == torch.float32
