# SPDX-License-Identifier: Apache-2.0
"""How router and workers talk: a JSON object a line, over a local socket, never without a time limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def ask(path: str, message: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One question to the worker at a Unix socket; raises OSError or TimeoutError when it is lost."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(json.dumps(message).encode() + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
    if not line:
        raise ConnectionResetError(f"the worker at {path} is gone")
    answer: dict[str, Any] = json.loads(line)
    return answer


async def serve(path: str, handle: Handler) -> None:
    """Answers questions until the process ends; an exception of the handler is an answer with `error`."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = json.loads(await reader.readline())
            try:
                answer = await handle(message)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            pass  # the router went away; leases and deadlines clean up
        finally:
            writer.close()

    server = await asyncio.start_unix_server(connected, path)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()
