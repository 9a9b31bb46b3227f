"""Sources of files: their contract, how they are divided into parts, and that several processes give the same files."""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.artifacts.artifact import RowCounts
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source, SourceFile
from airflow_hops.ml.ingest import Window, ingest_table, parts
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.spark.pools import IN_PROCESS, local_pool
from airflow_hops.testing.sources import ReaderContract

MIB = 1 << 20
ALWAYS = Window(None, None)


def raw_file(name: str, mib: int = 0) -> RawFile:
    return RawFile(None, SourceFile(name, name, mib * MIB, "1"), Source("/raw"), "csv", None)


def test_files_share_a_part_up_to_its_size_and_row_groups_are_divided() -> None:
    wide, long = (1000, 20 * MIB), (1 << 19, MIB)
    files = [
        (raw_file("a", 30), []),
        (raw_file("b", 2), []),
        (raw_file("c", 500), []),
        (raw_file("d"), [wide, wide]),
        (raw_file("e"), [long, long, long]),
    ]
    result = parts.plan_parts(files)
    assert [part.number for part in result] == list(range(5))
    assert [[(file.name, file.row_groups, file.first_row) for file in part.files] for part in result] == [
        [("a", None, 0), ("b", None, 0)],
        [("c", None, 0)],
        [("d", range(1), 0)],
        [("d", range(1, 2), 1000), ("e", range(1), 0)],
        [("e", range(1, 3), 1 << 19)],
    ]


def ingest(source: Source, folder: Path, pool: Any = IN_PROCESS, window: Window = ALWAYS) -> RowCounts:
    return ingest_table("t", source, window, OutputFolder(str(folder)), pool)[0]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "t").iterdir())}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 2000)


@pytest.mark.usefixtures("small_parts")
def test_tasks_in_several_processes_write_the_same_files(tmp_path: Path) -> None:
    """A late float widens the column, so that all files are read again, and a window leaves a part without rows."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(4):
        rows = [f"{number * 1000 + n},{1_000_000 * number + n}" for n in range(300)]
        (raw / f"{number}.csv").write_text("\n".join(["x,at", *rows, "0.5,3000001" if number == 3 else "", ""]))
    source, window = Source(str(raw), time_column="at"), Window.parse("1970-01-12T13:46:40Z", None)
    alone = ingest(source, tmp_path / "alone", window=window)
    with local_pool(2) as pool:
        assert ingest(source, tmp_path / "several", pool, window) == alone
    assert alone == RowCounts(1201, 901, {"outside window": 300})
    assert contents(tmp_path / "alone") == contents(tmp_path / "several")
    assert list(contents(tmp_path / "alone")) == [f"part-0000{number}.parquet" for number in (1, 2, 3)]
    assert pq.read_table(tmp_path / "several" / "t")["x"].to_pylist()[-1] == 0.5


@pytest.mark.usefixtures("small_parts")
def test_row_groups_of_a_file_are_read_once_each(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(2500)), "at": [f"2013-01-01T00:{n % 60:02}:00Z" for n in range(2500)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=100, use_dictionary=False, compression="none")
    with local_pool(2) as pool:
        counts = ingest(Source(str(tmp_path / "t.parquet"), time_column="at"), tmp_path, pool)
    assert counts.rows_in == 2500
    assert len(contents(tmp_path)) == 25
    assert pq.read_table(tmp_path / "t")["x"].to_pylist() == list(range(2500))
    bad = table.set_column(1, "at", pa.array([*table["at"].to_pylist()[:-1], "soon"]))
    pq.write_table(bad, tmp_path / "t.parquet", row_group_size=100)
    with (
        local_pool(2) as pool,
        pytest.raises(BadInput, match=r"t.parquet, row 2500, column 'at': 'soon' is not a time"),
    ):
        ingest(Source(str(tmp_path / "t.parquet"), time_column="at"), tmp_path, pool)


def test_a_part_with_many_rows_is_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parts, "FILE_ROWS", 200)
    (tmp_path / "t.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(450)))
    ingest(Source(str(tmp_path / "t.csv")), tmp_path)
    assert list(contents(tmp_path)) == ["part-00000.parquet", "part-00000_001.parquet", "part-00000_002.parquet"]
    assert pq.read_table(tmp_path / "t")["x"].to_pylist() == list(range(450))


def test_a_file_that_may_not_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").symlink_to("nowhere.csv")
    with pytest.raises(BadInput, match=r"/t\.csv' is a link to 'nowhere\.csv', which does not exist"):
        ingest(Source(str(tmp_path)), tmp_path / "out")


class TestFiles(ReaderContract):
    rows = 3

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        (tmp_path / "rows.csv").write_text("at,delay\n2013-01-01,1\n2013-01-02,2\n2013-01-03,3\n")
        return Source(str(tmp_path / "rows.csv"), time_column="at")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"a.csv": stat.S_IFLNK}, "'a.csv' is a link; expected a file: pack what it leads to"),
        ({"a.csv": 0, "b.csv": 0}, "the archive holds 2 files, expected one"),
        ({}, "the archive holds 0 files, expected one"),
    ],
)
def test_archive_of_other_than_one_file_is_refused(tmp_path: Path, entries: dict[str, int], says: str) -> None:
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, kind in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (kind | 0o644) << 16
            archive.writestr(entry, "../x\n1\n")
    file = SourceFile(str(path), "rows.zip", path.stat().st_size, "1")
    with (
        pytest.raises(BadInput, match=re.escape(f"{says}")),
        RawFile(LocalFileSystem(), file, Source(str(path)), "csv", "zip").stream(),
    ):
        pass
