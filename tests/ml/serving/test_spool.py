"""Segments of captured requests, also those of versions that mapped them into memory."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c

from airflow_hops.serving.capture.spool import NOTHING, Damage, Spool, read_spool, segment_path

RECORDS = [b"one", b"of eight", b"a longer record, and one more byte"]


def write_mapped(folder: Path, records: list[bytes]) -> None:
    """A first segment as earlier versions left it: at its full size, each record at a multiple of 8."""
    content = b"HOPSPOOL"
    for record in records:
        content += struct.pack("<II", len(record), google_crc32c.value(record)) + record
        content += bytes(-len(content) % 8)
    segment_path(folder, 1).write_bytes(content.ljust(4096, b"\0"))


def append_a_segment(folder: Path, record: bytes) -> None:
    """A second segment, written by this version."""
    (folder / "own").mkdir()
    Spool(folder / "own", 2**20, 2**16).append([record])
    segment_path(folder / "own", 1).rename(segment_path(folder, 2))


def test_what_an_earlier_version_left_is_read_before_what_is_appended(tmp_path: Path) -> None:
    write_mapped(tmp_path, RECORDS)
    append_a_segment(tmp_path, b"appended")
    damage = Damage()
    found = list(read_spool(tmp_path, NOTHING, ended=True, damage=damage))
    assert [record for record, _ in found] == [*RECORDS, b"appended"]
    assert damage.records == 0
    for number, (_, after) in enumerate(found):  # from wherever the earlier version's writer was
        rest = read_spool(tmp_path, after, ended=True, damage=damage)
        assert [record for record, _ in rest] == [*RECORDS, b"appended"][number + 1 :]
    assert damage.records == 0


def test_damage_in_what_an_earlier_version_left_is_counted(tmp_path: Path) -> None:
    write_mapped(tmp_path, RECORDS)
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes().replace(b"of eight", b"of seven"))
    append_a_segment(tmp_path, b"appended")
    damage = Damage()
    assert [record for record, _ in read_spool(tmp_path, NOTHING, ended=True, damage=damage)] == [b"one", b"appended"]
    assert damage.records == 1
