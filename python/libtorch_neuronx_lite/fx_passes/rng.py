# SPDX-License-Identifier: Apache-2.0
"""Makes random operators functions of an explicit seed input, with a counter-based generator in plain integer ops.

The seed is i64[2] = (seed, offset); the runtime passes the generator's seed and a new offset at each call. The
generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
SC 2011): 32-bit additions, rotations and xors, which every target has. One application to (draw index, offset) under
the seed gives each draw of the graph its own key; one to the element's counter under that key gives its bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .constants import add_placeholder
from .decompositions import decomposition_table
from .editing import Editor, fake_mode_of, fake_value

aten = torch.ops.aten

Words = tuple[torch.Tensor, torch.Tensor]
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_LOW32 = 0xFFFFFFFF


def _rotate(x: torch.Tensor, by: int) -> torch.Tensor:
    high = torch.bitwise_left_shift(x, by)
    low = torch.bitwise_right_shift(x, 32 - by) & ((1 << by) - 1)  # the mask undoes the arithmetic shift's sign
    return high | low


def threefry2x32(key: Words, counter: Words) -> Words:
    """Return two words of bits for each counter. All tensors are int32, used as 32 bits; shapes broadcast."""
    k0, k1 = key
    schedule = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = counter[0] + k0, counter[1] + k1
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = _rotate(x1, by) ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + (group + 1)
    return x0, x1


def _halves(x: torch.Tensor) -> Words:
    """Split int64 values into their low and high 32 bits, as int32."""
    low = x & _LOW32
    low = torch.where(low > 0x7FFFFFFF, low - (1 << 32), low)
    return low.to(torch.int32), (x >> 32).to(torch.int32)


def draw_keys(seed: torch.Tensor, draws: int) -> torch.Tensor:
    """Return int32[2, draws]: the key of each draw of the graph."""
    low, high = _halves(seed)
    index = torch.arange(draws, dtype=torch.int32, device=seed.device)
    key = (low[0:1], high[0:1])
    words = threefry2x32(key, (index ^ high[1:2], low[1:2].expand(draws)))
    return torch.stack(words)


def _bits(key: torch.Tensor, count: int) -> Words:
    """Return two int32[count] tensors of independent bits."""
    index = torch.arange(count, dtype=torch.int32, device=key.device)
    return threefry2x32((key[0], key[1]), (index, torch.zeros_like(index)))


def _words(key: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=torch.int32, device=key.device)
    words = torch.cat(_bits(key, (count + 1) // 2))
    return words[:count].reshape(tuple(shape))


def _unit(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values of [0, 1), each exact in the dtype."""
    digits = {torch.bfloat16: 8, torch.float16: 11}.get(dtype, 24)
    whole = torch.bitwise_right_shift(words, 32 - digits) & ((1 << digits) - 1)
    return (whole.float() * 2.0**-digits).to(dtype)


def uniform(key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Draw from [0, 1)."""
    return _unit(_words(key, shape), dtype)


def normal(key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Draw from the standard normal distribution (Box-Muller)."""
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(tuple(shape), dtype=dtype, device=key.device)
    first, second = _bits(key, (count + 1) // 2)
    radius = torch.sqrt(-2.0 * torch.log(1.0 - _unit(first, torch.float32)))
    angle = _unit(second, torch.float32) * (2.0 * math.pi)
    both = torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)))
    return both[:count].reshape(tuple(shape)).to(dtype)


def exponential(key: torch.Tensor, shape: Sequence[int], rate: float, dtype: torch.dtype) -> torch.Tensor:
    """Draw from the exponential distribution; never zero, so that a division by it stays finite."""
    draws = -torch.log(1.0 - uniform(key, shape, torch.float32))
    return (draws.clamp(min=2.0**-25) / rate).to(dtype)


