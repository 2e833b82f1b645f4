# SPDX-License-Identifier: Apache-2.0
"""The frames that parent and worker exchange: a JSON header and byte blobs, each with its length in front.

Layout, little endian: magic ``NXLW``, u32 header bytes, the header (JSON, UTF-8), then the blobs one after another. The
header's ``blobs`` member lists ``[name, bytes]`` in order. A repro file is one request frame on disk.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

MAGIC = b"NXLW"
MAX_HEADER_BYTES = 64 << 20
_PREFIX = struct.Struct("<4sI")

Json = dict[str, Any]


class ProtocolError(RuntimeError):
    """The bytes on the pipe are not a frame."""


def encode(header: Json, blobs: dict[str, bytes]) -> list[bytes]:
    """Return the pieces of one frame, in the order in which they are to be written."""
    head = json.dumps({**header, "blobs": [[name, len(data)] for name, data in blobs.items()]}).encode()
    if len(head) > MAX_HEADER_BYTES:
        raise ProtocolError(f"a frame header of {len(head)} bytes is over the limit of {MAX_HEADER_BYTES}")
    return [_PREFIX.pack(MAGIC, len(head)) + head, *blobs.values()]


def write_frame(stream: BinaryIO, header: Json, blobs: dict[str, bytes]) -> None:
    """Write one frame and flush."""
    for piece in encode(header, blobs):
        stream.write(piece)
    stream.flush()


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if data is None or len(data) != count:
        raise EOFError(f"the stream ended after {len(data or b'')} of {count} bytes")
    return data


def read_frame(stream: BinaryIO) -> tuple[Json, dict[str, bytes]]:
    """Read one frame; raise EOFError at the end of the stream and ProtocolError for anything that is not a frame."""
    magic, head_bytes = _PREFIX.unpack(_read_exactly(stream, _PREFIX.size))
    if magic != MAGIC:
        raise ProtocolError(f"expected a frame that starts with {MAGIC!r}, got {magic!r}")
    if head_bytes > MAX_HEADER_BYTES:
        raise ProtocolError(f"a frame header of {head_bytes} bytes is over the limit of {MAX_HEADER_BYTES}")
    try:
        header = json.loads(_read_exactly(stream, head_bytes))
        sizes = [(str(name), int(size)) for name, size in header.pop("blobs")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"a frame header cannot be read: {error}") from error
    if any(size < 0 for _, size in sizes):
        raise ProtocolError("a frame header gives a blob a negative size")
    return header, {name: _read_exactly(stream, size) for name, size in sizes}
