# SPDX-License-Identifier: Apache-2.0
"""From a graph to an executable: targets, keys, the cache, compilers and the torch.compile backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import save_cache

__all__ = ["save_cache"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # late: the cache imports torch.fx
        from . import cache

        return getattr(cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