def integers(key: torch.Tensor, low: int, high: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Draw from low to high - 1: the high half of word * range, or 63 bits modulo the range where it is wide."""
    span = high - low
    if span <= 1 << 31:
        wide = _words(key, shape).to(torch.int64) & _LOW32
        return (torch.bitwise_right_shift(wide * span, 32) + low).to(dtype)
    count = math.prod(shape)
    first, second = (word.to(torch.int64) & _LOW32 for word in _bits(key, count))
    wide = torch.bitwise_left_shift(first & 0x7FFFFFFF, 32) | second
    return (wide % span + low).reshape(tuple(shape)).to(dtype)


def _like(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    return lambda key, *_: uniform(key, value.shape, value.dtype)


def _normal_like(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    return lambda key, *_: normal(key, value.shape, value.dtype)


def _randint(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    numbers = [a for a in args if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    return lambda key, *_: integers(key, low, high, value.shape, value.dtype)


def _randperm(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    return lambda key, *_: torch.sort(_words(key, value.shape), stable=True)[1].to(value.dtype)


def _uniform(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    low = args[1] if len(args) > 1 else kwargs.get("from", 0.0)
    high = args[2] if len(args) > 2 else kwargs.get("to", 1.0)
    # In f32, and kept below the upper bound: rounding to a narrow dtype could reach it.
    return lambda key, *_: (uniform(key, value.shape, value.dtype).float() * (high - low) + low).to(value.dtype)


def _normal(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    mean = args[1] if len(args) > 1 else kwargs.get("mean", 0.0)
    std = args[2] if len(args) > 2 else kwargs.get("std", 1.0)
    return lambda key, *_: (normal(key, value.shape, torch.float32) * std + mean).to(value.dtype)


def _normal_tensors(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    plain = [a for a in args if not isinstance(a, fx.Node)]

    def draw(key: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        operands = iter(tensors)
        numbers = iter(plain)
        mean, std = (next(operands) if isinstance(a, fx.Node) else next(numbers) for a in (*args, 1.0)[:2])
        return (normal(key, value.shape, torch.float32) * std + mean).to(value.dtype)

    return draw


def _exponential(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    rate = args[1] if len(args) > 1 else kwargs.get("lambd", 1.0)
    return lambda key, *_: exponential(key, value.shape, rate, value.dtype)


def _bernoulli(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    return lambda key, p: (uniform(key, value.shape, torch.float32) < p.float()).to(value.dtype)


def _bernoulli_p(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if isinstance(chance, fx.Node):
        return lambda key, x, p: (uniform(key, value.shape, torch.float32) < p.float()).to(value.dtype)
    return lambda key, *_: (uniform(key, value.shape, torch.float32) < chance).to(value.dtype)


def _dropout(args: tuple[Any, ...], kwargs: dict[str, Any], value: tuple[torch.Tensor, torch.Tensor]) -> Any:
    chance, train = args[1], args[2] if len(args) > 2 else True

    def draw(key: torch.Tensor, x: torch.Tensor) -> Words:
        if train is False or chance == 0:
            return x, torch.ones_like(x, dtype=torch.bool)
        mask = uniform(key, x.shape, torch.float32) >= chance
        scale = 0.0 if chance == 1 else 1.0 / (1.0 - chance)
        return (x.float() * mask.float() * scale).to(x.dtype), mask

    return draw


def _multinomial(args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> Any:
    samples = args[1]
    replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)

    def draw(key: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        wide = weights.float()
        if samples == 1 or not replacement:
            race = wide / exponential(key, wide.shape, 1.0, torch.float32)
            return torch.topk(race, samples, dim=-1)[1] if samples > 1 else torch.argmax(race, -1, keepdim=True)
        shape = (*wide.shape[:-1], samples, wide.shape[-1])
        race = wide.unsqueeze(-2) / exponential(key, shape, 1.0, torch.float32)
        return torch.argmax(race, -1)

    return draw


_Maker = Callable[[tuple[Any, ...], dict[str, Any], Any], Any]
_DRAWS: dict[Any, _Maker] = {
    aten.rand.default: _like,
    aten.rand_like.default: _like,
    aten.randn.default: _normal_like,
    aten.randn_like.default: _normal_like,
    aten.randint.default: _randint,
    aten.randint.low: _randint,
    aten.randint_like.default: _randint,
    aten.randint_like.low_dtype: _randint,
    aten.randperm.default: _randperm,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.normal.Tensor_float: _normal_tensors,
    aten.normal.Tensor_Tensor: _normal_tensors,
    aten.normal.float_Tensor: _normal_tensors,
    aten.exponential.default: _exponential,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli_p,
    aten.bernoulli.Tensor: _bernoulli_p,
    aten.native_dropout.default: _dropout,
    aten.multinomial.default: _multinomial,
}


def add_seed(gm: fx.GraphModule) -> bool:
    """Replace the random operators of a graph; append the seed placeholder and return True when there were any."""
    graph = gm.graph
    nodes = [node for node in graph.nodes if node.op == "call_function" and node.target in _DRAWS]
    if not nodes:
        return False
    mode = fake_mode_of(graph)
    value = fake_value(nodes[0])
    device = (value[0] if isinstance(value, (tuple, list)) else value).device
    seed = add_placeholder(graph, "rng_seed")
    with mode:
        seed.meta["val"] = torch.empty(2, dtype=torch.int64, device=device)
    table = decomposition_table()
    top = Editor(graph, mode, seed.next)
    keys = top.inline(lambda s: draw_keys(s, len(nodes)), [seed], table)
    for index, node in enumerate(nodes):
        editor = Editor(graph, mode, node)
        key = editor.call(aten.select.int, keys, 1, index)
        tensors = [a for a in node.args if isinstance(a, fx.Node)]
        value = fake_value(node)
        device = (value[0] if isinstance(value, (tuple, list)) else value).device
        if fake_value(key).device != device:
            key = editor.call(aten._to_copy.default, key, device=device)
        draw = _DRAWS[node.target](node.args, dict(node.kwargs), value)
        drawn = editor.inline(draw, [key, *tensors], table)
        _replace(graph, node, drawn)
    return True


def _replace(graph: fx.Graph, node: fx.Node, drawn: Any) -> None:
    if isinstance(drawn, (tuple, list)):
        for user in list(node.users):
            place = user.args[1]
            assert isinstance(place, int)
            user.replace_all_uses_with(drawn[place])
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(drawn)
    graph.erase_node(node)
