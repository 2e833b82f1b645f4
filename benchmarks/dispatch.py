# SPDX-License-Identifier: Apache-2.0
"""One call of a compiled one-op graph on neuron:0, beside an AOTAutograd backend that does nothing."""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import libtorch_neuronx_lite  # noqa: F401  registers the device
from libtorch_neuronx_lite.compile.native_backend import register

from .measure import Result, Sample, Verdict, differences, interleave, microseconds_per_call, parser

LIMIT_MICROSECONDS = 10.0
_CALLS = 16  # per measurement: few enough for the queue, which would otherwise be what is measured
_NOTHING, _OURS, _WAITED = "do-nothing backend", "neuron backend, call returns", "neuron backend, result waited for"


def _do_nothing(result: torch.Tensor) -> Any:
    """A backend whose graphs return the same ready tensor: what is left is Dynamo and AOTAutograd."""

    def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        return make_boxed_func(lambda *arguments: (result,))

    return aot_autograd(fw_compiler=compiler)


def main() -> None:
    """Prints the two calls and what the runtime adds."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=301)
    options = arguments.parse_args()
    x = torch.ones(16).to("neuron:0")

    def add_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    nothing = torch.compile(add_one, backend=_do_nothing(torch.ones(16).to("neuron:0")), fullgraph=True)
    ours = torch.compile(lambda x: x + 1, backend=register(), fullgraph=True)

    def run(call: Any, wait_each: bool = False) -> float:
        def once() -> None:
            call(x)
            if wait_each:
                torch.neuron.synchronize()

        torch.neuron.synchronize()
        return microseconds_per_call(once, _CALLS)

    with torch.no_grad():
        for call in (nothing, ours):
            call(x)
        cases = {_NOTHING: lambda: run(nothing), _OURS: lambda: run(ours), _WAITED: lambda: run(ours, True)}
        interleave(cases, 20)  # warm
        values = interleave(cases, options.rounds)
    added = Sample("added by the runtime", differences(values[_OURS], values[_NOTHING]), "us")
    Result(
        "dispatch of x + 1, float32[16]",
        [*(Sample(name, measured, "us") for name, measured in values.items()), added],
        [Verdict("added by the runtime", added.median, LIMIT_MICROSECONDS, "us")],
    ).show(options.json)


if __name__ == "__main__":
    main()
