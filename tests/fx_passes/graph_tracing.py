# SPDX-License-Identifier: Apache-2.0
"""Traces a function on the CPU into the inference graph that the passes start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified

from libtorch_neuronx_lite.fx_passes.decompositions import decomposition_table


def inference_graph(
    function: Callable[..., Any], *args: torch.Tensor, then: Callable[[fx.GraphModule], Any] = lambda gm: gm
) -> Any:
    """Return `then(graph)`, called where a backend would compile the graph."""
    torch._dynamo.reset()
    found: list[Any] = []

    def compiler(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(then(gm))
        return lambda args: [None] * 64

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        aot_module_simplified(
            gm, list(inputs), fw_compiler=compiler, inference_compiler=compiler,
            decompositions=decomposition_table(), keep_inference_input_mutations=True,
        )  # fmt: skip
        return gm.forward

    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=False)(*args)
    (result,) = found
    return result
