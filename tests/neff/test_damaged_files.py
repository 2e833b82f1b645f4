# SPDX-License-Identifier: Apache-2.0
"""NEFFs that are truncated, flipped, oversized, escaping or for another target: one exception each, nothing kept."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from libtorch_neuronx_lite import _C
from libtorch_neuronx_lite.hostcc import compile_stablehlo
from libtorch_neuronx_lite.hostcc.neff import HEADER_BYTES, with_header, write_neff

ADD = b"""func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %c = stablehlo.add %a, %b : tensor<2x3xf32>
  return %c : tensor<2x3xf32>
}"""
_TAR_SIZE, _TAR_CHECKSUM = 124, 148


@pytest.fixture(scope="module")
def neff() -> bytes:
    return compile_stablehlo(ADD, name="add")


@pytest.fixture(autouse=True)
def _nothing_is_kept(neff: bytes) -> Iterator[None]:
    """Refusals take no device memory, and the device works after them."""
    a = torch.ones(2, 3, device="neuron:0")
    free, _ = torch.neuron.mem_get_info(0)
    yield
    assert torch.neuron.mem_get_info(0)[0] == free
    (result,) = _C.GraphCall(_C.Executable.load(neff, 0), [0, 1], [("output", 0)])([a, a])
    assert result.cpu().unique().tolist() == [2.0]


def _files(neff: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(neff[HEADER_BYTES:])) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def _refusal(content: bytes) -> str:
    """What the loader and the reader behind `neuron-lite neff` say, in the same words."""
    with pytest.raises(ValueError, match=r"(?i)neff") as loading:
        _C.Executable.load(content, 0)
    with pytest.raises(ValueError, match=r"(?i)neff") as reading:
        _C.neff_info(content)
    assert str(loading.value) == str(reading.value)
    return str(loading.value)


def _edited(neff: bytes, path: str, edit: Callable[[Any], None]) -> bytes:
    """A whole and sealed NEFF in which one JSON file says something else."""
    files = _files(neff)
    value = json.loads(files[path])
    edit(value)
    return write_neff("edited", {**files, path: json.dumps(value).encode()}, build_version="test")


def test_what_the_writer_writes_is_read(neff: bytes) -> None:
    header = _C.neff_info(neff)["header"]
    assert (header["name"], header["num_tpb"], header["lnc_size"], header["feature_bits"]) == ("add", 1, 1, 0)
    odd = write_neff("größe\n" * 99, _files(neff), build_version="ü" * 200)
    assert _C.neff_info(odd)["header"]["name"] == ("gr__e_" * 99)[:255]
    packed = with_header("packed", gzip.compress(neff[HEADER_BYTES:]), build_version="test")
    assert _C.neff_info(packed)["files"] == _C.neff_info(neff)["files"]
    assert _C.Executable.load(packed, 0).inputs[0].shape == (2, 3)


def test_truncated(neff: bytes) -> None:
    for size in {*range(0, len(neff), 61), HEADER_BYTES - 1, HEADER_BYTES, len(neff) - 1}:
        assert "bytes" in _refusal(neff[:size])
    archive = neff[HEADER_BYTES:]
    for size in range(0, archive.rindex(b"ustar"), 61):  # the header fits what is left
        _refusal(with_header("cut", archive[:size], build_version="test"))


def test_every_flipped_bit_of_the_header(neff: bytes) -> None:
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(neff)
        flipped[bit // 8] ^= 1 << bit % 8
        _refusal(bytes(flipped))


def test_a_flipped_bit_in_any_byte_of_the_data(neff: bytes) -> None:
    for index in range(HEADER_BYTES, len(neff)):
        flipped = bytearray(neff)
        flipped[index] ^= 1 << index % 8
        assert "digest" in _refusal(bytes(flipped))


@pytest.mark.parametrize("size", [0, 1, 1 << 31, 1 << 63, (1 << 64) - 1])
def test_a_data_size_that_is_not_true(neff: bytes, size: int) -> None:
    text = _refusal(neff[:16] + struct.pack("<Q", size) + neff[24:])
    assert f"data_size is {size}, but {len(neff) - HEADER_BYTES} bytes follow" in text


def test_bytes_after_the_end(neff: bytes) -> None:
    assert "longer than it says" in _refusal(neff + b"\0")


@pytest.mark.parametrize("size", ["77777777777", "00001000000"])
def test_a_file_larger_than_the_archive(neff: bytes, size: str) -> None:
    archive = bytearray(neff[HEADER_BYTES:])
    archive[_TAR_SIZE : _TAR_SIZE + 12] = size.encode() + b"\0"
    archive[_TAR_CHECKSUM : _TAR_CHECKSUM + 8] = b" " * 8
    archive[_TAR_CHECKSUM : _TAR_CHECKSUM + 8] = b"%06o\0 " % sum(archive[:512])
    text = _refusal(with_header("large", bytes(archive), build_version="test"))
    assert f"{int(size, 8)} bytes at byte 512 pass the end" in text


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [2, -3], [1] * 33])
def test_a_shape_that_no_tensor_has(neff: bytes, shape: list[int]) -> None:
    def edit(definition: Any) -> None:
        definition["var"]["input0"]["shape"] = shape

    assert "NEFF 'edited': sg00/def.json: variable 'input0'" in _refusal(_edited(neff, "sg00/def.json", edit))


@pytest.mark.parametrize("arena", [1 << 50, (1 << 63) - 1])
def test_a_program_that_wants_more_memory_than_there_is(
    neff: bytes, arena: int, capfd: pytest.CaptureFixture[str]
) -> None:
    content = _edited(neff, "sg00/program.json", lambda program: program.update(arena_bytes=arena))
    with pytest.raises((ValueError, torch.OutOfMemoryError), match="'edited'"):
        _C.Executable.load(content, 0)
    assert str(arena) in capfd.readouterr().err  # the runtime's own log says why


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "sg00/../../evil", "sg00/..", "sg00\\evil", "./../evil"])
def test_a_path_that_leaves_the_archive(neff: bytes, path: str) -> None:
    text = _refusal(write_neff("escape", {**_files(neff), path: b"x"}, build_version="test"))
    assert any(why in text for why in ("leaves the archive", "is absolute", "backslash"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_or_a_device_in_the_archive(neff: bytes, kind: bytes) -> None:
    stream = io.BytesIO(neff[HEADER_BYTES:])
    with tarfile.open(fileobj=stream, mode="a", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("sg00/more")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    text = _refusal(with_header("link", stream.getvalue(), build_version="test"))
    assert "only regular files and folders are accepted" in text


@pytest.mark.parametrize("target", ["trn2", "chip"])
def test_a_neff_for_another_target(neff: bytes, target: str) -> None:
    files = _files(neff)
    for path in ("neff.json", "sg00/def.json"):
        value = json.loads(files[path])
        del value["target"]
        if target != "chip":
            value["target"] = target
        files[path] = json.dumps(value).encode()
    content = write_neff("other", files, build_version="test")
    assert _C.neff_info(content)["target"] == target
    with pytest.raises(ValueError, match=rf"'other' was built for the chip \(target '{target}'\).*host runtime"):
        _C.Executable.load(content, 0)
