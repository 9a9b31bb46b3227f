"""Checks that encoded images are complete before TensorFlow decodes them: its own error names no record."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_OTHERS = (b"BM", b"GIF8")
_CHUNK = struct.Struct(">I4s")
_CHECKSUM_BYTES = 4


def check_images(column: Any, where: str) -> None:
    """Checks the checksums of PNG images (https://www.w3.org/TR/png/), and the first and last bytes of JPEG images.

    Args:
        column: Arrow column of encoded images; nulls are not checked.
        where: File and column, for the message.

    Raises:
        BadInput: an image is damaged, or in none of the formats that TensorFlow decodes; the message names the row.
    """
    row = 0
    for chunk in column.chunks:
        for image in chunk:
            data = image.as_buffer()
            if data is not None and (wrong := _what_is_wrong(memoryview(data))):
                raise BadInput(f"{where}, row {row}: {wrong}; prepare the images again, which rejects damaged ones")
            row += 1


def _what_is_wrong(data: memoryview) -> str | None:
    head = bytes(data[:8])
    if head == _PNG:
        at = len(_PNG)
        while at + _CHUNK.size + _CHECKSUM_BYTES <= len(data):
            length, kind = _CHUNK.unpack_from(data, at)
            end = at + _CHUNK.size + length
            if end + _CHECKSUM_BYTES > len(data):
                break
            if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + _CHECKSUM_BYTES], "big"):
                return f"the checksum of the PNG image's chunk {kind.decode('latin-1')} is wrong"
            if kind == b"IEND":
                return None
            at = end + _CHECKSUM_BYTES
        return "the PNG image is cut off"
    if head.startswith(_JPEG_BEGIN):
        return None if _JPEG_END in bytes(data[-16:]) else "the JPEG image is cut off"
    return None if head.startswith(_OTHERS) else f"this is not a PNG, JPEG, GIF or BMP image ({len(data)} bytes)"
