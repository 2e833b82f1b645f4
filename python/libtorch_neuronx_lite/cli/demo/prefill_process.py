# SPDX-License-Identifier: Apache-2.0
"""The prefill process of `neuron-lite demo --disaggregated`: fills its KV cache and leases the blocks to a reader.

It speaks JSON lines with the process that started it, on stdin and stdout, and ends when stdin does.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import sys
import time
from typing import Any

BLOCK_TOKENS = 16  # at most; the largest divisor that the cache's length has in common with it is taken
LEASE_SECONDS = 60.0


def block_tokens(cache_length: int) -> int:
    """Token positions of one KV block of a cache of that length."""
    return math.gcd(BLOCK_TOKENS, cache_length)


def main() -> int:
    """Loads, compiles prefill, says where it listens, then answers one request a line."""
    # stdout belongs to the protocol: whatever a library prints goes to stderr.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    arguments = argparse.Namespace(**json.loads(sys.stdin.readline()))
    import torch

    from libtorch_neuronx_lite.kv import HND, Agent, KvLayout, static_cache_layers

    from .command import load_model, resolve_device
    from .compiled import CompiledSession

    compiled = CompiledSession(
        load_model(arguments),
        resolve_device(arguments.device),
        getattr(torch, arguments.dtype),
        bucket=arguments.prefill_bucket,
        cache_length=arguments.cache_length,
        steps=("prefill",),
    )
    size = block_tokens(arguments.cache_length)
    with Agent(arguments.agent) as agent, torch.no_grad():
        agent.register_kv(static_cache_layers(compiled.session.cache.layers, size), KvLayout(HND))
        reply({"endpoint": agent.endpoint, "pid": os.getpid()})
        for line in sys.stdin:
            request = json.loads(line)
            prompt: list[int] = request["prompt"]
            started = time.perf_counter()
            token, logits = compiled.session.prefill(prompt)
            chosen = int(token.item())  # waits: from here on the cache holds the prompt
            seconds = time.perf_counter() - started
            blocks = list(range(math.ceil(len(prompt) / size)))
            lease = agent.grant(request["request"], blocks, [request["reader"]], LEASE_SECONDS, tokens=(0, len(prompt)))
            row = logits.cpu().contiguous()
            reply(
                {
                    "token": chosen,
                    "logits": base64.b64encode(row.view(torch.uint8).numpy().tobytes()).decode(),
                    "prefill_seconds": seconds,
                    "ticket": lease.ticket.to_dict(),
                }
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
