# SPDX-License-Identifier: Apache-2.0
"""Random numbers in a graph follow torch.manual_seed: repeatable, different from call to call, of the right law."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from eager_oracle import DEVICE, compiled


def test_one_seed_one_sequence() -> None:
    run = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x)))
    x = torch.empty(257, device=DEVICE)
    with torch.no_grad():
        torch.manual_seed(7)
        first = [t.cpu() for t in run(x)] + [t.cpu() for t in run(x)]
        torch.manual_seed(7)
        again = [t.cpu() for t in run(x)] + [t.cpu() for t in run(x)]
        torch.manual_seed(8)
        other = [t.cpu() for t in run(x)]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], other[0])


def test_draws_of_one_graph_differ() -> None:
    with torch.no_grad():
        a, b = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))(torch.empty(64, device=DEVICE))
    assert not torch.equal(a.cpu(), b.cpu())


def test_laws() -> None:
    """20,000 draws: the mean of n draws deviates by sigma / sqrt(n); five of those are allowed."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.rand_like(x),
            torch.randn_like(x),
            x.clone().exponential_(2.0),
            torch.bernoulli(torch.full_like(x, 0.3)),
            torch.randint(3, 9, x.shape, device=x.device),
            x.clone().uniform_(-2, 4),
            x.clone().normal_(5, 0.5),
        )

    count = 20_000
    with torch.no_grad():
        draws = [t.cpu().double() for t in compiled(f)(torch.empty(count, device=DEVICE))]
    laws = [(0.5, 12**-0.5), (0, 1), (0.5, 0.5), (0.3, 0.21**0.5), (5.5, (35 / 12) ** 0.5), (1, 6 / 12**0.5), (5, 0.5)]
    for values, (mean, sigma) in zip(draws, laws, strict=True):
        assert abs(values.mean().item() - mean) < 5 * sigma / count**0.5
        assert abs(values.std().item() - sigma) < 0.05 * sigma
    rand, _, exponential, coin, integers, uniform, _ = draws
    assert rand.min() >= 0
    assert rand.max() < 1
    assert exponential.min() > 0
    assert set(coin.tolist()) == {0.0, 1.0}
    assert set(integers.tolist()) == {3.0, 4.0, 5.0, 6.0, 7.0, 8.0}
    assert uniform.min() >= -2
    assert uniform.max() <= 4
    assert rand.unique().numel() > 0.99 * count


def test_dropout_keeps_the_mean() -> None:
    with torch.no_grad():
        dropped = compiled(lambda x: F.dropout(x, 0.25))(torch.ones(20_000, device=DEVICE)).cpu()
    assert set(dropped.unique().tolist()) <= {0.0, 1 / 0.75, torch.tensor(1 / 0.75).item()}
    assert abs(dropped.mean().item() - 1) < 0.03


def test_permutation_and_multinomial() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5], device=DEVICE)
    with torch.no_grad():
        order, picks, several = compiled(
            lambda w: (
                torch.randperm(50, device=w.device),
                torch.multinomial(w, 2),
                torch.multinomial(w, 200, replacement=True),
            )
        )(weights)
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != list(range(50))
    assert sorted(picks.tolist()) == [1, 3]
    assert set(several.tolist()) == {1, 3}
    assert (order.dtype, picks.dtype) == (torch.int64, torch.int64)
