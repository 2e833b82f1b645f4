# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite demo --disaggregated`: prefill in a process of its own, its KV blocks read into this one, which decodes.

Afterwards this process answers the same prompt alone, with the same kernels and shapes: the ids must be identical.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from ..errors import CommandError
from .report import DemoReport

_READY_SECONDS = 900.0  # loading, converting and compiling on a slow machine
_REPLY_SECONDS = 120.0
_READ_SECONDS = 10.0


@dataclass(frozen=True)
class DisaggregatedReport(DemoReport):
    """The plain demo's keys and what two processes add; `prefill_ms` is measured in the prefill process."""

    transfer_ms: float  # from posting the read to its end
    transfer_gb_per_s: float | None  # 1e9 bytes
    transfer_bytes: int
    provider: str
    ttft_ms: float  # from the request to its first token here, prefill and KV included
    inter_token_ms: float | None  # mean over the decoded tokens
    one_process_tokens: list[int]  # what this process alone answers
    one_process_identical: bool

    @property
    def passed(self) -> bool:
        """Whether the answer agrees with CPU eager and is, id by id, what one process gives."""
        return super().passed and self.one_process_identical

    def rows(self) -> list[tuple[str, str]]:
        """Lines of the table: the two processes first."""
        speed = f"{self.transfer_gb_per_s:.2f} GB/s" if self.transfer_gb_per_s else "not measured"
        identical = "identical" if self.one_process_identical else "DIFFERENT"
        return [
            ("same ids as one process", identical),
            ("KV transfer", f"{self.transfer_ms:.2f} ms, {self.transfer_bytes / 1e6:.2f} MB, {speed}"),
            ("provider", self.provider),
            ("time to first token", f"{self.ttft_ms:.0f} ms"),
            ("inter-token latency", f"{self.inter_token_ms:.1f} ms" if self.inter_token_ms else "not measured"),
            *super().rows(),
        ]


@dataclass
class _Measured:
    """What the generation leaves for the report."""

    times: Any = None
    ttft_seconds: float = 0.0
    one_process_tokens: list[int] | None = None


def run_disaggregated(arguments: argparse.Namespace, stream: TextIO | None) -> DisaggregatedReport:
    """The whole demo with two processes; the answer goes to `stream` as it is generated, when there is one."""
    from .command import run_demo

    measured = _Measured()
    with PrefillProcess(arguments) as prefill:

        def generate(
            session: Any,
            prompt: Sequence[int],
            max_new_tokens: int,
            end_ids: Iterable[int],
            on_token: Callable[[int], None],
        ) -> Any:
            from .generation import generate as generate_alone

            answer = _generate(prefill, measured, session, prompt, max_new_tokens, end_ids, on_token)
            measured.one_process_tokens = generate_alone(session, prompt, max_new_tokens, end_ids).tokens
            return answer

        report = run_demo(arguments, stream, generate)
    assert measured.one_process_tokens is not None
    times = measured.times
    rate = report.decode_tokens_per_s
    return DisaggregatedReport(
        **asdict(report),
        transfer_ms=times.total / 1e3,
        transfer_gb_per_s=times.gb_per_s,
        transfer_bytes=times.bytes,
        provider=times.provider,
        ttft_ms=measured.ttft_seconds * 1e3,
        inter_token_ms=1e3 / rate if rate else None,
        one_process_tokens=measured.one_process_tokens,
        one_process_identical=measured.one_process_tokens == report.tokens,
    )


class PrefillProcess:
    """The other process, from its start to its end. Its messages are JSON lines."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        names = ("dtype", "device", "prefill_bucket", "cache_length", "random_weights")
        self.agent = f"prefill-{os.getpid()}"
        self._arguments = {name: getattr(arguments, name) for name in names} | {"agent": self.agent}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "libtorch_neuronx_lite.cli.demo.prefill_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_one_core_each(),
        )
        self._received = b""

    def ready(self) -> str:
        """Waits until it can take requests; returns its agent's endpoint."""
        return str(self._receive(_READY_SECONDS)["endpoint"])

    def prefill(self, request: str, prompt: Sequence[int], reader: str) -> dict[str, Any]:
        """Its reply: the first token, its logits, the seconds it took, and the ticket of the leased blocks."""
        self._send({"request": request, "prompt": list(prompt), "reader": reader})
        return self._receive(_REPLY_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        limit = time.monotonic() + seconds
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise self._failure(f"has not answered within {seconds:g} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise self._failure("ended")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _failure(self, what: str) -> CommandError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        said = f": {lines[-1]}" if lines else "; it said nothing"
        return CommandError(f"the prefill process {what} (exit code {self._process.poll()}){said}")

    def __enter__(self) -> PrefillProcess:
        try:
            self._send(self._arguments)
        except CommandError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


@contextlib.contextmanager
def _decode_agent(session: Any) -> Iterator[Any]:
    from libtorch_neuronx_lite.kv import HND, Agent, KvLayout, static_cache_layers

    from .prefill_process import block_tokens

    with Agent(f"decode-{os.getpid()}") as agent:
        blocks = static_cache_layers(session.cache.layers, block_tokens(session.cache.length))
        agent.register_kv(blocks, KvLayout(HND))
        yield agent


def _generate(
    prefill: PrefillProcess,
    measured: _Measured,
    session: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    end_ids: Iterable[int],
    on_token: Callable[[int], None],
) -> Any:
    """As `generation.generate`, with the prompt's keys and values from the other process."""
    import torch

    from libtorch_neuronx_lite.kv import LeaseTicket

    from .generation import Generation
    from .prefill_process import block_tokens

    end = frozenset(end_ids)
    endpoint = prefill.ready()
    with _decode_agent(session) as agent, torch.no_grad():
        peer = agent.connect(endpoint)
        blocks = list(range(math.ceil(len(prompt) / block_tokens(session.cache.length))))
        started = time.perf_counter()
        reply = prefill.prefill("demo", prompt, agent.name)
        ticket = LeaseTicket.from_dict(reply["ticket"])
        with agent.read(peer, ticket, blocks, deadline=_READ_SECONDS) as transfer:
            transfer.wait()
            measured.times = transfer.times()
        session.cache.set_filled(len(prompt))
        tokens = [int(reply["token"])]
        prefilled = time.perf_counter()
        measured.ttft_seconds = prefilled - started
        on_token(tokens[0])
        raw = bytearray(base64.b64decode(reply["logits"]))
        rows = [torch.frombuffer(raw, dtype=session.cache.layers.layers[0].keys.dtype).reshape(1, -1)]
        token = torch.tensor([tokens], dtype=torch.int64).to(session.device)
        while len(tokens) < max_new_tokens and tokens[-1] not in end:
            token, logits = session.decode(token)
            tokens.append(int(token.item()))
            rows.append(logits)
            on_token(tokens[-1])
        finished = time.perf_counter()
    return Generation(tokens, rows, float(reply["prefill_seconds"]), finished - prefilled, tokens[-1] in end)


def _one_core_each() -> dict[str, str]:
    """The environment of the prefill process. On a chip each process takes one core, unless the user has dealt them."""
    from libtorch_neuronx_lite import _C, envs

    dealt = envs.NEURON_RT_VISIBLE_CORES or envs.NEURON_RT_NUM_CORES
    if not dealt and _C.runtime_info()["runtime"] == "nrt":
        os.environ["NEURON_RT_NUM_CORES"] = "1"  # of this process too: its runtime has not started
    return dict(os.environ)
