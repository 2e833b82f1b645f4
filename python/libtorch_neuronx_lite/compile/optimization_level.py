# SPDX-License-Identifier: Apache-2.0
"""The optimisation level among compiler arguments: one argument, however it is spelt, and O2 where none is given."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .._errors import OptionError
from .platform import HOST

DEFAULT = "-O2"

_JOINED = re.compile(r"(?:-O|--optlevel=|--optimization-level=)(\S+)")
_SPLIT = ("-O", "--optlevel", "--optimization-level")
_LEVELS = ("1", "2", "3")


def canonical(args: Sequence[str], target: str) -> list[str]:
    """Return compiler arguments with the level first, as `-O1`, `-O2` or `-O3`; of several, the last one counts.

    Understood are `-O2`, `-O 2`, `--optlevel 2`, `--optlevel=2`, `--optimization-level 2` and
    `--optimization-level=2`. The host compiler has no levels: there a level is left out.

    Raises:
        OptionError: a level other than 1, 2 or 3.
    """
    rest: list[str] = []
    level: str | None = None
    position = 0
    while position < len(args):
        arg = args[position]
        position += 1
        joined = _JOINED.fullmatch(arg)
        if joined is not None:
            level = joined.group(1)
        elif arg in _SPLIT:
            level = args[position] if position < len(args) else ""
            position += 1
        else:
            rest.append(arg)
            continue
        if level not in _LEVELS:
            raise OptionError(f"the optimisation level {level!r} of the compiler is not one of {', '.join(_LEVELS)}")
    if target == HOST:
        return rest
    return [f"-O{level}" if level is not None else DEFAULT, *rest]
