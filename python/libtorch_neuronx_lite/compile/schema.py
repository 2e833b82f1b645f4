# SPDX-License-Identifier: Apache-2.0
"""The metadata that stands beside a compiled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VERSION = 0


def create_metadata(
    *,
    cache_key: str,
    output_count: int,
    unused_input_indices: Sequence[int] = (),
    has_rng_seed_parameter: bool = False,
    io_map: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """Return the metadata of one compiled graph as plain JSON values.

    Args:
        cache_key: the key the graph is stored under.
        output_count: results of the graph as the caller sees them, before outputs were added for updated inputs.
        unused_input_indices: call arguments that the executable does not take.
        has_rng_seed_parameter: the last input is the random seed.
        io_map: output index -> input index whose memory it is.
    """
    return {
        "version": VERSION,
        "cache_key": cache_key,
        "output_count": output_count,
        "unused_input_indices": sorted(unused_input_indices),
        "has_rng_seed_parameter": has_rng_seed_parameter,
        "io_map": {str(output): source for output, source in sorted((io_map or {}).items())},
    }
