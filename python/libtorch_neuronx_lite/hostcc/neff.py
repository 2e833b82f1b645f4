# SPDX-License-Identifier: Apache-2.0
"""Writes a NEFF: a 1024-byte header, then a tar archive. Equal content gives equal bytes."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile

HEADER_BYTES = 1024
# pkg_version, header_size, data_size, version major and minor, build_version, num_tpb, hash, uuid, name,
# requested_tpb_count, tpb_per_node, feature_bits, lnc_size: each at its natural alignment without a gap.
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI")
_UUID = slice(204, 220)
_PKG_VERSION = 2  # the digest is sha256
_VERSION = (2, 0)


def write_neff(name: str, files: dict[str, bytes], *, build_version: str) -> bytes:
    """Return a NEFF for one core.

    Args:
        name: the graph's name; cut to 255 bytes in the header, where `_` stands for what is not printable ASCII.
        files: path in the archive -> content. The order of the dictionary does not matter.
        build_version: the compiler's name and version; cut to 127 bytes, likewise.
    """
    return with_header(name, _archive(files), build_version=build_version)


def with_header(name: str, archive: bytes, *, build_version: str) -> bytes:
    """Return a ready archive, plain or gzip, behind a header that is true of it; see `write_neff`."""
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        header,
        0,
        _PKG_VERSION,
        HEADER_BYTES,
        len(archive),
        *_VERSION,
        _text(build_version, 127),
        1,
        hashlib.sha256(archive).digest(),
        bytes(16),
        _text(name, 255),
        1,
        b"\x01",
        0,
        1,
    )
    header[_UUID] = _sealed_uuid(header)
    return bytes(header) + archive


def _text(text: str, limit: int) -> bytes:
    return "".join(c if c.isascii() and c.isprintable() else "_" for c in text)[:limit].encode()


def _sealed_uuid(header: bytearray) -> bytes:
    """Return the uuid that the reader demands of a host NEFF (csrc/neff/seal.h), given the header with zeros there.

    It comes from the content, not from the clock or chance: a rebuild is the same file.
    """
    uuid = bytearray(hashlib.sha256(header).digest()[:16])
    uuid[6] = uuid[6] & 0x0F | 0x80  # version and variant bits of RFC 9562's version 8 (custom)
    uuid[8] = uuid[8] & 0x3F | 0x80
    return bytes(uuid)


def _archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(files):
            member = tarfile.TarInfo(path)  # mtime, owner and mode keep their fixed defaults
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    return stream.getvalue()
