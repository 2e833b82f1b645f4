# SPDX-License-Identifier: Apache-2.0
"""Copies entries into a shared folder, where several savers may meet: whole entries appear there by one rename."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .._errors import CacheError
from .._log import get_logger
from .entry import BrokenEntryError, read_entry
from .staging import copy_entry, name_for, staging

_logger = get_logger(__name__)


def save(local: Path, remote: Path, key: str) -> bool:
    """Copy the complete local entry of a key to the remote; return False when it was there, or another saver won.

    An entry of the remote that cannot be used is set aside under a hidden name and replaced.

    Raises:
        CacheError: the remote cannot be written, or is full.
    """
    if _is_usable(remote, key):
        return False
    try:
        remote.mkdir(parents=True, exist_ok=True)
        with staging(remote, key) as folder:
            copy_entry(local / key, folder)
            for _ in range(3):
                try:
                    os.rename(folder, remote / key)
                    return True
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                        raise
                if _is_usable(remote, key):
                    return False
                _set_aside(remote, key)
    except OSError as error:
        raise CacheError(f"the remote cache {remote} cannot be written: {error}") from error
    except BrokenEntryError as error:
        raise CacheError(f"the cache entry {local / key} cannot be copied: {error}") from error
    raise CacheError(f"the remote cache entry {remote / key} could not be replaced: it keeps changing")


def _is_usable(remote: Path, key: str) -> bool:
    try:
        return read_entry(remote, key) is not None
    except (BrokenEntryError, OSError):
        return False


def _set_aside(remote: Path, key: str) -> None:
    aside = name_for(key, "old")
    try:
        os.rename(remote / key, remote / aside)
    except FileNotFoundError:
        return  # another saver did it
    _logger.warning("the remote cache entry %s could not be used and was moved to %s", remote / key, aside)
