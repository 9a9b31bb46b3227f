"""Reads the sizes of encoded images from their headers, as a few kilobytes can decode to gigabytes."""

from __future__ import annotations

import struct
from collections.abc import Callable

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MOST_MARKERS = 1000


def largest_image(data: bytes) -> int:
    """Returns the pixels of the largest PNG, JPEG or GIF (all frames) in a message or a file; 0 if there is none.

    BMP is ignored: it is not compressed, so the size of the data bounds its pixels.
    """
    largest = 0
    for signature, read in _READERS.items():
        position = data.find(signature)
        while position >= 0:
            pixels, end = read(data, position)
            largest = max(largest, pixels)
            position = data.find(signature, max(end, position + 1))
    return largest


def _png(data: bytes, position: int) -> tuple[int, int]:
    if len(data) < position + 24:
        return 0, position
    width, height = struct.unpack_from(">II", data, position + 16)
    return width * height, position + 24


def _jpeg(data: bytes, position: int) -> tuple[int, int]:
    position += 2
    try:
        for _ in range(_MOST_MARKERS):
            if data[position] != 0xFF:
                break
            marker = data[position + 1]
            if marker in _START_OF_FRAME:
                height, width = struct.unpack_from(">HH", data, position + 5)
                return width * height, position
            position += 1 if marker == 0xFF else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    except (IndexError, struct.error):
        pass
    return 0, position


def _gif(data: bytes, position: int) -> tuple[int, int]:
    pixels = screen = 0
    try:
        width, height, flags = struct.unpack_from("<HHB", data, position + 6)
        screen = width * height
        position += 13 + _table_bytes(flags)
        while data[position] in b"\x21\x2c":
            if data[position] == 0x2C:
                frame_width, frame_height, flags = struct.unpack_from("<HHB", data, position + 5)
                pixels += frame_width * frame_height
                position += 9 + _table_bytes(flags)
            position += 2
            while data[position]:
                position += data[position] + 1
            position += 1
    except (IndexError, struct.error):
        pass
    return max(pixels, screen), position


def _table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


_READERS: dict[bytes, Callable[[bytes, int], tuple[int, int]]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"GIF87a": _gif,
    b"GIF89a": _gif,
}
