# SPDX-License-Identifier: Apache-2.0
"""A call plan as plain JSON values and back: what a stored executable needs to be called in another process.

Tensors are not in it: constants belong to the graph at hand, and devices are chosen when the plan is read. What is read
is checked like any file from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .plan import CallPlan, EmptyTensor, Window

_MOST = 1 << 20  # arguments or results of one graph
_KINDS = ("output", "input", "none")


class PlanError(ValueError):
    """A record that is not a call plan; the text names the field."""


def to_record(plan: CallPlan) -> dict[str, Any]:
    """Return the plan as JSON values.

    Raises:
        PlanError: a plain result is of a kind that has no JSON form.
    """
    values = {str(position): _plain(position, value) for position, value in plan.values.items()}
    return {
        "argument_count": plan.argument_count,
        "arguments": list(plan.arguments),
        "results": [list(result) for result in plan.results],
        "has_rng_seed": plan.has_rng_seed,
        "constants": len(plan.constants),
        "cpu_arguments": list(plan.cpu_arguments),
        "written_arguments": list(plan.written_arguments),
        "values": values,
        "windows": {
            str(p): {"on_argument": w.on_argument, "size": list(w.size), "stride": list(w.stride), "offset": w.offset}
            for p, w in plan.windows.items()
        },
        "empties": {
            str(p): {
                "size": list(e.size),
                "stride": list(e.stride),
                "dtype": str(e.dtype).removeprefix("torch."),
                "on_cpu": e.device.type == "cpu",
            }
            for p, e in plan.empties.items()
        },
        "cpu_results": list(plan.cpu_results),
    }


def from_record(record: Any, constants: Sequence[torch.Tensor], device: torch.device) -> CallPlan:
    """Return the plan for a device.

    Args:
        record: what `to_record` returned, by way of JSON.
        constants: the graph's stored tensors that are arguments, in order, on the device.
        device: a neuron device.

    Raises:
        PlanError: the record is not a plan, or is one for another number of constants.
    """
    read = _Reader(record)
    argument_count = read.count("argument_count")
    given = read.count("constants")
    if given != len(constants):
        raise PlanError(f"the plan takes {given} constants and the graph has {len(constants)}")
    total = argument_count + given
    results = read.results(argument_count)
    return CallPlan(
        argument_count=argument_count,
        arguments=read.indices("arguments", total),
        results=results,
        has_rng_seed=read.flag(record, "has_rng_seed"),
        constants=list(constants),
        cpu_arguments=read.indices("cpu_arguments", argument_count),
        written_arguments=read.indices("written_arguments", argument_count),
        values={position: _value(value) for position, value in read.by_position("values", len(results)).items()},
        windows={p: read.window(w) for p, w in read.by_position("windows", len(results)).items()},
        empties={p: read.empty(e, device) for p, e in read.by_position("empties", len(results)).items()},
        cpu_results=read.indices("cpu_results", len(results)),
    )


class _Reader:
    """Reads fields of a record, each checked for type and range."""

    def __init__(self, record: Any) -> None:
        if not isinstance(record, Mapping):
            raise PlanError(f"a call plan is an object, not {type(record).__name__}")
        self._record = record

    def count(self, name: str) -> int:
        return _integer(self._record.get(name), name, _MOST)

    def indices(self, name: str, end: int) -> list[int]:
        return [_integer(value, name, end - 1) for value in _list(self._record.get(name), name)]

    def results(self, argument_count: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for item in _list(self._record.get("results"), "results"):
            if not isinstance(item, list) or len(item) != 2 or item[0] not in _KINDS:
                raise PlanError(f"results: {str(item)[:80]} is not one of {', '.join(_KINDS)} with an index")
            limit = argument_count - 1 if item[0] == "input" else _MOST
            found.append((str(item[0]), _integer(item[1], "results", limit)))
        return found

    def by_position(self, name: str, end: int) -> dict[int, Any]:
        table = self._record.get(name)
        if not isinstance(table, Mapping):
            raise PlanError(f"{name}: want an object")
        found: dict[int, Any] = {}
        for key, value in table.items():
            if not str(key).isdecimal() or len(str(key)) > 8 or int(key) >= end:
                raise PlanError(f"{name}: {str(key)[:80]!r} is not a position below {end}")
            found[int(key)] = value
        return found

    @staticmethod
    def flag(table: Mapping[str, Any], name: str) -> bool:
        value = table.get(name)
        if not isinstance(value, bool):
            raise PlanError(f"{name}: want true or false")
        return value

    def window(self, table: Any) -> Window:
        size, stride = _sizes(table, "windows")
        return Window(self.flag(table, "on_argument"), size, stride, _signed(table.get("offset"), "windows"))

    def empty(self, table: Any, device: torch.device) -> EmptyTensor:
        size, stride = _sizes(table, "empties")
        if 0 not in size:
            raise PlanError(f"empties: a tensor of {size} has elements")
        dtype = getattr(torch, str(table.get("dtype")), None)
        if not isinstance(dtype, torch.dtype):
            raise PlanError(f"empties: {str(table.get('dtype'))[:80]!r} is not a dtype")
        return EmptyTensor(size, stride, dtype, torch.device("cpu") if self.flag(table, "on_cpu") else device)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST:
        raise PlanError(f"{name}: want a list of at most {_MOST} items")
    return value


def _integer(value: Any, name: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise PlanError(f"{name}: {str(value)[:80]} is not a whole number from 0 to {limit}")
    return value


def _signed(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 62:
        raise PlanError(f"{name}: {str(value)[:80]} is not a whole number below 2^62")
    return value


def _sizes(table: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not isinstance(table, Mapping):
        raise PlanError(f"{name}: want an object")
    size = tuple(_signed(value, name) for value in _list(table.get("size"), name))
    stride = tuple(_signed(value, name) for value in _list(table.get("stride"), name))
    if len(size) != len(stride) or any(number < 0 for number in (*size, *stride)):
        raise PlanError(f"{name}: sizes {size} and strides {stride} do not fit")
    return size, stride


def _plain(position: int, value: Any) -> Any:
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise PlanError(f"result {position} of the graph is {value!r}, which is neither a tensor nor a plain number")


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        parts, dtype = value.get("complex"), getattr(torch, str(value.get("dtype")), None)
        if isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, (int, float)) for part in parts):
            return complex(*parts)
        if isinstance(dtype, torch.dtype):
            return dtype
    if isinstance(value, (dict, list)):
        raise PlanError("values: want a number, a string, null, a complex number or a dtype")
    return value
