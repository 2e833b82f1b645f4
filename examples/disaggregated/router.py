# SPDX-License-Identifier: Apache-2.0
"""A router over many prefill and many decode workers: one of each per request, another one when a worker is lost.

    python router.py

starts two of each on this machine, sends requests, ends workers in the middle of it, and shows that every request is
answered with the same tokens as before, and that no block is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from messages import ask

PREFILL_SECONDS, DECODE_SECONDS, ATTEMPTS = 20.0, 30.0, 4


@dataclass
class Worker:
    """A worker as the router knows it."""

    name: str
    socket: str
    busy: int = 0
    lost: bool = False


class RequestFailed(Exception):
    """No pair of workers could answer it."""


@dataclass
class Router:
    """Chooses by load. A worker that is lost takes no more requests; what it had is prefilled elsewhere."""

    prefill: list[Worker]
    decode: list[Worker]
    retries: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    async def generate(self, prompt: list[int], max_new_tokens: int) -> list[int]:
        """The answer's tokens; raises RequestFailed after several attempts."""
        why = "no worker is left"
        for _ in range(ATTEMPTS):
            source, target = self._choose(self.prefill), self._choose(self.decode)
            if source is None or target is None:
                break
            # A new name per attempt: a lease of a failed one must not be taken for this one's.
            request = f"request-{next(self._numbers)}"
            source.busy, target.busy = source.busy + 1, target.busy + 1
            try:
                answer = await self._attempt(request, source, target, prompt, max_new_tokens)
            finally:
                source.busy, target.busy = source.busy - 1, target.busy - 1
            if isinstance(answer, list):
                return answer
            why = answer
            self.retries.append(f"{request}: {why}")
        raise RequestFailed(why)

    async def _attempt(
        self, request: str, source: Worker, target: Worker, prompt: list[int], limit: int
    ) -> list[int] | str:
        """The tokens, or why another attempt is needed."""
        question: dict[str, Any] = {"do": "prefill", "request": request, "prompt": prompt, "reader": target.name}
        try:
            prefilled = await ask(source.socket, question, PREFILL_SECONDS)
        except (OSError, TimeoutError) as error:
            source.lost = True
            return f"{source.name} is lost in prefill: {error}"
        if "error" in prefilled:
            return f"{source.name}: {prefilled['error']}"
        try:
            decoded = await ask(target.socket, {"do": "decode", **prefilled, "max_new_tokens": limit}, DECODE_SECONDS)
        except (OSError, TimeoutError) as error:
            target.lost = True
            await self._release(source, request, f"{target.name} is lost")
            return f"{target.name} is lost in decode: {error}"
        if "tokens" in decoded:
            tokens: list[int] = decoded["tokens"]
            return tokens
        await self._release(source, request, "the read failed")
        if "kv_error" in decoded:
            source.lost = decoded["cause"] in ("peer_lost", "unreachable")
        return f"{target.name}: {decoded}"

    async def _release(self, source: Worker, request: str, reason: str) -> None:
        """Gives the blocks back at once; if the producer is gone too, there is nothing to give back."""
        with contextlib.suppress(OSError, TimeoutError):
            await ask(source.socket, {"do": "release", "request": request, "reason": reason}, 5.0)

    @staticmethod
    def _choose(workers: list[Worker]) -> Worker | None:
        return min((worker for worker in workers if not worker.lost), key=lambda worker: worker.busy, default=None)


@dataclass
class Cluster:
    """Worker processes on this machine."""

    folder: Path
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, role: str, number: int) -> Worker:
        """Starts one and waits until it listens."""
        name = f"{role}-{number}"
        script = Path(__file__).with_name(f"{role}_worker.py")
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), name, str(self.folder / name), stdout=asyncio.subprocess.PIPE
        )
        self.processes[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(120):
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{name} did not start")
        return Worker(name, str(self.folder / name))

    async def stop(self) -> None:
        """Ends all."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def free_blocks(workers: list[Worker]) -> dict[str, int]:
    """Free blocks of each worker that is not lost, once no lease is left: its last read has been acknowledged."""
    async with asyncio.timeout(30):
        while True:
            stats = {}
            for worker in workers:
                if worker.lost:
                    continue
                try:
                    stats[worker.name] = await ask(worker.socket, {"do": "stats"}, 5.0)
                except (OSError, TimeoutError):
                    worker.lost = True  # no request was under way there when it died
            if not any(answer.get("leases") for answer in stats.values()):
                return {name: answer["free"] for name, answer in stats.items()}
            await asyncio.sleep(0.02)


async def demonstrate() -> None:
    """Two prefill and two decode workers; one of each is killed while requests run."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            router = Router(
                [await cluster.start("prefill", number) for number in range(2)],
                [await cluster.start("decode", number) for number in range(2)],
            )
            prompts = [[(7 * request + position) % 256 for position in range(40)] for request in range(12)]
            before = await asyncio.gather(*(router.generate(prompt, 24) for prompt in prompts))
            total = await free_blocks(router.prefill + router.decode)
            print(f"{len(before)} requests answered; free blocks {total}")

            running = [asyncio.create_task(router.generate(prompt, 24)) for prompt in prompts]
            await asyncio.sleep(0.05)
            for name in ("prefill-0", "decode-1"):
                cluster.processes[name].kill()
            after = await asyncio.gather(*running)
            assert after == before, "an answer changed"
            print(f"prefill-0 and decode-1 killed: all answers are the same, {len(router.retries)} attempts repeated")
            left = await free_blocks(router.prefill + router.decode)
            print(f"free blocks {left}")
            assert left == {name: total[name] for name in left}, "blocks are lost"
        finally:
            await cluster.stop()


if __name__ == "__main__":
    asyncio.run(demonstrate())
