# SPDX-License-Identifier: Apache-2.0
"""The KV planner against a NumPy oracle: every destination byte written once, from the right place, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from libtorch_neuronx_lite import _C

UNTOUCHED = -1


@dataclass(frozen=True)
class Side:
    """One rank of one role: what it holds and how it lays it out."""

    heads: int
    head_dim: int
    layers: int
    parts: int
    tp: tuple[int, int]  # rank, size
    stage: tuple[int, int]  # first layer, count
    context: tuple[int, int, int]  # rank, size, interleave
    block_tokens: int
    block_count: int
    form: str  # nhd, hnd, kv_first, block_first, cross_layer

    @property
    def local_heads(self) -> range:
        rank, size = self.tp
        return range(rank * self.heads // size, rank * self.heads // size + max(1, self.heads // size))

    def holds(self, token: int) -> bool:
        rank, size, interleave = self.context
        return token // interleave % size == rank

    def arrays(self) -> tuple[list[np.ndarray], dict[tuple[int, int], tuple[int, np.ndarray]]]:
        """The regions (element ids 0..n-1 each), and per (layer, part) a [block, token, head, dim] view on one."""
        first, count = self.stage
        b, t, h, d, p = self.block_count, self.block_tokens, len(self.local_heads), self.head_dim, self.parts
        views: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
        regions: list[np.ndarray] = []

        def region(*shape: int) -> np.ndarray:
            regions.append(np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape))
            return regions[-1]

        if self.form == "cross_layer":
            whole = region(b, count, p, t, h, d)
            for layer in range(count):
                for part in range(p):
                    views[first + layer, part] = (0, whole[:, layer, part])
            return regions, views
        for layer in range(count):
            if self.form in ("nhd", "hnd"):
                for part in range(p):
                    array = region(b, t, h, d) if self.form == "nhd" else region(b, h, t, d).transpose(0, 2, 1, 3)
                    views[first + layer, part] = (len(regions) - 1, array)
            else:
                array = region(p, b, t, h, d) if self.form == "kv_first" else region(b, p, t, h, d).swapaxes(0, 1)
                for part in range(p):
                    views[first + layer, part] = (len(regions) - 1, array[part])
        return regions, views

    def layout(self, element_bytes: int = 2) -> _C.KvLayout:
        regions, views = self.arrays()
        layout = _C.KvLayout()
        layout.dtype, layout.element_bytes = "bf16", element_bytes
        layout.head_dim, layout.total_heads, layout.parts = self.head_dim, self.heads, self.parts
        layout.total_layers, (layout.first_layer, layout.layer_count) = self.layers, self.stage
        layout.tp_rank, layout.tp_size = self.tp
        layout.context_rank, layout.context_size, layout.context_interleave = self.context
        layout.block_tokens, layout.block_count = self.block_tokens, self.block_count
        slots = []
        for layer in range(self.stage[0], sum(self.stage)):
            for part in range(self.parts):
                index, view = views[layer, part]
                strides = [s // 8 * element_bytes for s in view.strides]
                slots.append(
                    _C.KvSlot(
                        region=index,
                        offset=int(view[0, 0, 0, 0]) * element_bytes,
                        block_stride=strides[0],
                        token_stride=strides[1],
                        head_stride=strides[2],
                    )
                )
        layout.slots = slots
        layout.region_bytes = [r.size * element_bytes for r in regions]
        return layout

    def place(self, blocks: Sequence[int], first_token: int, token: int) -> tuple[int, int]:
        """Block id and slot of a token this rank holds."""
        owned = [t for t in range(first_token, token + 1) if self.holds(t)]
        index = len(owned) - 1
        return blocks[index // self.block_tokens], index % self.block_tokens


def expected(
    source: Side, target: Side, tokens: range, source_blocks: Sequence[int], target_blocks: Sequence[int],
    source_first: int, target_first: int,
) -> dict[tuple[int, int], tuple[int, int]]:  # fmt: skip
    """Target (region, element) -> source (region, element), one token, head and channel at a time."""
    _, sources = source.arrays()
    _, targets = target.arrays()
    moves: dict[tuple[int, int], tuple[int, int]] = {}
    for layer_part in sources.keys() & targets.keys():
        source_region, source_view = sources[layer_part]
        target_region, target_view = targets[layer_part]
        for token in tokens:
            if not (source.holds(token) and target.holds(token)):
                continue
            sb, st = source.place(source_blocks, source_first, token)
            tb, tt = target.place(target_blocks, target_first, token)
            for head in set(source.local_heads) & set(target.local_heads):
                from_ = source_view[sb, st, head - source.local_heads[0]]
                to = target_view[tb, tt, head - target.local_heads[0]]
                for channel in range(source.head_dim):
                    moves[target_region, int(to[channel])] = (source_region, int(from_[channel]))
    return moves


def moved(runs: np.ndarray, element_bytes: int) -> dict[tuple[int, int], tuple[int, int]]:
    """What the runs do, element by element; a byte written twice fails."""
    moves: dict[tuple[int, int], tuple[int, int]] = {}
    for source_region, target_region, source, target, size, source_stride, target_stride, count in runs.tolist():
        assert size % element_bytes == 0
        for piece in range(count):
            for element in range(size // element_bytes):
                key = (target_region, (target + piece * target_stride) // element_bytes + element)
                assert key not in moves, f"element {key} is written twice"
                moves[key] = (source_region, (source + piece * source_stride) // element_bytes + element)
    return moves


def random_pair(rng: np.random.Generator) -> tuple[Side, Side]:
    heads, head_dim, layers = int(rng.choice([1, 2, 3, 4])), int(rng.integers(1, 3)), int(rng.integers(1, 3))
    parts = 1 if heads == 1 and rng.random() < 0.5 else 2

    def side() -> Side:
        tp_size = int(rng.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0 or n % heads == 0]))
        stage_first = int(rng.integers(0, layers))
        context_size = int(rng.choice([1, 1, 2, 3]))
        return Side(
            heads, head_dim, layers, parts,
            tp=(int(rng.integers(0, tp_size)), tp_size),
            stage=(stage_first, int(rng.integers(1, layers - stage_first + 1))),
            context=(int(rng.integers(0, context_size)), context_size, int(rng.integers(1, 3))),
            block_tokens=int(rng.integers(1, 5)),
            block_count=8,
            form=str(rng.choice(["nhd", "hnd", "kv_first", "block_first", "cross_layer"])),
        )  # fmt: skip

    return side(), side()


def check_one(rng: np.random.Generator) -> None:
    source, target = random_pair(rng)
    plan = _C.KvPlan(source.layout(), target.layout())
    period = [s.context[1] * s.context[2] if s.context[1] > 1 else 1 for s in (source, target)]
    firsts = [int(rng.integers(0, 2)) * p for p in period]
    begin = max(firsts) + int(rng.integers(0, 3))
    # As long as both pools can hold it.
    room = min(
        first + s.block_tokens * s.block_count * s.context[1] for first, s in zip(firsts, (source, target), strict=True)
    )
    end = int(rng.integers(begin, max(begin, min(room - max(period) * 2, begin + 9)) + 1))
    blocks = [rng.permutation(s.block_count).tolist() for s in (source, target)]
    runs = plan.apply(begin, end, blocks[0], blocks[1], firsts[0], firsts[1])
    want = expected(source, target, range(begin, end), blocks[0], blocks[1], firsts[0], firsts[1])
    assert moved(runs, 2) == want, (source, target, begin, end, firsts, blocks)


def test_random_plans_equal_the_oracle() -> None:
    rng = np.random.default_rng(np.random.SeedSequence().entropy)
    for _ in range(4_000):
        check_one(rng)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_thousand_random_plans_equal_the_oracle() -> None:
    rng = np.random.default_rng(np.random.SeedSequence().entropy)
    for _ in range(100_000):
        check_one(rng)


def llama(tp: tuple[int, int] = (0, 1), **changes: object) -> Side:
    side = Side(
        heads=4, head_dim=8, layers=2, parts=2, tp=tp, stage=(0, 2), context=(0, 1, 1), block_tokens=4, block_count=8,
        form="nhd",
    )  # fmt: skip
    return replace(side, **changes)  # type: ignore[arg-type]


def test_whole_blocks_of_one_layout_are_one_run_each() -> None:
    plan = _C.KvPlan(llama().layout(), llama().layout())
    runs = plan.apply(0, 12, [0, 1, 5], [3, 4, 2])
    # Blocks 0 and 1 go to neighbours 3 and 4: joined. 4 tokens * 4 heads * 8 * 2 bytes = 256 a block.
    assert runs[:, 4].tolist() == [512, 256] * 4
    assert runs[:, 7].tolist() == [1] * 8


def test_head_split_is_strided() -> None:
    plan = _C.KvPlan(llama().layout(), llama(tp=(1, 2)).layout())
    runs = plan.apply(0, 4, [0], [0])
    # Heads 2 and 3 of each of four tokens: one strided run per layer and part.
    assert runs[:, 4].tolist() == [32] * 4
    assert runs[:, 7].tolist() == [4] * 4
    assert runs[0, 5:7].tolist() == [64, 32]


@pytest.mark.parametrize(
    ("field", "change", "values"),
    [
        ("head_dim", {"head_dim": 16}, ("8", "16")),
        ("total_heads", {"heads": 2}, ("4", "2")),
        ("parts", {"parts": 1}, ("2", "1")),
        ("total_layers", {"layers": 3}, ("2", "3")),
    ],
)
def test_an_impossible_pair_names_the_field_and_both_values(
    field: str, change: dict[str, object], values: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match=f"{field} is {values[0]} at the source and {values[1]} at the target"):
        _C.KvPlan(llama().layout(), llama(**change).layout())


def test_dtype_is_checked() -> None:
    other = llama().layout()
    other.dtype = "f16"
    with pytest.raises(ValueError, match="dtype is bf16 at the source and f16 at the target"):
        _C.KvPlan(llama().layout(), other)


def test_a_layout_that_leaves_its_region_is_refused() -> None:
    layout = llama().layout()
    layout.region_bytes = [layout.region_bytes[0] - 1, *layout.region_bytes[1:]]
    with pytest.raises(ValueError, match=r"slot 0 .* leaves region 0 of 2047 bytes"):
        layout.validate()


@pytest.mark.parametrize("field", ["block_stride", "token_stride", "head_stride"])
def test_overlapping_elements_are_refused(field: str) -> None:
    layout = llama().layout()
    slot = layout.slots[0]
    fields = {f: getattr(slot, f) for f in ("region", "offset", "block_stride", "token_stride", "head_stride")}
    fields[field] -= 2
    layout.slots = [_C.KvSlot(**fields), *layout.slots[1:]]
    with pytest.raises(ValueError, match="elements of slot 0 overlap"):
        layout.validate()


def test_two_slots_on_the_same_bytes_are_refused() -> None:
    layout = llama().layout()
    layout.slots = [layout.slots[0], layout.slots[0], *layout.slots[2:]]
    with pytest.raises(ValueError, match="share byte 0 of region 0"):
        layout.validate()


def test_overflowing_strides_are_refused() -> None:
    layout = llama().layout()
    layout.slots = [
        _C.KvSlot(region=0, offset=0, block_stride=2**63, token_stride=64, head_stride=16),
        *layout.slots[1:],
    ]
    with pytest.raises(ValueError, match=r"slot 0 .* leaves region 0"):
        layout.validate()


def test_block_lists_are_checked_and_nothing_is_planned() -> None:
    plan = _C.KvPlan(llama().layout(), llama().layout())
    with pytest.raises(ValueError, match=r"source block list has 1 blocks of 4 tokens .* token 4 lies behind them"):
        plan.apply(0, 8, [0], [0, 1])
    with pytest.raises(ValueError, match="target block id 8 is outside the pool of 8 blocks"):
        plan.apply(0, 4, [0], [8])
    with pytest.raises(ValueError, match="target block list begins at token 4, token 0 lies before it"):
        plan.apply(0, 4, [0], [0], target_first_token=4)


@pytest.mark.parametrize("form", ["nhd", "hnd", "kv_first", "block_first", "cross_layer"])
def test_tail_is_the_rest_of_the_last_block(form: str) -> None:
    side = llama(form=form)
    plan = _C.KvPlan(side.layout(), side.layout())
    tail = moved(plan.tail(0, 6, [5, 2]), 2)
    _, views = side.arrays()
    want = {(region, int(e)) for region, view in views.values() for e in view[2, 2:].ravel()}
    assert set(tail) == want
    assert len(plan.tail(0, 8, [5, 2])) == 0


def test_sources_cover_the_target_once_and_replicas_spread() -> None:
    sources = [llama(tp=(r, 8)).layout() for r in range(8)]  # 4 heads on 8 ranks: two replicas each
    assert _C.choose_kv_sources(sources, llama(tp=(0, 1)).layout()) == [0, 2, 4, 6]
    assert _C.choose_kv_sources(sources, llama(tp=(1, 2)).layout()) == [5, 7]
    with pytest.raises(ValueError, match="layer 0, head 2, token 0 of the target is held by 0 of the 2 source ranks"):
        _C.choose_kv_sources(sources[:4][::2], llama().layout())


def test_context_parallel_sources_are_all_needed() -> None:
    sources = [llama(context=(r, 2, 2)).layout() for r in range(2)]
    assert _C.choose_kv_sources(sources, llama().layout()) == [0, 1]
    with pytest.raises(ValueError, match="token 2 of the target is held by 0"):
        _C.choose_kv_sources(sources[:1], llama().layout())
