# SPDX-License-Identifier: Apache-2.0
"""Writes a NEFF: a 1024-byte header, then a tar archive. Equal content gives equal bytes."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile

HEADER_BYTES = 1024
# pkg_version, header_size, data_size, version major and minor, build_version, num_tpb, hash, uuid, name,
# requested_tpb_count, tpb_per_node, (4 bytes of C alignment), feature_bits, lnc_size.
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64s4xQI")
_PKG_VERSION = 2  # the digest is sha256
_VERSION = (2, 0)


def write_neff(name: str, files: dict[str, bytes], *, build_version: str) -> bytes:
    """Return a NEFF for one core.

    Args:
        name: the graph's name; cut to 255 bytes in the header.
        files: path in the archive -> content. The order of the dictionary does not matter.
        build_version: the compiler's name and version.
    """
    data = _archive(files)
    digest = hashlib.sha256(data).digest()
    # From the content, not from the clock or chance: a rebuild is the same file. Variant and version bits of RFC 9562's
    # version 8 (custom).
    uuid = bytearray(hashlib.sha256(b"libtorch-neuronx-lite host neff" + name.encode() + digest).digest()[:16])
    uuid[6] = uuid[6] & 0x0F | 0x80
    uuid[8] = uuid[8] & 0x3F | 0x80
    header = _HEADER.pack(
        _PKG_VERSION,
        HEADER_BYTES,
        len(data),
        *_VERSION,
        build_version.encode()[:127],
        1,
        digest,
        bytes(uuid),
        name.encode()[:255].decode(errors="ignore").encode(),
        1,
        b"\x01",
        0,
        1,
    )
    return header.ljust(HEADER_BYTES, b"\0") + data


def _archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(files):
            member = tarfile.TarInfo(path)  # mtime, owner and mode keep their fixed defaults
            member.size = len(files[path])
            archive.addfile(member, io.BytesIO(files[path]))
    return stream.getvalue()
