# SPDX-License-Identifier: Apache-2.0
"""Layouts from tensors: strides, regions and coordinates, and what is refused."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

import pytest
import torch

from libtorch_neuronx_lite import _C, kv

LAYERS, BLOCKS, TOKENS, HEADS, WIDTH = 2, 4, 8, 2, 16
SIZES = {"layer": LAYERS, "kv": 2, "block": BLOCKS, "token": TOKENS, "head": HEADS, "channel": WIDTH}
FORMS = [
    kv.NHD,
    kv.HND,
    kv.KV_FIRST,
    kv.KV_FIRST_HND,
    kv.BLOCK_FIRST,
    kv.BLOCK_FIRST_HND,
    kv.CROSS_LAYER,
    kv.CROSS_LAYER_HND,
    kv.MLA,
    "layer block token head channel",
]


def tensor(axes: str) -> torch.Tensor:
    return torch.zeros([SIZES[axis] for axis in axes.split()], dtype=torch.float16)


def kv_tensors(axes: str) -> list[torch.Tensor]:
    per_layer = 1 if "kv" in axes.split() or "head" not in axes.split() else 2
    return [tensor(axes) for _ in range(per_layer * (1 if "layer" in axes.split() else LAYERS))]


@pytest.mark.parametrize("axes", FORMS)
def test_slots_point_at_the_elements_of_the_tensors(axes: str) -> None:
    tensors = kv_tensors(axes)
    order = axes.split()
    bound = kv.KvLayout(axes).bind(tensors)
    native = bound.native
    parts = 1 if axes == kv.MLA else 2
    assert (native.layer_count, native.total_layers, native.parts) == (LAYERS, LAYERS, parts)
    assert (native.block_count, native.block_tokens, native.head_dim) == (BLOCKS, TOKENS, WIDTH)
    assert native.total_heads == (HEADS if "head" in order else 1)
    assert (native.dtype, native.element_bytes) == ("f16", 2)
    for layer in range(LAYERS):
        for part in range(parts):
            base = 0 if "layer" in order else layer * (1 if "kv" in order else parts)
            owner = tensors[base + (0 if "kv" in order else part)]
            slot = native.slots[layer * parts + part]
            place = {"layer": layer, "kv": part, "block": 3, "token": 5, "head": HEADS - 1, "channel": 0}
            element = owner[tuple(place[axis] for axis in order)]
            head = HEADS - 1 if "head" in order else 0
            offset = slot.offset + 3 * slot.block_stride + 5 * slot.token_stride + head * slot.head_stride
            assert bound.regions[slot.region].address + offset == element.data_ptr()


def test_pairs_and_mappings_of_layers_are_taken_in_order() -> None:
    pairs = {f"layer.{i}": (tensor(kv.NHD), tensor(kv.NHD)) for i in range(LAYERS)}
    bound = kv.KvLayout(kv.NHD).bind(pairs)
    assert [region.address for region in bound.regions] == [t.data_ptr() for pair in pairs.values() for t in pair]
    assert [region.name for region in bound.regions] == ["layer.0[0]", "layer.0[1]", "layer.1[0]", "layer.1[1]"]


def test_views_of_one_storage_share_a_region_no_larger_than_they_reach() -> None:
    storage = torch.zeros(4 + LAYERS * 2, BLOCKS, TOKENS, HEADS, WIDTH)
    views = list(storage[1 : 1 + LAYERS * 2])
    bound = kv.KvLayout(kv.NHD).bind(views)
    assert len(bound.regions) == 1
    assert bound.regions[0].address == storage[1].data_ptr()
    assert bound.regions[0].bytes == LAYERS * 2 * storage[0].numel() * 4
    assert [slot.offset for slot in bound.native.slots] == [i * storage[0].numel() * 4 for i in range(LAYERS * 2)]


def test_coordinates_reach_the_planner() -> None:
    layout = kv.KvLayout(
        kv.NHD, total_heads=8, total_layers=6, first_layer=2, tp_rank=1, tp_size=4,
        context_rank=1, context_size=2, context_interleave=4,
    )  # fmt: skip
    native = layout.bind(kv_tensors(kv.NHD)).native
    assert (native.first_layer, native.layer_count, native.total_layers) == (2, 2, 6)
    assert (native.first_head, native.head_count) == (2, 2)
    assert (native.context_rank, native.context_size, native.context_interleave) == (1, 2, 4)


def test_replicated_heads_need_their_number() -> None:
    one_head = [t[:, :, :1] for t in kv_tensors(kv.NHD)]
    native = kv.KvLayout(kv.NHD, total_heads=2, tp_rank=3, tp_size=4).bind(one_head).native
    assert (native.first_head, native.head_count) == (1, 1)


def test_a_static_cache_becomes_blocks_of_its_own_memory() -> None:
    layers = [
        SimpleNamespace(keys=torch.randn(1, 3, 32, 4), values=torch.randn(1, 3, 32, 4)) for _ in range(LAYERS)
    ]  # fmt: skip
    blocks = kv.static_cache_layers(SimpleNamespace(layers=layers), 8)
    bound = kv.KvLayout(kv.HND).bind(blocks)
    assert (bound.native.block_count, bound.native.block_tokens, bound.native.total_heads) == (4, 8, 3)
    assert bound.regions[0].address == layers[0].keys.data_ptr()
    # Head 2 of position 19 of a [1, 3, 32, 4] tensor is block 2, token 3.
    slot = bound.native.slots[1]
    offset = slot.offset + 2 * slot.block_stride + 3 * slot.token_stride + 2 * slot.head_stride
    assert bound.regions[slot.region].address + offset == layers[0].values[0, 2, 19].data_ptr()
    with pytest.raises(kv.KvLayoutError, match=r"32 positions; .* multiple of block_tokens 5"):
        kv.static_cache_layers(SimpleNamespace(layers=layers), 5)


@pytest.mark.parametrize("axes", ["block token", "block token head chanel", "block block token channel", ""])
def test_wrong_axes_are_refused(axes: str) -> None:
    with pytest.raises(kv.KvLayoutError, match="axes "):
        kv.KvLayout(axes)


def test_what_does_not_fit_is_named() -> None:
    layout = kv.KvLayout(kv.NHD)
    with pytest.raises(kv.KvLayoutError, match="take 2 for each layer tensors, 3 were given"):
        layout.bind(kv_tensors(kv.NHD)[:3])
    with pytest.raises(kv.KvLayoutError, match=r"kv\[1\] has shape \(4, 8, 2\)"):
        layout.bind([tensor(kv.NHD), tensor(kv.NHD)[..., 0]])
    with pytest.raises(kv.KvLayoutError, match=r"kv\[1\] is torch.float32 .* the first one torch.float16"):
        layout.bind([tensor(kv.NHD), tensor(kv.NHD).float()])
    with pytest.raises(kv.KvLayoutError, match="stride 2 along its channels"):
        layout.bind([tensor(kv.NHD)[..., ::2], tensor(kv.NHD)[..., ::2]])
    with pytest.raises(kv.KvLayoutError, match="3 entries along its kv axis"):
        kv.KvLayout(kv.KV_FIRST).bind([torch.zeros(3, BLOCKS, TOKENS, HEADS, WIDTH)])
    with pytest.raises(kv.KvLayoutError, match=r"torch\.int64"):
        layout.bind([t.long() for t in kv_tensors(kv.NHD)])
    with pytest.raises(kv.KvLayoutError, match="tensors have 2 heads, but rank 0 of 1 holds 4"):
        kv.KvLayout(kv.NHD, total_heads=4).bind(kv_tensors(kv.NHD))
    with pytest.raises(kv.KvLayoutError, match="tp_rank is 4, it must be 0 to 3"):
        kv.KvLayout(kv.NHD, tp_rank=4, tp_size=4).bind(kv_tensors(kv.NHD))
    with pytest.raises(kv.KvLayoutError, match="tp_size is 0, it must be at least 1"):
        kv.KvLayout(kv.NHD, tp_size=0)
    with pytest.raises(kv.KvLayoutError, match="context_rank is -1"):
        kv.KvLayout(kv.NHD, context_rank=-1)
    same = tensor(kv.NHD)
    with pytest.raises(kv.KvLayoutError, match=r"share byte|overlap"):
        layout.bind([same, same])


def test_sources_for_a_rank_with_fewer_ranks() -> None:
    sources = [
        kv.KvLayout(kv.NHD, total_heads=4, tp_rank=rank, tp_size=2).bind(kv_tensors(kv.NHD)) for rank in range(2)
    ]
    target = kv.KvLayout(kv.NHD).bind([t.repeat(1, 1, 2, 1) for t in kv_tensors(kv.NHD)])
    assert kv.choose_sources(sources, target) == [0, 1]
    with pytest.raises(kv.KvLayoutError, match="head 2"):
        kv.choose_sources(sources[:1], target)


def test_plans_between_bound_layouts_move_the_right_bytes() -> None:
    source = [torch.randn(BLOCKS, TOKENS, HEADS, WIDTH) for _ in range(4)]
    target = [torch.zeros(2, 2 * BLOCKS, HEADS, TOKENS // 2, WIDTH) for _ in range(2)]
    there, here = kv.KvLayout(kv.NHD).bind(source), kv.KvLayout(kv.KV_FIRST_HND).bind(target)
    runs = _C.KvPlan(there.native, here.native).apply(2, 13, [3, 1], [7, 0, 5, 2])
    for from_, to, offset, into, size, stride, into_stride, count in runs.tolist():
        for piece in range(count):
            begin = (offset + piece * stride) // 4
            end = (into + piece * into_stride) // 4
            source_tensor, target_tensor = there.regions[from_].owner, here.regions[to].owner
            assert source_tensor is not None
            assert target_tensor is not None
            target_tensor.view(-1)[end : end + size // 4] = source_tensor.view(-1)[begin : begin + size // 4]
    for layer in range(LAYERS):
        for part in range(2):
            tokens = source[2 * layer + part][[3, 1]].reshape(16, HEADS, WIDTH)[2:13]
            arrived = target[layer][part][[7, 0, 5, 2]].transpose(1, 2).reshape(16, HEADS, WIDTH)
            torch.testing.assert_close(arrived[2:13], tokens, rtol=0, atol=0)
            assert not arrived[:2].any()
            assert not arrived[13:].any()


def test_a_shared_pool_knows_its_descriptor() -> None:
    from libtorch_neuronx_lite.kv.pool import exported_range

    pool = kv.shared_pool((4, 1024), torch.float32)
    assert not pool.any()
    fd, offset = exported_range(pool[1].data_ptr(), 4096)
    assert fd >= 0
    assert offset == 4096
    assert exported_range(pool.data_ptr(), 4 * 4096 + 1) == (-1, 0)
    assert exported_range(torch.zeros(4).data_ptr(), 16) == (-1, 0)
    address = pool.data_ptr()
    row = pool[2]
    del pool
    assert exported_range(address, 16)[0] == fd  # a view keeps the memory
    row.fill_(1.0)
    del row
    assert exported_range(address, 16) == (-1, 0)
    with pytest.raises(ValueError, match="is empty"):
        kv.shared_pool((0, 4), torch.float32)


def test_errors_keep_their_cause_when_they_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(kv.KvLeaseExpiredError("late", "lease_expired", ((0, 16),))))
    assert isinstance(error, kv.KvLeaseExpiredError)
    assert (str(error), error.cause, error.failed_tokens) == ("late", "lease_expired", ((0, 16),))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", "xyz"),
        ("key", "0" * 31),
        ("blocks", [1, -1]),
        ("blocks", [2**32]),
        ("blocks", "01"),
        ("tokens", [5, 4]),
        ("tokens", [1]),
        ("id", 1.0),
        ("generation", True),
        ("request", 7),
    ],
)
def test_lease_tickets_from_the_network_are_checked(field: str, value: object) -> None:
    good = {
        "request": "r", "producer": "p", "endpoint": "unix:/x", "blocks": [1, 2], "tokens": [0, 16], "first_token": 0,
        "id": 1, "key": "0123456789abcdef" * 2, "word": 3, "generation": 4,
    }  # fmt: skip
    ticket = kv.LeaseTicket.from_json(json.dumps(good))
    assert kv.LeaseTicket.from_dict(ticket.to_dict()) == ticket
    assert ticket.to_dict() == good
    assert good["key"] not in repr(ticket)
    with pytest.raises(ValueError, match=field):
        kv.LeaseTicket.from_dict(good | {field: value})
    with pytest.raises(ValueError, match="has the fields"):
        kv.LeaseTicket.from_dict(good | {"more": 1})
