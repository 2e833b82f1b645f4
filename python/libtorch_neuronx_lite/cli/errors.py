# SPDX-License-Identifier: Apache-2.0
"""The one error a subcommand raises on purpose: a sentence for the user and the exit code that goes with it."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1  # the work was tried and went wrong, or the demo's self-check found a difference
EXIT_USAGE = 2  # arguments, or something the user has to install first


class CommandError(Exception):
    """Ends the command with `exit_code` after printing the message, one sentence, on stderr."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
