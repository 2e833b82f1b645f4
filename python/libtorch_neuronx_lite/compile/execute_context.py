# SPDX-License-Identifier: Apache-2.0
"""The public home of the execution hooks; they live with the runtime that calls them."""

from __future__ import annotations

from ..runtime.execute_context import ExecuteContext, ExecutionMeta, get_execute_context, set_execute_context

__all__ = ["ExecuteContext", "ExecutionMeta", "get_execute_context", "set_execute_context"]
