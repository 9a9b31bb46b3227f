"""The pack stage: small files to shards with an index, and their readers."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.images import PackedFiles
from airflow_hops.extensions.images.ml.pack import Shard, plan_shards, run, sample_of
from airflow_hops.extensions.images.ml.packed import INDEX_SCHEMA

Pack = Callable[..., Artifact]
ODD_NAMES = (
    "dog/a[1].bin",
    "dog/*.bin",
    "cat/größe 7.bin",
    f"cat/{'long' * 30}/{'name' * 30}.bin",
    "cat/line\nbreak.bin",
    "plain",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 samples of two files, an empty file, odd names, and a hidden file."""
    random = np.random.default_rng(1)
    root = tmp_path / "files"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(30):
            (root / name / f"{number}.bin").write_bytes(random.bytes(int(random.integers(1, 2000))))
            (root / name / f"{number}.json").write_text(f'{{"number": {number}}}')
    (root / "dog" / "empty.bin").touch()
    (root / "dog" / ".hidden").write_text("not packed")
    for name in ODD_NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


@pytest.fixture
def pack(run_stage: Callable[..., Any]) -> Pack:
    def call(source: str | Path, shard_mb: int = 1) -> Artifact:
        artifact: Artifact = run_stage(run, kind="packed_files", source={"uri": str(source)}, shard_mb=shard_mb)
        return artifact

    return call


def local(artifact: Artifact) -> Path:
    return Path(artifact.uri.removeprefix("file://"))


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_packed_files_equal_the_originals(pack: Pack, folder: Path) -> None:
    artifact = pack(folder)
    expected = contents(folder)
    assert dict(iter(PackedFiles(artifact.uri))) == expected
    counts = artifact.rows["files"]
    assert (counts.rows_in, counts.rows_out) == (len(expected), len(expected)) == (127, 127)
    size = sum(map(len, expected.values()))
    assert artifact.metrics == {"files": 127, "samples": 66, "skipped": 1, "shards": 1, "bytes": size}
    index = pq.read_table(local(artifact) / "index")
    assert index.column_names == INDEX_SCHEMA.names
    with tarfile.open(local(artifact) / "shards" / "00000.tar") as shard:
        members = {member.name: shard.extractfile(member).read() for member in shard}  # type: ignore[union-attr]
    assert members == expected
    assert {row["path"]: row["sha256"] for row in index.to_pylist()} == {
        path: hashlib.sha256(content).digest() for path, content in expected.items()
    }


def test_samples_stay_together_and_classes_are_mixed(pack: Pack, folder: Path) -> None:
    for number in range(40):
        (folder / "cat" / f"large{number}.bin").write_bytes(bytes(100_000))
        (folder / "cat" / f"large{number}.json").write_text("{}")
    artifact = pack(folder)
    rows = pq.read_table(local(artifact) / "index").to_pylist()
    assert len({row["shard"] for row in rows}) == artifact.metrics["shards"] == 5
    samples = [sample_of(row["path"]) for row in rows]
    runs = Counter(sample for previous, sample in zip([None, *samples], samples, strict=False) if previous != sample)
    assert set(runs.values()) == {1}
    assert all(len({row["shard"] for row in rows if sample_of(row["path"]) == sample}) == 1 for sample in runs)
    sizes = [path.stat().st_size for path in (local(artifact) / "shards").iterdir()]
    assert max(sizes) < 1_250_000
    classes = [row["path"].partition("/")[0] for row in rows]
    assert {"cat", "dog"} <= set(classes[:12])


def test_same_files_give_same_bytes(pack: Pack, folder: Path, tmp_path: Path) -> None:
    first = contents(local(pack(folder)) / "shards")
    (folder / "cat" / "1.bin").touch()
    assert contents(local(pack(folder)) / "shards") == first


def test_damaged_shard_is_named(pack: Pack, folder: Path) -> None:
    artifact = pack(folder)
    files = PackedFiles(artifact.uri)
    row = next(row for row in files.index.to_pylist() if row["path"] == "cat/3.bin")
    shard = local(artifact) / "shards" / row["shard"]
    content = bytearray(shard.read_bytes())
    content[row["offset"]] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(bytes(content))
    with pytest.raises(HopsError, match=r"00000.tar: the content of 'cat/3.bin' is damaged"):
        list(iter(PackedFiles(artifact.uri)))


def test_index_outside_the_shards_is_refused(pack: Pack, folder: Path, tmp_path: Path) -> None:
    root = shutil.copytree(local(pack(folder)), tmp_path / "copy", copy_function=shutil.copyfile)
    (path,) = (root / "index").glob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    for column, value in (
        *(("shard", name) for name in ("../../x.tar", "none.tar")),
        *(("offset", offset) for offset in (-1, 2**63 - 1)),
        *(("size", size) for size in (-1, 2**60)),
        *(("path", name) for name in ("../../.ssh/id", "/etc/passwd", None)),
    ):
        changed = [{**row, column: value} if number == 3 else row for number, row in enumerate(rows)]
        pq.write_table(pa.Table.from_pylist(changed, INDEX_SCHEMA), path)
        with pytest.raises(BadInput, match=rf"{re.escape(str(path))}, row 3: .* is not a part of a shard"):
            PackedFiles(str(root))


