# SPDX-License-Identifier: Apache-2.0
"""How a rank keeps its part of a KV cache: from the tensors of an engine to the native layout and its regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .. import _C
from .errors import KvLayoutError

KvTensors = torch.Tensor | Sequence["KvTensors"] | Mapping[str, "KvTensors"]

# Orders of axes that engines use. Strides are read from the tensors, so a permuted view is described by the order of
# its own dimensions, whatever lies below.
NHD = "block token head channel"  # K and V are tensors of their own
HND = "block head token channel"
KV_FIRST = "kv block token head channel"  # K and V in one tensor per layer
KV_FIRST_HND = "kv block head token channel"
BLOCK_FIRST = "block kv token head channel"
BLOCK_FIRST_HND = "block kv head token channel"
CROSS_LAYER = "block layer kv token head channel"  # one tensor for all layers
CROSS_LAYER_HND = "block layer kv head token channel"
MLA = "block token channel"  # one latent vector per token, shared by all heads

_AXES = ("layer", "kv", "block", "token", "head", "channel")
_REQUIRED = frozenset({"block", "token", "channel"})
_DTYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.int8: "i8",
    torch.uint8: "u8",
}


@dataclass(frozen=True)
class Region:
    """A range of memory that holds KV data.

    Attributes:
        address: of the first byte.
        bytes: its length.
        name: for messages and metrics.
        core: neuron core of device memory; -1 for host memory.
        owner: a tensor that keeps the memory alive; None when the caller does.
    """

    address: int
    bytes: int
    name: str
    core: int
    owner: torch.Tensor | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class BoundLayout:
    """A layout over the memory of certain tensors: `native` for the planner, `regions` to be registered, in order."""

    native: _C.KvLayout
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class KvLayout:
    """What the shapes of KV tensors do not say: the order of their axes and this rank's part of the model.

    Attributes:
        axes: names of the tensors' dimensions, of `layer`, `kv`, `block`, `token`, `head`, `channel`; the constants
            of this module are the usual ones. With a `layer` axis one tensor (or one for K and one for V) holds all
            layers of the rank; without one there is a tensor per layer. Without a `kv` axis each layer is a pair
            (K, V), unless there is no `head` axis either: then it is MLA's latent, one part.
        total_heads: KV heads of the whole model; by default those of the tensors times `tp_size`.
        total_layers: layers of the whole model; by default those of the tensors.
        first_layer: the first layer of this pipeline stage.
        tp_rank: this rank of `tp_size`. With more ranks than heads, tp_size / total_heads ranks in a row hold the
            same head; then `total_heads` must be given.
        tp_size: tensor-parallel ranks.
        context_rank: decode-context parallel: this rank holds token i when
            (i // context_interleave) % context_size == context_rank.
        context_size: context-parallel ranks.
        context_interleave: consecutive tokens per rank.
    """

    axes: str
    total_heads: int | None = None
    total_layers: int | None = None
    first_layer: int = 0
    tp_rank: int = 0
    tp_size: int = 1
    context_rank: int = 0
    context_size: int = 1
    context_interleave: int = 1

    def __post_init__(self) -> None:
        names = self.axes.split()
        unknown = [name for name in names if name not in _AXES]
        missing = sorted(_REQUIRED - set(names))
        if unknown or missing or len(names) != len(set(names)):
            raise KvLayoutError(
                f"axes {self.axes!r}: each must be one of {', '.join(_AXES)}, at most once, and "
                f"{', '.join(sorted(_REQUIRED))} must be there."
            )
        for name in ("tp_size", "context_size", "context_interleave"):
            if getattr(self, name) < 1:
                raise KvLayoutError(f"{name} is {getattr(self, name)}, it must be at least 1.")
        for name in ("first_layer", "tp_rank", "context_rank"):
            if getattr(self, name) < 0:
                raise KvLayoutError(f"{name} is {getattr(self, name)}, it must not be negative.")

    @property
    def order(self) -> tuple[str, ...]:
        """The axis names in order."""
        return tuple(self.axes.split())

    @property
    def parts(self) -> int:
        """2 for K and V, 1 for MLA's latent."""
        return 2 if "kv" in self.order or "head" in self.order else 1

    def bind(self, tensors: KvTensors) -> BoundLayout:
        """Reads addresses, sizes and strides of `tensors` and proves the layout.

        Args:
            tensors: as `axes` says: a tensor, a sequence or mapping of them (layers in order), or of (K, V) pairs.

        Raises:
            KvLayoutError: naming the tensor or the field, its value and what it must be.
        """
        leaves = list(_leaves(tensors))
        per_layer = 1 if "kv" in self.order else self.parts
        tensors_wanted = per_layer if "layer" in self.order else None
        if not leaves or len(leaves) % per_layer or (tensors_wanted and len(leaves) != tensors_wanted):
            wanted = f"{tensors_wanted}" if tensors_wanted else f"{per_layer} for each layer"
            raise KvLayoutError(f"axes {self.axes!r} take {wanted} tensors, {len(leaves)} were given.")
        first = leaves[0][1]
        for name, tensor in leaves:
            self._check_tensor(name, tensor, first)
        sizes = dict(zip(self.order, first.shape, strict=True))
        layer_count = sizes.get("layer", len(leaves) // per_layer)
        regions, places = _regions(leaves)
        slots = [
            self._slot(leaves[self._leaf(layer, part, per_layer)][1], layer, part, places, regions)
            for layer in range(layer_count)
            for part in range(self.parts)
        ]
        native = _C.KvLayout()
        native.dtype, native.element_bytes = _DTYPES[first.dtype], first.element_size()
        native.head_dim, native.parts = sizes["channel"], self.parts
        local_heads = sizes.get("head", 1)
        native.total_heads = self.total_heads or (local_heads * self.tp_size if "head" in sizes else 1)
        native.total_layers = self.total_layers or self.first_layer + layer_count
        native.first_layer, native.layer_count = self.first_layer, layer_count
        native.tp_rank, native.tp_size = self.tp_rank, self.tp_size
        native.context_rank, native.context_size = self.context_rank, self.context_size
        native.context_interleave = self.context_interleave
        native.block_tokens, native.block_count = sizes["token"], sizes["block"]
        native.slots, native.region_bytes = slots, [region.bytes for region in regions]
        if native.head_count != local_heads:
            raise KvLayoutError(
                f"the tensors have {local_heads} heads, but rank {self.tp_rank} of {self.tp_size} holds "
                f"{native.head_count} of total_heads {native.total_heads}."
            )
        try:
            native.validate()
        except (ValueError, RuntimeError) as error:
            raise KvLayoutError(str(error)) from None
        return BoundLayout(native, tuple(regions))

    def _check_tensor(self, name: str, tensor: torch.Tensor, first: torch.Tensor) -> None:
        if tensor.dim() != len(self.order):
            raise KvLayoutError(
                f"tensor {name} has shape {tuple(tensor.shape)}, axes {self.axes!r} name {len(self.order)} dimensions."
            )
        if tensor.numel() == 0:
            raise KvLayoutError(f"tensor {name} of shape {tuple(tensor.shape)} is empty.")
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise KvLayoutError(
                f"tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, the first one {first.dtype} "
                f"{tuple(first.shape)}; layers of another kind need an agent layout of their own."
            )
        if tensor.dtype not in _DTYPES:
            raise KvLayoutError(f"tensor {name} is {tensor.dtype}; KV data is one of {', '.join(_DTYPES.values())}.")
        channel = self.order.index("channel")
        if tensor.shape[channel] > 1 and tensor.stride(channel) != 1:
            raise KvLayoutError(
                f"tensor {name} has stride {tensor.stride(channel)} along its channels; they must be contiguous."
            )
        kv = self.order.index("kv") if "kv" in self.order else None
        if kv is not None and tensor.shape[kv] != 2:
            raise KvLayoutError(f"tensor {name} has {tensor.shape[kv]} entries along its kv axis, it must be 2.")

    def _leaf(self, layer: int, part: int, per_layer: int) -> int:
        """Index of the tensor that holds a part of a layer."""
        base = 0 if "layer" in self.order else layer * per_layer
        return base + (part if per_layer == 2 else 0)

    def _slot(
        self, tensor: torch.Tensor, layer: int, part: int, places: Mapping[int, int], regions: Sequence[Region]
    ) -> _C.KvSlot:
        size = tensor.element_size()
        strides = {axis: tensor.stride(i) * size for i, axis in enumerate(self.order)}
        region = places[_storage(tensor)]
        address = tensor.data_ptr()
        address += layer * strides.get("layer", 0) + part * strides.get("kv", 0)
        return _C.KvSlot(
            region=region,
            offset=address - regions[region].address,
            block_stride=strides["block"],
            token_stride=strides["token"],
            head_stride=strides.get("head", 0),
        )


def static_cache_layers(cache: object, block_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(K, V) of every layer of a transformers `StaticCache` of batch 1, as HND blocks of `block_tokens` positions.

    The result are views [block, head, token, channel] on the cache's own memory; bind them with `KvLayout(axes=HND)`.

    Raises:
        KvLayoutError: the cache has another batch size, or `block_tokens` does not divide its length.
    """
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for index, layer in enumerate(getattr(cache, "layers", ())):
        views = []
        for tensor in (layer.keys, layer.values):
            batch, heads, length, channels = tensor.shape
            if batch != 1 or length % block_tokens:
                raise KvLayoutError(
                    f"layer {index} of the cache has batch {batch} and {length} positions; it must be 1, and a "
                    f"multiple of block_tokens {block_tokens}."
                )
            blocks = tensor.view(heads, length // block_tokens, block_tokens, channels)
            views.append(blocks.transpose(0, 1))
        pairs.append((views[0], views[1]))
    return pairs


def choose_sources(sources: Sequence[BoundLayout | _C.KvLayout], target: BoundLayout | _C.KvLayout) -> list[int]:
    """Return which ranks of a peer `target` reads from: one of each group of replicas.

    Raises:
        KvLayoutError: naming the first layer, head or token that is not covered exactly once.
    """
    natives = [source.native if isinstance(source, BoundLayout) else source for source in sources]
    try:
        return _C.choose_kv_sources(natives, target.native if isinstance(target, BoundLayout) else target)
    except (ValueError, RuntimeError) as error:
        raise KvLayoutError(str(error)) from None


def _leaves(tensors: KvTensors, name: str = "kv") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tensors, torch.Tensor):
        yield name, tensors
        return
    items = tensors.items() if isinstance(tensors, Mapping) else ((f"{name}[{i}]", t) for i, t in enumerate(tensors))
    for key, value in items:
        yield from _leaves(value, str(key))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and the one past the last that the tensor's elements touch."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def _regions(leaves: Sequence[tuple[str, torch.Tensor]]) -> tuple[list[Region], dict[int, int]]:
    """One region per storage, as long as the tensors on it reach; and the region of each storage."""
    places: dict[int, int] = {}
    regions: list[Region] = []
    for name, tensor in leaves:
        begin, end = _extent(tensor)
        core = (tensor.device.index or 0) if tensor.device.type == "neuron" else -1
        key = _storage(tensor)
        if key not in places:
            places[key] = len(regions)
            regions.append(Region(begin, end - begin, name, core, tensor))
            continue
        known = regions[places[key]]
        low, high = min(begin, known.address), max(end, known.address + known.bytes)
        regions[places[key]] = Region(low, high - low, known.name, core, known.owner)
    return regions, places
