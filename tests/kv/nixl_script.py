# SPDX-License-Identifier: Apache-2.0
"""What a serving connector does with NIXL's verbs, as two processes; runs on NIXL itself and on the facade.

    python nixl_script.py nixl|compat

prints one JSON object. Nothing in it depends on the implementation but the first import.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

BLOCKS, BLOCK_BYTES = 64, 4096
which = sys.argv[1]
if which == "compat":
    from libtorch_neuronx_lite.kv import nixl_compat

    nixl_compat.install()
try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError:
    from nixl_cu12._api import nixl_agent, nixl_agent_config


def pool(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (BLOCKS * BLOCK_BYTES,), dtype=torch.uint8, generator=generator)


def digest(memory: torch.Tensor) -> str:
    return hashlib.sha256(memory.numpy().tobytes()).hexdigest()


def text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()


def until(condition: Any) -> Any:
    limit = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.001)
    return value


def run(agent: Any, handle: Any) -> str:
    state: str = agent.transfer(handle)
    while state == "PROC":
        time.sleep(0.0005)
        state = agent.check_xfer_state(handle)
    return state


def make_agent(name: str, memory: torch.Tensor) -> tuple[Any, Any]:
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"], capture_telemetry=True))
    descs = agent.get_reg_descs([(memory.data_ptr(), memory.numel(), 0, "")], "DRAM")
    agent.register_memory(descs, backends=["UCX"])
    return agent, descs


def target() -> None:
    """Serves its memory; one line of input a command."""
    memory = pool(1)
    agent, descs = make_agent("target", memory)
    print(json.dumps({"metadata": agent.get_agent_metadata().hex(), "address": memory.data_ptr()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "add":
            answer: Any = text(agent.add_remote_agent(bytes.fromhex(command["metadata"])))
        elif command["do"] == "notifs":
            found: dict[str, list[bytes]] = until(agent.get_new_notifs)
            answer = {name: [payload.decode() for payload in payloads] for name, payloads in found.items()}
        elif command["do"] == "send":
            answer = agent.send_notif("initiator", command["text"].encode())
        else:
            answer = digest(memory)
        print(json.dumps({"answer": answer}), flush=True)
    agent.remove_remote_agent("initiator")
    agent.deregister_memory(descs)


def initiator() -> dict[str, Any]:
    child = subprocess.Popen(
        [sys.executable, __file__, which, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    stdin, stdout = child.stdin, child.stdout

    def ask(**command: Any) -> Any:
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        return receive()["answer"]

    def receive() -> Any:
        for line in stdout:
            if line.startswith("{"):  # NIXL logs to stdout
                return json.loads(line)
        raise EOFError("the target ended")

    hello = receive()
    memory = torch.zeros(BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
    agent, descs = make_agent("initiator", memory)
    result: dict[str, Any] = {"unknown before": agent.check_remote_metadata("target")}
    name = agent.add_remote_agent(bytes.fromhex(hello["metadata"]))
    result["name"], result["type of the name"] = text(name), type(name).__name__
    result["known"] = agent.check_remote_metadata("target")
    result["name at the target"] = ask(do="add", metadata=agent.get_agent_metadata().hex())

    ours = [(memory.data_ptr() + i * BLOCK_BYTES, BLOCK_BYTES, 0) for i in range(BLOCKS)]
    theirs = np.array([(hello["address"] + i * BLOCK_BYTES, BLOCK_BYTES, 0) for i in range(BLOCKS)], dtype=np.uint64)
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", ours, "DRAM")
    remote = agent.prep_xfer_dlist(name, theirs, "DRAM", backends=["UCX"])

    # READ of scattered blocks, with a notification.
    order = np.random.default_rng(3).permutation(BLOCKS).astype(np.int32)
    handle = agent.make_prepped_xfer("READ", local, order[:32], remote, order[32:], b"read is over")
    result["read"] = run(agent, handle)
    blocks = memory.view(BLOCKS, BLOCK_BYTES)
    result["read is right"] = bool((blocks[order[:32]] == pool(1).view(BLOCKS, BLOCK_BYTES)[order[32:]]).all())
    result["rest is untouched"] = not bool(blocks[order[32:]].any())
    telemetry = agent.get_xfer_telemetry(handle)
    result["bytes"] = telemetry.totalBytes
    names = ("startTime", "postDuration", "xferDuration", "descCount")
    result["telemetry types"] = [type(getattr(telemetry, name)).__name__ for name in names]
    agent.release_xfer_handle(handle)
    result["notification of the read"] = ask(do="notifs")

    # Strided lists: one row for all even blocks, one for all odd ones.
    def strided(base: int) -> Any:
        rows = [(base + start * BLOCK_BYTES, BLOCK_BYTES, 0, 2 * BLOCK_BYTES, BLOCKS // 2) for start in (0, 1)]
        return np.array(rows, dtype=np.uint64)

    local_strided = agent.prep_xfer_dlist("NIXL_INIT_AGENT", strided(memory.data_ptr()), "DRAM")
    remote_strided = agent.prep_xfer_dlist("target", strided(hello["address"]), "DRAM")
    every = np.arange(BLOCKS, dtype=np.int32)
    handle = agent.make_prepped_xfer("READ", local_strided, every, remote_strided, every)
    result["strided read"] = run(agent, handle)
    result["strided read is right"] = digest(memory) == digest(pool(1))
    agent.release_xfer_handle(handle)

    # WRITE, posted twice.
    memory.copy_(pool(2))
    handle = agent.make_prepped_xfer("WRITE", local, every, remote, every, b"written")
    result["write"] = [run(agent, handle), run(agent, handle)]
    result["notifications of the writes"] = [ask(do="notifs")]
    if len(result["notifications of the writes"][0]["initiator"]) < 2:
        result["notifications of the writes"].append(ask(do="notifs"))
    result["notifications of the writes"] = sum(
        len(found["initiator"]) for found in result["notifications of the writes"]
    )
    result["write is right"] = ask(do="digest") == digest(pool(2))
    agent.release_xfer_handle(handle)

    agent.send_notif("target", b"hello")
    result["hello"] = ask(do="notifs")
    ask(do="send", text="back")
    result["back"] = {name: [p.decode() for p in ps] for name, ps in until(agent.get_new_notifs).items()}

    # What must not work.
    def error_of(call: Any) -> str:
        try:
            return f"no error: {call()}"
        except Exception as error:
            return type(error).__name__

    outside = np.array([(hello["address"] + BLOCKS * BLOCK_BYTES, BLOCK_BYTES, 0)], dtype=np.uint64)
    result["outside"] = error_of(lambda: agent.prep_xfer_dlist("target", outside, "DRAM"))
    result["no such agent"] = error_of(lambda: agent.prep_xfer_dlist("nobody", theirs, "DRAM"))
    result["bad index"] = error_of(lambda: agent.make_prepped_xfer("READ", local, [0], remote, [BLOCKS]))
    for prepared in (local, remote, local_strided, remote_strided):
        agent.release_dlist_handle(prepared)
    agent.remove_remote_agent("target")
    result["known after removal"] = agent.check_remote_metadata("target")
    agent.deregister_memory(descs)
    stdin.close()
    result["exit code of the target"] = child.wait(20)
    stdout.close()
    return result


if __name__ == "__main__":
    if sys.argv[2:] == ["target"]:
        target()
    else:
        print(json.dumps(initiator()))
