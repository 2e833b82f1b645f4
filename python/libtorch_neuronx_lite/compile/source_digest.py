# SPDX-License-Identifier: Apache-2.0
"""A digest of the code of a Python function and of all the user's code that it reaches: an edit is another digest."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

_PRINTED = (
    bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.memory_format,
)  # fmt: skip
_MOST_ELEMENTS = 1 << 16

# Code of these changes with their version, which the cache key names; the standard library's changes with Python.
_RELEASED = frozenset({"torch", "torch_mlir", "numpy", "libtorch_neuronx_lite"}) | sys.stdlib_module_names


def source_digest(*roots: Any) -> str:
    """Return a digest of callables: their byte code and constants, and those of everything they reach.

    Followed: nested functions, closures, defaults, decorated originals, `functools.partial`, methods, classes, globals,
    and functions of modules that the code names. Plain values among them count by their `repr`, objects by their class
    and attributes. Comments, docstrings, line numbers and file names do not count; code of Python, torch and numpy
    counts by name.
    """
    digest = hashlib.sha256()
    seen: set[int] = set()
    for root in roots:
        for part in _parts(root, seen):
            digest.update(part.encode())
            digest.update(b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    own = getattr(value, "__neuron_cache_key__", None)
    if callable(own) and not isinstance(value, type):
        yield f"own {own()}"
        return
    if isinstance(value, functools.partial):
        for item in (value.func, *value.args, *(x for pair in sorted(value.keywords.items()) for x in pair)):
            yield from _parts(item, seen)
        return
    if isinstance(value, types.MethodType):
        yield from _parts(value.__func__, seen)
        return
    if isinstance(value, _PRINTED):
        yield repr(value)
        return
    if isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {list(value.shape)}"
        if value.device.type == "cpu" and value.numel() <= _MOST_ELEMENTS:
            yield repr(value.detach().tolist())
        return
    if isinstance(value, (list, tuple, set, frozenset, dict)) and value:
        if id(value) in seen:
            return
        seen.add(id(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        yield f"{type(value).__name__} {len(value)}"
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        for item in items:
            yield from _parts(item, seen)
        return
    if isinstance(value, dict):
        yield f"dict {len(value)}"
        for key, item in value.items():
            yield repr(key)
            yield from _parts(item, seen)
        return
    if isinstance(value, types.CodeType):
        yield from _code(value)
        return
    if not isinstance(value, (types.FunctionType, type)):
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "fn", None)
        if callable(wrapped):
            yield from _parts(wrapped, seen)
        elif isinstance(value, types.ModuleType):
            yield f"module {value.__name__}"
        elif not _released(type(value)) and hasattr(value, "__dict__"):
            yield from _parts(type(value), seen)
            yield from _parts(vars(value), seen)
        else:  # its repr may hold an address
            yield f"{type(value).__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        return
    if _released(value):
        yield f"{value.__module__}.{value.__qualname__}"
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, type):
        yield f"class {value.__qualname__}"
        for base in value.__mro__[1:]:
            yield from _parts(base, seen)
        for name, member in sorted(vars(value).items()):
            if name in ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"):
                continue
            member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            member = member.fget if isinstance(member, property) else member
            yield name
            yield from _parts(member, seen)
        return
    yield f"def {value.__qualname__}"
    yield from _function(value, seen)


def _released(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _RELEASED - {"__main__"}


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _code(function.__code__)
    original = inspect.unwrap(function)
    if original is not function:
        yield from _parts(original, seen)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _parts(default, seen)
    for cell in function.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            yield "empty cell"
    names = sorted(set(_names(function.__code__)))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield f"global {name}"
        yield from _parts(value, seen)
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _RELEASED:
            for attribute in names:
                member = vars(value).get(attribute)
                if member is not None:
                    yield f"{name}.{attribute}"
                    yield from _parts(member, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount))
    first = code.co_consts[0] if code.co_consts and not code.co_name.startswith("<") else None
    documentation = first if isinstance(first, str) else None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        elif constant is not documentation:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)
