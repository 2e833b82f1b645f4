# SPDX-License-Identifier: Apache-2.0
"""Which target a graph is compiled for, and what is known about it: the one place that decides."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from .. import envs
from .._errors import OptionError, nearest

HOST = "host"
CHIPS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
TARGETS = (*CHIPS, HOST)

# GiB of device memory for each logical core, by chip.
HBM_MEMORY_GB: dict[str, int] = {"trn1": 16, "trn1n": 16, "inf2": 16, "trn2": 24, "trn3": 36}

_PRODUCT = "/sys/devices/virtual/dmi/id/product_name"


def get_platform_target() -> str:
    """Return the target of this process: the override variable, else what the runtime in use executes.

    Asks files and variables only, never the runtime, so that it may be called where no device is.

    Raises:
        OptionError: a chip is present and its kind is not known.
    """
    override: str | None = envs.NEURON_PLATFORM_TARGET_OVERRIDE
    if override is not None:
        return override
    runtime: str = envs.NEURON_LIBTORCH_RUNTIME
    if runtime == "host" or (runtime == "auto" and not glob.glob("/dev/neuron*")):
        return HOST
    try:
        product = Path(_PRODUCT).read_text(encoding="utf-8").strip()
    except OSError:
        product = ""
    chip = re.split(r"[.\s]", product.lower())[0].rstrip("u")
    if chip in CHIPS:
        return chip
    raise OptionError(
        f"the chip of this host is not known: {_PRODUCT} says {product!r}. Set NEURON_PLATFORM_TARGET_OVERRIDE to one"
        f" of {', '.join(TARGETS)}."
    )


def resolve_target(args: str | Sequence[str] | None) -> str:
    """Return the target that compiler arguments name with `--target`, else `get_platform_target()`.

    Raises:
        OptionError: the arguments name a target that does not exist.
    """
    items = compiler_args(args)
    for position, item in enumerate(items):
        name, joined, value = item.partition("=")
        if name != "--target":
            continue
        if not joined:
            value = items[position + 1] if position + 1 < len(items) else ""
        if value not in TARGETS:
            raise OptionError(f"--target {value!r} is not one of {', '.join(TARGETS)}.{nearest(value, TARGETS)}")
        return value
    return get_platform_target()


def compiler_args(args: str | Sequence[str] | None) -> list[str]:
    """Return compiler arguments as a list; one string is split as a shell would."""
    import shlex

    if args is None:
        return []
    return shlex.split(args) if isinstance(args, str) else [str(item) for item in args]


def without_target(args: Sequence[str]) -> list[str]:
    """Return the arguments less `--target`, which the command line gives on its own."""
    kept: list[str] = []
    skip = False
    for item in args:
        if skip:
            skip = False
        elif item == "--target":
            skip = True
        elif not item.startswith("--target="):
            kept.append(item)
    return kept


def get_total_available_memory() -> float:
    """Return GiB of memory for each core: the chip's, or on the host the limit that the runtime enforces.

    Without a limit in the environment a host core may use what the machine has.
    """
    target = get_platform_target()
    if target != HOST:
        return float(HBM_MEMORY_GB[target])
    limit: int | None = envs.NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB
    if limit is not None:
        return limit / 1024
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) / (1 << 20)
    raise RuntimeError("/proc/meminfo has no MemTotal line")
