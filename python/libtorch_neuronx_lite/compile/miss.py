# SPDX-License-Identifier: Apache-2.0
"""Says why a graph is not in the cache, by an entry of the same graph and what is different about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .entry import BrokenEntryError, read_metadata

_MOST_ENTRIES = 2000  # looked at; a message is not worth more


def explain_miss(root: Path, parts: dict[str, Any]) -> str:
    """Return a sentence about the entries of the same graph, or about how many entries there are."""
    try:
        keys = [name for name in os.listdir(root) if len(name) == 32][:_MOST_ENTRIES]
    except OSError:
        keys = []
    for key in keys:
        try:
            other = read_metadata(root, key).get("key_parts")
        except (BrokenEntryError, OSError, ValueError):
            continue
        if isinstance(other, dict) and other.get("graph") == parts["graph"]:
            phrases = ", ".join(differences(other, parts))
            return f"The same graph is there as {key}, with a difference: {phrases}."
    return f"The local folder holds {len(keys)} entries, none of this graph: its shapes, dtypes or code are others."


def differences(other: dict[str, Any], parts: dict[str, Any], prefix: str = "") -> list[str]:
    """Return a phrase for each part of a key that differs between an entry there and a graph here."""
    found: list[str] = []
    for name in sorted(set(other) | set(parts)):
        there, here = other.get(name), parts.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            found += differences(there, here, f"{prefix}{name} ")
        elif there != here:
            found.append(f"{prefix}{name} is {str(there)[:80]} there and {str(here)[:80]} here")
    return found
