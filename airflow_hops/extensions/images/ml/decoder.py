"""Decodes the images of a training's examples."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from airflow_hops.extensions.images.core.images import ImageSpec
from airflow_hops.extensions.images.ml.features import decode_images
from airflow_hops.ml.features.column_decoders import ColumnDecoder
from airflow_hops.ml.features.feature_specs import Encoding, OutputSpec

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_OTHERS = (b"BM", b"GIF8")
_CHUNK = struct.Struct(">I4s")
_CHECKSUM_BYTES = 4


class ImageDecoder(ColumnDecoder):
    """Decodes images to float32 ``[batch, height, width, channels]``; ``options`` are fields of :class:`ImageSpec`."""

    def __init__(self, **options: Any) -> None:
        self._spec = ImageSpec(**options)

    def decode(self, encoded: object) -> Any:
        """Decodes a batch, as the served graph does."""
        return decode_images(encoded, self._spec)

    def damage(self, value: memoryview) -> str | None:
        """Compares the checksums of a PNG image (https://www.w3.org/TR/png/), or the first and last bytes of a JPEG."""
        head = bytes(value[:8])
        if head == _PNG:
            position = len(_PNG)
            while position + _CHUNK.size + _CHECKSUM_BYTES <= len(value):
                length, kind = _CHUNK.unpack_from(value, position)
                end = position + _CHUNK.size + length
                if end + _CHECKSUM_BYTES > len(value):
                    break
                if zlib.crc32(value[position + 4 : end]) != int.from_bytes(value[end : end + _CHECKSUM_BYTES], "big"):
                    return f"the checksum of the PNG image's chunk {kind.decode('latin-1')} is wrong"
                if kind == b"IEND":
                    return None
                position = end + _CHECKSUM_BYTES
            return "the PNG image is cut off"
        if head.startswith(_JPEG_BEGIN):
            return None if _JPEG_END in bytes(value[-16:]) else "the JPEG image is cut off"
        return None if head.startswith(_OTHERS) else f"this is not a PNG, JPEG, GIF or BMP image ({len(value)} bytes)"


def image_output(spec: ImageSpec) -> OutputSpec:
    """Returns the entry of ``features.json`` for a column of images."""
    return OutputSpec("float32", encoding=Encoding("image", spec.shape, spec.to_dict()))
