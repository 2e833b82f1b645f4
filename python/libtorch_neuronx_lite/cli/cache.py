# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite cache`: what the compile cache holds, whether it is sound, and how it is filled and emptied."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from libtorch_neuronx_lite.compile.inventory import Item

EPILOG = """examples:
  neuron-lite cache ls
  neuron-lite cache show KEY
  neuron-lite cache verify
  neuron-lite cache compile
  neuron-lite cache save --remote /shared/neuron-cache
  neuron-lite cache prune --older-than 30d --max-size 20G

A KEY may be cut to what is unambiguous. The folder is that of the environment, see NEURON_LIBTORCH_CACHE_ROOT in
`neuron-lite info`, or --root.
"""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `neuron-lite cache`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{ls,show,verify,compile,save,prune}")

    def action(name: str, summary: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        made.add_argument("--root", type=Path, help="the folder of the entries (default: the environment's)")
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    action("ls", "list entries and whatever else lies in the folder")
    show = action("show", "print one entry: what its key is made of, its files, its command")
    show.add_argument("key", metavar="KEY")
    verify = action("verify", "compare every file of complete entries with its digest; exit code 1 when one differs")
    verify.add_argument("keys", metavar="KEY", nargs="*", help="only these")
    compile_ = action("compile", "compile the graphs that were captured into the folder; exit code 1 when one fails")
    compile_.add_argument("--remote", type=Path, help="a shared folder to fetch from and to save to")
    save = action("save", "copy complete entries into a shared folder, which other machines fetch from")
    save.add_argument("keys", metavar="KEY", nargs="*", help="only these")
    save.add_argument("--remote", type=Path, help="the shared folder (default: NEURON_LIBTORCH_REMOTE_CACHE)")
    prune = action("prune", "remove left-overs, and entries by age or size, oldest first")
    prune.add_argument("--older-than", type=_age, metavar="AGE", help="entries finished longer ago, such as 12h or 30d")
    prune.add_argument("--max-size", type=_size, metavar="SIZE", help="size to come down to, such as 500M or 20G")
    prune.add_argument("--dry-run", action="store_true", help="say what would go")


def run(arguments: argparse.Namespace) -> int:
    """Runs one action on the cache folder."""
    from libtorch_neuronx_lite import envs

    root: Path = arguments.root or Path(envs.get_neuron_compile_cache_dir())
    actions = {"ls": _ls, "show": _show, "verify": _verify, "compile": _compile, "save": _save, "prune": _prune}
    return actions[arguments.action](root, arguments)


def _ls(root: Path, arguments: argparse.Namespace) -> int:
    from libtorch_neuronx_lite.compile.inventory import items

    found = list(items(root))
    if arguments.json:
        print(json.dumps([asdict(item) for item in found], indent=2))
        return EXIT_OK
    for item in found:
        print(_line(item))
    complete = [item for item in found if item.state == "complete"]
    print(f"{len(complete)} complete entries, {_bytes(sum(item.bytes for item in found))} in {root}")
    return EXIT_OK


def _show(root: Path, arguments: argparse.Namespace) -> int:
    from libtorch_neuronx_lite.compile.entry import COMMAND, BrokenEntryError, read_metadata
    from libtorch_neuronx_lite.compile.inventory import items

    (key,) = _keys(root, [arguments.key])
    item = next(item for item in items(root) if item.name == key)
    try:
        metadata = read_metadata(root, key)
    except BrokenEntryError as error:
        raise CommandError(f"{root / key}: {error}.") from error
    files = {path.name: path.lstat().st_size for path in sorted((root / key).iterdir())}
    command = root / key / COMMAND
    text = command.read_text(errors="replace").strip() if command.is_file() and not command.is_symlink() else None
    if arguments.json:
        print(json.dumps({**asdict(item), "metadata": metadata, "files": files, "command": text}, indent=2))
        return EXIT_OK
    print(_line(item))
    for name, value in _flat(metadata.get("key_parts") or {}):
        print(_printable(f"  {name:<32} {value}"))
    for name in ("output_count", "unused_input_indices", "has_rng_seed_parameter", "io_map", "operations"):
        if name in metadata:
            print(_printable(f"  {name:<32} {metadata[name]}"))
    print("files")
    for name, size in files.items():
        print(_printable(f"  {size:>14,}  {name}"))
    if text is not None:
        print(f"command\n  {_printable(text)}")
    return EXIT_OK


def _verify(root: Path, arguments: argparse.Namespace) -> int:
    from libtorch_neuronx_lite.compile.inventory import verify

    results = {key: verify(root, key) for key in _keys(root, arguments.keys)}
    bad = {key: reason for key, reason in results.items() if reason is not None}
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        for key, reason in bad.items():
            print(f"{key}: {reason}")
        print(f"{len(results) - len(bad)} of {len(results)} entries are sound")
    return EXIT_FAILED if bad else EXIT_OK


def _compile(root: Path, arguments: argparse.Namespace) -> int:
    from libtorch_neuronx_lite._errors import CompileError
    from libtorch_neuronx_lite.compile.parallel_compile import Compiled, parallel_compile

    turns: list[Compiled] = []

    def tell(turn: Compiled) -> None:
        turns.append(turn)
        if not arguments.json:
            state = "compiled" if turn.error is None else "FAILED"
            line = f"[{turn.done}/{turn.total}] {state} {turn.name} ({turn.key}) in {turn.seconds:.1f} s"
            print(_printable(line), flush=True)

    failure: CompileError | None = None
    try:
        parallel_compile({"compiler_workdir": root}, remote_cache_dir=arguments.remote, on_progress=tell)
    except CompileError as error:
        failure = error
    if arguments.json:
        results = {t.key: {"graph": t.name, "seconds": t.seconds, "error": _text(t.error)} for t in turns}
        print(json.dumps(results, indent=2))
    elif failure is not None:
        print(failure, file=sys.stderr)
    else:
        print(f"{len(turns)} captured graphs compiled in {root}")
    return EXIT_FAILED if failure is not None else EXIT_OK


def _text(error: Exception | None) -> str | None:
    return str(error) if error is not None else None


def _save(root: Path, arguments: argparse.Namespace) -> int:
    from libtorch_neuronx_lite import envs
    from libtorch_neuronx_lite.compile.inventory import verify
    from libtorch_neuronx_lite.compile.remote import save

    named: str | None = envs.NEURON_LIBTORCH_REMOTE_CACHE
    remote: Path | None = arguments.remote or (Path(named).expanduser() if named else None)
    if remote is None:
        raise CommandError("no shared folder: give --remote, or set NEURON_LIBTORCH_REMOTE_CACHE.", EXIT_USAGE)
    results: dict[str, str] = {}
    for key in _keys(root, arguments.keys):
        reason = verify(root, key)
        if reason is not None:
            results[key] = f"not saved: {reason}"
        else:
            results[key] = "saved" if save(root, remote, key) else "was there"
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        for key, result in results.items():
            print(f"{key} {result}")
        print(f"{sum(result == 'saved' for result in results.values())} of {len(results)} entries saved to {remote}")
    return EXIT_FAILED if any(result.startswith("not") for result in results.values()) else EXIT_OK


def _prune(root: Path, arguments: argparse.Namespace) -> int:
    from libtorch_neuronx_lite.compile.inventory import prune

    if not root.is_dir():
        raise CommandError(f"{root} is no folder.", EXIT_USAGE)
    gone = prune(
        root, older_than=arguments.older_than, most_bytes=arguments.max_size, dry_run=arguments.dry_run
    )  # fmt: skip
    if arguments.json:
        print(json.dumps([asdict(item) for item in gone], indent=2))
        return EXIT_OK
    for item in gone:
        print(_line(item))
    verb = "would go" if arguments.dry_run else "removed"
    print(f"{len(gone)} {verb}, {_bytes(sum(item.bytes for item in gone))}")
    return EXIT_OK


def _keys(root: Path, given: Sequence[str]) -> list[str]:
    """Complete the keys that were given; without any, all entries with a marker."""
    from libtorch_neuronx_lite.compile.inventory import items

    entries = [item for item in items(root) if re.fullmatch(r"[0-9a-f]{32}", item.name)]
    if not given:
        return [item.name for item in entries if item.state in ("complete", "broken")]
    found: list[str] = []
    for prefix in given:
        matches = [item.name for item in entries if item.name.startswith(prefix)]
        if len(matches) != 1:
            count = "no entry" if not matches else f"{len(matches)} entries"
            raise CommandError(f"{count} of {root} begin with '{prefix}'.", EXIT_USAGE)
        found += matches
    return found


def _line(item: Item) -> str:
    age = _duration(max(0.0, time.time() - item.modified))
    holder = f"  by {item.holder.describe()}" if item.state == "compiling" and item.holder is not None else ""
    line = f"{item.name:<32} {item.state:<9} {item.target:<6} {_bytes(item.bytes):>10} {age:>6}  {item.graph}{holder}"
    return _printable(line)


def _printable(text: str) -> str:
    """Take out what could steer a terminal: names and commands may come from another machine."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _duration(seconds: float) -> str:
    for unit, length in reversed(_SECONDS.items()):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return "0s"


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; want a number with K, M, G or T, such as 20G")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; want a number with s, m, h, d or w, such as 30d")
    return float(match.group(1)) * _SECONDS[match.group(2)]
