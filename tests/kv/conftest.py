# SPDX-License-Identifier: Apache-2.0
"""Agents in this process and in others, closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kv_worker import WorkerProcess

from libtorch_neuronx_lite import kv


@pytest.fixture
def start_worker() -> Iterator[Callable[..., WorkerProcess]]:
    """Starts agents in processes of their own."""
    started: list[WorkerProcess] = []

    def start(name: str, config: dict[str, Any] | None = None, **arguments: Any) -> WorkerProcess:
        started.append(WorkerProcess(name, config, **arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def start_agent() -> Iterator[Callable[..., kv.Agent]]:
    """Starts agents in this process."""
    started: list[kv.Agent] = []

    def start(name: str, **config: Any) -> kv.Agent:
        started.append(kv.Agent(name, kv.AgentConfig(**config)))
        return started[-1]

    yield start
    for agent in started:
        agent.close()
