# SPDX-License-Identifier: Apache-2.0
"""An eager add of two small tensors on neuron:0, where it runs on the CPU, beside the same add of CPU tensors."""

from __future__ import annotations

import os

import torch

from .measure import Result, Sample, Verdict, differences, interleave, microseconds_per_call, parser

LIMIT_MICROSECONDS = 3.0
_CALLS = 500
_CPU, _NEURON = "add on cpu", "add on neuron:0"


def main() -> None:
    """Prints both adds and their difference."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=101)
    options = arguments.parse_args()
    os.environ["NEURON_LIBTORCH_EAGER_FALLBACK"] = "allow"  # read at the first fallback
    import libtorch_neuronx_lite  # noqa: F401  registers the device

    torch.set_num_threads(1)
    host = torch.ones(16)
    device = host.to("neuron:0")
    with torch.no_grad():
        cases = {
            _CPU: lambda: microseconds_per_call(lambda: host + host, _CALLS),
            _NEURON: lambda: microseconds_per_call(lambda: device + device, _CALLS),
        }
        interleave(cases, 5)  # warm
        values = interleave(cases, options.rounds)
    added = Sample("added by the fallback", differences(values[_NEURON], values[_CPU]), "us")
    Result(
        "eager fallback of x + x, float32[16]",
        [*(Sample(name, measured, "us") for name, measured in values.items()), added],
        [Verdict("added by the fallback", added.median, LIMIT_MICROSECONDS, "us")],
    ).show(options.json)


if __name__ == "__main__":
    main()
