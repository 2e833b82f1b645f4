# SPDX-License-Identifier: Apache-2.0
"""The older backend names, which torch.compile finds through entry points and loads when one is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx


def neuron_libtorch(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Callable[..., Any]:
    """`backend="neuron_libtorch"`, or `"vllm_neuron"`: what `register()` registers under its own name."""
    from .native_backend import neuron_native_lite

    return neuron_native_lite(gm, example_inputs, options=options, **kwargs)


def neuron_libtorch_graph_capture(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """`backend="neuron_libtorch_graph_capture"`, or `"vllm_neuron_graph_capture"`: see `capture_backend`."""
    from .capture_backend import graph_capture

    return graph_capture(gm, example_inputs, options=options)
