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
        at = data.find(signature)
        while at >= 0:
            pixels, end = read(data, at)
            largest = max(largest, pixels)
            at = data.find(signature, max(end, at + 1))
    return largest


def _png(data: bytes, at: int) -> tuple[int, int]:
    if len(data) < at + 24:
        return 0, at
    width, height = struct.unpack_from(">II", data, at + 16)
    return width * height, at + 24


def _jpeg(data: bytes, at: int) -> tuple[int, int]:
    at += 2
    try:
        for _ in range(_MOST_MARKERS):
            if data[at] != 0xFF:
                break
            marker = data[at + 1]
            if marker in _START_OF_FRAME:
                height, width = struct.unpack_from(">HH", data, at + 5)
                return width * height, at
            at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    except (IndexError, struct.error):
        pass
    return 0, at


def _gif(data: bytes, at: int) -> tuple[int, int]:
    pixels = screen = 0
    try:
        width, height, flags = struct.unpack_from("<HHB", data, at + 6)
        screen = width * height
        at += 13 + _table_bytes(flags)
        while data[at] in b"\x21\x2c":
            if data[at] == 0x2C:
                frame_width, frame_height, flags = struct.unpack_from("<HHB", data, at + 5)
                pixels += frame_width * frame_height
                at += 9 + _table_bytes(flags)
            at += 2
            while data[at]:
                at += data[at] + 1
            at += 1
    except (IndexError, struct.error):
        pass
    return max(pixels, screen), at


def _table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


_READERS: dict[bytes, Callable[[bytes, int], tuple[int, int]]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"GIF87a": _gif,
    b"GIF89a": _gif,
}
