"""Framing of TFRecord files: a record's length, the length's checksum, the record, and its checksum.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from airflow_hops.core.errors import UnreadableFile
from airflow_hops.ml.readers.raw_file import check_row_bytes

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_OVERHEAD_BYTES = _HEADER.size + _CHECKSUM.size
_BLOCK_BYTES = 4 << 20


def records(stream: Any, name: str) -> Iterator[bytes]:
    """Streams the records from a stream's position to its end; ``name`` is the file's, for messages.

    Raises:
        BadInput: a checksum is wrong, or the last record is incomplete.
    """
    pending, position, wanted = b"", 0, 0
    while chunk := bytes(stream.read(max(_BLOCK_BYTES, wanted))):
        pending = pending + chunk if pending else chunk
        offset = 0
        while len(pending) - offset >= _HEADER.size:
            length = _length(pending, offset, name, position + offset)
            end = offset + length + _OVERHEAD_BYTES
            if end > len(pending):
                wanted = end - len(pending)
                break
            record = pending[offset + _HEADER.size : end - _CHECKSUM.size]
            if _masked_crc32c(record) != _CHECKSUM.unpack_from(pending, end - _CHECKSUM.size)[0]:
                raise UnreadableFile(
                    name, f", byte {position + offset}: the checksum of a record is wrong; the file is damaged"
                )
            yield record
            offset = end
            wanted = 0
        pending = pending[offset:]
        position += offset
    if pending:
        raise UnreadableFile(name, f", byte {position}: the last record is not complete; the file is truncated")


def record_bounds(stream: Any, name: str) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each record of a seekable stream, reading only the headers.

    Raises:
        BadInput: a header is damaged, or the last record is incomplete.
    """
    size = stream.seek(0, 2)
    position = window_start = 0
    window = b""
    while position < size:
        offset = position - window_start
        if not 0 <= offset <= len(window) - _HEADER.size:
            stream.seek(position)
            window, window_start, offset = stream.read(_BLOCK_BYTES), position, 0
            if len(window) < _HEADER.size:
                raise UnreadableFile(name, f", byte {position}: the last record is not complete; the file is truncated")
        end = position + _length(window, offset, name, position) + _OVERHEAD_BYTES
        if end > size:
            raise UnreadableFile(name, f", byte {position}: the last record is not complete; the file is truncated")
        yield position, end
        position = end


def _length(block: bytes, offset: int, name: str, position: int) -> int:
    length, checksum = _HEADER.unpack_from(block, offset)
    if _masked_crc32c(block[offset : offset + 8]) != checksum:
        raise UnreadableFile(
            name, f", byte {position}: no TFRecord begins here; the file is damaged or of another format"
        )
    check_row_bytes(length, f"{name}, byte {position}")
    return int(length)


def _masked_crc32c(data: bytes) -> int:
    import google_crc32c

    checksum: int = google_crc32c.value(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
