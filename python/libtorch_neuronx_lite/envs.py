# SPDX-License-Identifier: Apache-2.0
"""Every environment variable this package reads: one lazily read attribute each, with its type, default and meaning."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: the variable, and the attribute of this module.
        parse: text to value; raises ValueError with what it wants.
        default: the value when the variable is unset or empty; None means "not given".
        doc: one sentence.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str

    def read(self) -> Any:
        """Return the value that the environment gives now.

        Raises:
            ValueError: naming the variable, its text and what it wants.
        """
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text!r}: {error}. {self.doc}") from None


def _flag(text: str) -> bool:
    value = {
        "1": True,
        "true": True,
        "on": True,
        "yes": True,
        "0": False,
        "false": False,
        "off": False,
        "no": False,
    }.get(text.strip().lower())
    if value is None:
        raise ValueError("want 0 or 1")
    return value


def _count(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise ValueError(f"want a whole number from {low} upwards")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ValueError("want a number of seconds above 0")
    return value


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"want one of {', '.join(choices)}")
        return text.lower()

    return parse


def _level(text: str) -> str:
    return _choice("debug", "info", "warning", "error", "critical")(text).upper()


TARGETS = ("trn1", "trn1n", "trn2", "trn3", "inf2", "host")

_DECLARED = (
    # The compile cache.
    Variable(
        "NEURON_LIBTORCH_CACHE_ROOT", str, None, "Folder of the caches; compiled graphs are in neuron/compile_cache."
    ),
    Variable("NEURON_LIBTORCH_REMOTE_CACHE", str, None, "Shared folder to fetch compiled graphs from on a local miss."),
    Variable("NEURON_LIBTORCH_DISABLE_COMPILE_CACHE", _flag, False, "Always compile."),
    Variable("NEURON_LIBTORCH_COMPILATION_TIMEOUT", _seconds, 600.0, "Seconds for one graph, in any process."),
    Variable("NEURON_LIBTORCH_COMPILE_RETRIES", _count(0), 1, "Further attempts after a fault of the machine."),
    Variable("NEURON_LIBTORCH_NEURONX_CC", str, None, "Path of the compiler for chips, before PATH."),
    Variable("NEURON_LIBTORCH_NEURONX_CC_VERSION", str, None, "Version of the compiler that made the cached graphs."),
    Variable("NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS", _count(1), 8, "Compiler processes per host."),
    Variable("NEURON_LIBTORCH_ASSERT_CACHE_HIT", _flag, False, "A cache miss is an error."),
    Variable("NEURON_LIBTORCH_DISABLE_GRAPH_CAPTURE_BACKEND", _flag, False, "Offer no capture backend."),
    Variable("NEURON_LIBTORCH_CPU_COMPILE", _flag, False, "Compile from meta tensors with no device present."),
    Variable("NEURON_PLATFORM_TARGET_OVERRIDE", _choice(*TARGETS), None, "The target to compile for."),
    Variable("VLLM_NEURON_BACKEND", str, "neuron_native", "Compile route: neuron_native (alias neuron)."),
    Variable("VLLM_NEURON_DISABLE_WARMUP_COMPILE", _flag, False, "The same as NEURON_LIBTORCH_ASSERT_CACHE_HIT."),
    Variable("VLLM_CACHE_ROOT", str, None, "Folder of the caches when NEURON_LIBTORCH_CACHE_ROOT is not set."),
    # The runtime of this package.
    Variable("NEURON_LIBTORCH_RUNTIME", _choice("auto", "nrt", "host"), "auto", "Which runtime executes: chip or CPU."),
    Variable("NEURON_LIBTORCH_NRT_LIBRARY", str, None, "Path of libnrt.so.1, before the loader's own search."),
    Variable("NEURON_LIBTORCH_LOG_LEVEL", _level, "WARNING", "Least level of this package's log messages."),
    Variable(
        "NEURON_LIBTORCH_EAGER_FALLBACK", _choice("allow", "warn", "error"), "warn", "Eager operators on the CPU."
    ),
    Variable("NEURON_LIBTORCH_EXECUTION_TIMEOUT", _seconds, None, "Seconds until a wait for the device gives up."),
    Variable("NEURON_LIBTORCH_HOST_MEMORY_LIMIT_MB", _count(1), None, "Memory of one host core, in MB."),
    Variable("NEURON_LIBTORCH_HOST_THREADS_PER_CORE", _count(1), None, "CPU threads of one host core."),
    Variable("NEURON_LIBTORCH_HOST_INLINE", _flag, True, "Small programs may run on the thread of their caller."),
    Variable(
        "NEURON_LIBTORCH_HOST_COLLECTIVES_TIMEOUT", _count(1), 300, "Seconds that a collective waits for other ranks."
    ),
    Variable(
        "NEURON_LIBTORCH_HOST_COLLECTIVES_TRANSPORT",
        _choice("auto", "shm", "tcp"),
        "auto",
        "How the ranks of a collective reach each other: shared memory where all are on one host, else TCP.",
    ),
    Variable("NEURON_LIBTORCH_HOST_CLAIM_DIR", str, None, "Folder of the files that claim host cores."),
    Variable("NEURON_LIBTORCH_HOST_FAULTS", str, None, "Faults for the host runtime to inject, for tests."),
    Variable("NEURON_LIBTORCH_HOST_SENDRECV_BIND", str, None, "Address at which host cores take send/receive by TCP."),
    Variable("NEURON_LIBTORCH_HOST_SENDRECV_PORT", _count(1024), 45645, "TCP port of absolute host core 0."),
    Variable("NEURON_LIBTORCH_HOST_SENDRECV_COMMUNICATORS", _count(1), 64, "Communicators of one host core."),
    Variable("NEURON_LIBTORCH_HOST_SENDRECV_PENDING", _count(1), 16, "Unreported requests of one communicator."),
    Variable(
        "NEURON_LIBTORCH_HOST_SENDRECV_TIMEOUT_MS", _count(1), 30000, "Standstill after which a request is late, in ms."
    ),
    Variable(
        "NEURON_LIBTORCH_WORKER_MEMORY_MB", _count(64), 8192, "Resident memory at which a worker is ended, in MB."
    ),
    # KV transfer under NIXL's names; `kv.Agent` takes its configuration from its caller.
    Variable("NEURON_LIBTORCH_KV_BIND", str, None, "Where an agent of kv.nixl_compat listens, such as tcp:10.0.0.5:0."),
    Variable("NEURON_LIBTORCH_KV_KEY_FILE", str, None, "File of mode 0600 with the key that its peers share."),
    # Read by the runtime itself at its start; here for `neuron-lite info`.
    Variable("NEURON_RT_VISIBLE_CORES", str, None, "The neuron cores of this process, such as 0-3,6."),
    Variable("NEURON_RT_NUM_CORES", _count(1), None, "How many neuron cores this process takes."),
    Variable("NEURON_LOGICAL_NC_CONFIG", _count(1), None, "Physical cores in one logical core."),
    Variable("NEURON_RT_ROOT_COMM_ID", str, None, "Address of the collectives' rendezvous; never set by this package."),
    Variable("NEURON_RT_MAP_HBM", _flag, False, "Map device memory, so that data_ptr() can be registered."),
)
VARIABLES: Mapping[str, Variable] = {variable.name: variable for variable in _DECLARED}

_PREFIX = "NEURON_LIBTORCH_"
_NFS = frozenset({"nfs", "nfs4", "efs", "fuse.s3fs", "lustre"})


def __getattr__(name: str) -> Any:
    variable = VARIABLES.get(name)
    if variable is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return variable.read()


def __dir__() -> list[str]:
    return sorted([*globals(), *VARIABLES])


def unknown_variables() -> dict[str, str | None]:
    """Return the NEURON_LIBTORCH_* variables of the environment that nothing reads, each with the nearest real name."""
    known = [name for name in VARIABLES if name.startswith(_PREFIX)]
    unknown: dict[str, str | None] = {}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in VARIABLES:
            matches = difflib.get_close_matches(name, known, n=1)
            unknown[name] = matches[0] if matches else None
    return unknown


def get_neuron_compile_cache_dir() -> str:
    """Return the folder of compiled graphs: `<root>/neuron/compile_cache`. It need not exist.

    The root is NEURON_LIBTORCH_CACHE_ROOT, else VLLM_CACHE_ROOT, else ~/.cache/neuron_libtorch, else (where the home
    folder is on a network file system, whose locks are not to be trusted) /tmp/neuron_libtorch_<uid>.
    """
    root = VARIABLES["NEURON_LIBTORCH_CACHE_ROOT"].read() or VARIABLES["VLLM_CACHE_ROOT"].read()
    if root is None:
        home = Path.home()
        on_network = _file_system(home) in _NFS
        root = f"/tmp/neuron_libtorch_{os.getuid()}" if on_network else str(home / ".cache" / "neuron_libtorch")
    return os.path.join(os.path.expanduser(root), "neuron", "compile_cache")


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds the path, as /proc/mounts names it; empty when unknown."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        inside = path.is_relative_to(fields[1]) if len(fields) > 2 else False
        if inside and len(fields[1]) >= len(best):
            best, kind = fields[1], fields[2]
    return kind
