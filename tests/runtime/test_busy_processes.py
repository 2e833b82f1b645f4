# SPDX-License-Identifier: Apache-2.0
"""Two processes that keep a core of their own busy at the same time: both give right values and neither stalls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from fresh_process import FreshPython

# Late threads of an OpenMP team made one such process more than forty times slower while the other one ran. Alone the
# loop takes a fraction of a second; the limit is for a machine with work of its own.
SECONDS = 100
LOOP = """
    import torch, libtorch_neuronx_lite
    from libtorch_neuronx_lite.compile.native_backend import register

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval()
    x = torch.randn(4, 256)
    with torch.no_grad():
        want = x
        for _ in range(200):
            want = torch.tanh(model(want))
        model.to("neuron:0")
        step = torch.compile(lambda x: torch.tanh(model(x)), backend=register(), fullgraph=True)
        got = x.to("neuron:0")
        for _ in range(200):
            got = step(got)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
"""


def test_two_processes_at_once(fresh_python: FreshPython) -> None:
    def run(core: str) -> str:
        return fresh_python(LOOP, timeout=SECONDS, NEURON_RT_VISIBLE_CORES=core)

    with ThreadPoolExecutor(2) as both:
        for result in [both.submit(run, core) for core in ("0", "1")]:
            result.result()
