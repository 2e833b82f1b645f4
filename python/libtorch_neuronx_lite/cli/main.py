# SPDX-License-Identifier: Apache-2.0
"""Entry point of `neuron-lite`: argument parsing, and the only place that turns an exception into an exit code."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from .errors import EXIT_FAILED, CommandError

DISTRIBUTION = "libtorch-neuronx-lite"
_SUBCOMMANDS = {
    "cache": "the compile cache: list, show, verify, save to a shared folder, prune",
    "demo": "run SmolLM2-135M-Instruct on a neuron core and check it against CPU eager",
    "info": "versions, the runtime chosen and why, cores, memory, compilers, environment variables",
    "neff": "what a NEFF file holds: header, target, inputs, outputs, aliases, size per part",
}
_MODULES = {"cache": ".cache", "demo": ".demo.command", "info": ".info", "neff": ".neff"}
_EPILOG = """examples:
  neuron-lite demo --prompt "Name three prime numbers."
  neuron-lite info --json
  neuron-lite cache ls
  neuron-lite neff graph.neff

exit codes: 0 success; 1 the work failed, or the demo's answer diverges from CPU eager; 2 wrong arguments, or
something has to be installed first.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand's arguments; cheap, nothing heavy is imported for it."""
    parser = argparse.ArgumentParser(
        prog="neuron-lite",
        description="PyTorch on AWS Trainium, and on this machine's CPU through the host runtime.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version(DISTRIBUTION)}")
    parser.add_argument("--debug", action="store_true", help="show debug logs, and the traceback of an error")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="{" + ",".join(_SUBCOMMANDS) + "}")
    for name, summary in _SUBCOMMANDS.items():
        module = importlib.import_module(_MODULES[name], __package__)
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # SUPPRESS: the flag may stand before or after the subcommand, and the second parser must not reset it.
        subparser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; argparse itself exits with 2 on wrong arguments."""
    arguments = build_parser().parse_args(argv)
    if arguments.debug:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except CommandError as error:
        if arguments.debug:
            raise
        print(f"neuron-lite {arguments.command}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (`| head`) went away. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if arguments.debug:
            raise
        sentence = " ".join(str(error).split()) or "no message"
        print(
            f"neuron-lite {arguments.command}: {type(error).__name__}: {sentence} (--debug shows the traceback)",
            file=sys.stderr,
        )
        return EXIT_FAILED
