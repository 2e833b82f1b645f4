# SPDX-License-Identifier: Apache-2.0
"""Operators give CPU eager's values and dtypes when compiled: f32, integers and bool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager_oracle import check


def _rows() -> torch.Tensor:
    return torch.randn(4, 5)


def _integers() -> torch.Tensor:
    return torch.arange(-6, 6)


UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic with numbers": lambda x: (x * 1.5, x + 2, 1 - x, x / 3, 2 / (x.abs() + 1), -x, x**2, 2**x, x**-1),
    "powers": lambda x: (x.abs() ** 2.5, x**3, x.abs() ** 0.5, x.square(), x.reciprocal()),
    "comparisons with numbers": lambda x: (x > 0.3, x <= 0, x == 0.1, x != 0.1, (x > 0) & (x < 1)),
    "floor division of floats": lambda x: (x // 0.3, x % 0.3, x.fmod(0.7), x // -0.3, x % -0.3),
    "exponentials": lambda x: (x.exp(), x.abs().log(), x.expm1(), x.log1p().nan_to_num(), x.sigmoid(), x.tanh()),
    "trigonometry": lambda x: (x.sin(), x.cos(), x.tan(), x.sinh(), x.atan(), torch.atan2(x, x + 1)),
    "rounding": lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x.sign()),
    "roots": lambda x: (x.abs().sqrt(), (x.abs() + 1).rsqrt(), x.erf()),
    "activations": lambda x: (F.relu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.mish(x)),
    "more activations": lambda x: (F.softplus(x), F.hardswish(x), F.leaky_relu(x), F.logsigmoid(x), F.selu(x)),
    "clamps": lambda x: (x.clamp(0, 1), x.clamp(min=-0.5), x.clamp(max=0.5), F.hardtanh(x)),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(0), x.logsumexp(-1)),
    "reductions": lambda x: (x.sum(), x.sum(0), x.prod(1), x.amax(0), x.amin((0, 1)), x.max(), (x > 0).any(0)),
    "moments": lambda x: (x.mean(), x.mean(0), x.var(-1), x.std(), torch.var_mean(x, 1), x.norm(dim=1)),
    "norms": lambda x: (F.layer_norm(x, (5,)), F.rms_norm(x, (5,)), F.normalize(x)),
    "positions of extremes": lambda x: (x.argmax(), x.argmax(-1), x.argmin(0), x.max(-1), x.min(0)),
    "views": lambda x: (x.t() + 0, x.view(5, 4) * 1, x[1:3] + 1, x[::2, 1] * 2, x.permute(1, 0) + x.t()),
    "joins": lambda x: (torch.cat([x, x], 1), torch.stack([x, x]), x.repeat(2, 1), x.roll(1, 0), x.flip(0)),
    "unequal splits on a later dimension": lambda x: [part * 2 for part in x.split([1, 3, 1], 1)],
    "triangles": lambda x: (x.tril(), x.triu(1), x.diagonal() * 1),
    "selection": lambda x: (torch.where(x > 0, x, 0.0), x.masked_fill(x > 0, 1.5)),
    "tests for finiteness": lambda x: (x.isnan(), x.isinf(), x.isfinite(), (x / 0).nan_to_num()),
    "casts": lambda x: (x.int(), x.bool(), x.half(), x.bfloat16(), x.to(torch.int8)),
    "sums of products": lambda x: (x @ x.t(), F.linear(x, x), x @ x[0], torch.outer(x[0], x[1])),
    "factories": lambda x: (torch.arange(0, 7, 2, device=x.device), torch.linspace(0, 1, 5, device=x.device)),
    "float steps": lambda x: (torch.arange(0.0, 1.0, 0.25, device=x.device), torch.eye(3, device=x.device)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_float32(name: str) -> None:
    check(UNARY[name], _rows())


INTEGER: dict[str, Callable[[torch.Tensor], Any]] = {
    "floor division": lambda i: (i // 3, i // -4, torch.div(i, 4, rounding_mode="floor")),
    "truncated division": lambda i: torch.div(i, 4, rounding_mode="trunc"),
    "true division": lambda i: (i / 2, i / 7),
    "remainders": lambda i: (i % 3, i % -4, i.fmod(4)),
    "comparison with a float": lambda i: (i > 0.5, i == 2, i <= -1.5),
    "bits": lambda i: (i & 3, i | 1, i ^ 2, ~i, i << 2, i >> 1),
    "logic": lambda i: (torch.logical_not(i), torch.logical_and(i, i > 2), i.bool()),
    "reductions": lambda i: (i.sum(), i.max(), i.to(torch.int32).sum(), i.float().mean()),
    "signs": lambda i: (i.abs(), -i, i.sign(), i.clamp(0, 3)),
    "narrow types": lambda i: (i.to(torch.uint8) + 1, i.to(torch.int32) * 2, i.to(torch.int8)),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name: str) -> None:
    check(INTEGER[name], _integers())


def test_fractional_factors_of_integer_products_are_truncated() -> None:
    a, b, v = torch.randint(-9, 9, (5, 3)), torch.randint(-9, 9, (3, 5)), torch.randint(-9, 9, (5,))
    check(lambda v, a, b: (v.addmv(a, b[:, 0], beta=0.2, alpha=2.6), a.mm(b).addmm(a, b, beta=1.5, alpha=3)), v, a, b)


def test_large_integer_division_is_exact() -> None:
    """A quotient that f64 cannot hold: 2^62 + 1 over 1, and over -3."""
    check(lambda i: (i // 1, i // -3, i % 7), torch.tensor([(1 << 62) + 1, -(1 << 61) - 3, 5]))


def test_bool() -> None:
    check(lambda b: (b & True, b | ~b, b ^ b, b.sum(), b.any(), b.float(), b.logical_not()), torch.rand(9) > 0.5)


def test_topk_and_sort_keep_the_order_of_equals_and_give_int64() -> None:
    x = torch.randint(0, 3, (4, 9)).float()
    check(lambda x: (torch.sort(x, dim=-1, stable=True), torch.sort(x, dim=0, descending=True, stable=True)), x)
    check(lambda x: x.topk(3), torch.randn(4, 9))


def test_running_sums_products_and_extremes() -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(1), x.cummax(1), x.cummin(0)), _rows())
    check(lambda i: i.cumsum(0), _integers())


def test_indexing() -> None:
    places = torch.tensor([0, 3, 1])
    check(lambda x, j: (x[j], x[:, j], x[j, j], x.index_select(1, j), x[:, None, j]), torch.randn(5, 5), places)
    check(lambda w, i: F.embedding(i, w), torch.randn(10, 4), torch.tensor([[1, 2], [3, 9]]))
    check(lambda x, j: (x.gather(1, j), torch.take_along_dim(x, j, 1)), torch.randn(3, 5), torch.tensor([[0, 3]] * 3))


def test_constant_indices() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        place = torch.tensor([0, 1], device=x.device)
        corner = torch.tensor([[0, -1], [2, 1]], device=x.device)
        added = x.index_add(0, place, x[:2]).index_put((place,), x[2:4])
        return x[[0, 1]], x[:, [0, -2]], x[place], x[corner], x.index_select(1, place), x.take(place), added

    check(function, _rows())


def test_indexed_writes() -> None:
    x, rows = torch.randn(5, 5), torch.tensor([0, 3, 3])
    check(lambda x, j, v: torch.index_put(x, (j[:2],), v[:2]), x, rows, torch.randn(3, 5))
    check(lambda x, j, v: x.index_put((j,), v, accumulate=True), x, rows, torch.randn(3, 5))
    check(lambda x, j, v: x.index_add(0, j, v), x, rows, torch.randn(3, 5))
    check(lambda x, j: x.index_fill(0, j, 2.0), x, rows)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    index = torch.tensor([[0, 3], [1, 1], [4, 0]])
    check(
        lambda x, j, s: x.scatter_reduce(1, j, s, reduce, include_self=include_self),
        torch.randn(4, 5), index, torch.randn(3, 2),
    )  # fmt: skip


def test_scatter() -> None:
    index = torch.tensor([[0, 3], [1, 2], [4, 0]])
    check(
        lambda x, j, s: (x.scatter(1, j, s), x.scatter(1, j, 2.5), x.scatter_add(1, j, s)),
        torch.randn(3, 5), index, torch.randn(3, 2),
    )  # fmt: skip


def test_masked_scatter_takes_the_source_in_order() -> None:
    check(lambda x, m, s: x.masked_scatter(m, s), _rows(), torch.rand(4, 5) > 0.5, torch.randn(20))


def test_searches() -> None:
    edges = torch.tensor([-1.0, 0.0, 1.0])
    check(lambda x, e: (torch.bucketize(x, e), torch.searchsorted(e, x, right=True)), _rows(), edges)


def test_mixed_dtypes_promote_as_in_eager() -> None:
    check(lambda x, i: (x + i[0], i < x[0, 0], i * x[0, 0], x * True), _rows(), _integers())
    check(lambda h, x: (h + x, h * x[0, 0]), _rows().bfloat16(), _rows())


def test_matrix_products() -> None:
    check(
        lambda a, b: (torch.addmm(b, a, b), torch.addmm(b, a, b, beta=0.5, alpha=2)),
        torch.randn(5, 5),
        torch.randn(5, 5),
    )
    check(
        lambda a, b: (a @ b, torch.einsum("bij,bjk->bik", a, b), torch.baddbmm(a, a, b)),
        torch.randn(2, 5, 5),
        torch.randn(2, 5, 5),
    )


IMAGE: dict[str, Callable[[torch.Tensor], Any]] = {
    "convolution": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3, device=x.device), padding=1, stride=2),
    "grouped convolution": lambda x: F.conv2d(x, torch.ones(6, 1, 3, 3, device=x.device), groups=3),
    "transposed convolution": lambda x: F.conv_transpose2d(
        x, torch.ones(3, 4, 3, 3, device=x.device), stride=2, padding=1
    ),
    "max pooling": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, stride=2, padding=1)),
    "average pooling": lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)),
    "adaptive pooling": lambda x: (
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, 3),
        F.adaptive_avg_pool2d(x, 4),
    ),
    "group norm": lambda x: (F.group_norm(x, 3), F.instance_norm(x)),
    "interpolation": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, scale_factor=2, mode="bilinear")),
    "padding": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(x, (-1, -1))),
    "pixel shuffle": lambda x: F.pixel_unshuffle(x, 2),
}


@pytest.mark.parametrize("name", IMAGE)
def test_images(name: str) -> None:
    check(IMAGE[name], torch.randn(2, 3, 8, 8), rtol=1e-4, atol=1e-4)


def test_batch_norm_in_inference() -> None:
    mean, var, weight, bias = torch.randn(3), torch.rand(3) + 0.5, torch.randn(3), torch.randn(3)
    check(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), torch.randn(2, 3, 4, 4), mean, var, weight, bias)