def test_files_of_a_pattern_keep_their_folders(pack: Pack, folder: Path) -> None:
    paths = {path for path, _ in iter(PackedFiles(pack(f"{folder}/*/1*.json").uri))}
    assert paths == {f"{name}/{number}.json" for name in ("cat", "dog") for number in (1, *range(10, 20))}


def test_changing_file_is_not_packed(folder: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(root: str, *arguments: Any) -> list[Shard]:
        shards = plan_shards(root, *arguments)
        with (folder / "dog" / "7.bin").open("ab") as file:
            file.write(b"more")
        return shards

    monkeypatch.setattr("airflow_hops.extensions.images.ml.pack.plan_shards", grow)
    with pytest.raises(HopsError, match=r"dog/7\.bin: the file changed while it was read"):
        pack(folder)


def test_folder_without_files_is_named(pack: Pack, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no file matches"):
        pack(tmp_path / "empty")
    with pytest.raises(BadInput, match=r"there is no index/\*.parquet"):
        PackedFiles(tmp_path / "empty")


def test_links_without_a_file_are_refused(pack: Pack, folder: Path, tmp_path: Path) -> None:
    link = folder / "cat" / "link.bin"
    link.symlink_to(tmp_path / "gone")
    for source in (folder, f"{folder}/cat/l*"):
        with pytest.raises(BadInput, match=r"link\.bin' is a link to '.*/gone', which does not exist; remove"):
            pack(source)
    (tmp_path / "gone").mkdir()
    with pytest.raises(BadInput, match=r"link\.bin' is a link to the folder '.*/gone', which is not followed"):
        pack(folder)
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_text("linked")
    for source in (folder, f"{folder}/*/*.bin"):
        assert dict(iter(PackedFiles(pack(source).uri)))["cat/link.bin"] == b"linked"
    os.mkfifo(folder / "cat" / "pipe")
    with pytest.raises(BadInput, match=r"pipe' is neither a file nor a folder"):
        pack(folder)


def test_non_utf_8_name_is_refused(pack: Pack, folder: Path) -> None:
    Path(os.fsdecode(bytes(folder) + b"/\xff.bin")).touch()
    with pytest.raises(BadInput, match=r"files/\\udcff\.bin': the name is not in UTF-8; rename"):
        pack(folder)


# Keys that webdataset 1.0.2 gives; None for a file that it skips.
KEYS = {
    "cat/7.jpg": "cat/7",
    "cat/7.seg.PNG": "cat/7",
    "v1.0/7.jpg": "v1.0/7",
    "v1.0/7": None,
    "README": None,
    "a/b": None,
    "a.b/c/d.": "a.b/c/d",
    "__meta__": None,
    "__meta__.json": "__meta__",
    "__cache__/7.jpg": None,
    "a/__cache__/7.jpg": "a/__cache__/7",
    "a/line\nbreak.bin": "a/line\nbreak",
}


def test_samples_are_those_of_webdatasets_reader() -> None:
    assert {path: sample_of(path) for path in KEYS} == KEYS


def test_samples_that_readers_see_otherwise_are_reported(
    pack: Pack, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        (folder / f"clip.{number:05}.png").touch()
    (folder / "cat" / "0.BIN").touch()
    assert pack(folder).metrics["samples"] == 67
    assert "1 of 158 files, such as 'plain', are in no sample" in caplog.text
    assert "1 samples have extensions that differ in case only, such as 'cat/0.BIN', 'cat/0.bin'" in caplog.text
    assert "the 30 files of 'clip' are one sample, since their names are equal up to the first dot" in caplog.text


def test_packed_files_are_read_by_position_and_tf_data(pack: Pack, folder: Path) -> None:
    import tensorflow as tf

    files = PackedFiles(pack(folder).uri)
    assert files[-1] == files[len(files) - 1] == pickle.loads(pickle.dumps(files))[-1]
    with pytest.raises(IndexError):
        files[len(files)]
    signature = (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.string))
    data = tf.data.Dataset.from_generator(lambda: iter(files), output_signature=signature)
    assert {path.decode(): content for path, content in data.as_numpy_iterator()} == contents(folder)


def test_folder_markers_are_not_packed(marked: Any, run_stage: Callable[..., Any]) -> None:
    url, options = marked.url, marked.options
    packed: Artifact = run_stage(
        run, kind="packed_files", source={"uri": f"{url}/raw", "storage_options": options}, shard_mb=1
    )
    assert packed.metrics["files"] == 3
