"""Packs many small files into tar shards with an index, in parallel."""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

import pyarrow as pa
from fsspec import AbstractFileSystem

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import HopsError
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.sources.source_files import check_unchanged, list_files, source_root
from airflow_hops.core.sources.sources import FileSource, SourceFile
from airflow_hops.extensions.images.ml.packed import INDEX, INDEX_SCHEMA, SHARDS
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import StagedFiles, WorkSummary, remove_leftovers, run_parts, step_pool, uploaded_files
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_MANY_FILES = 20
"""Number of files above which a sample is reported."""
_SAMPLE, _METADATA = re.compile(r"((?:.*/)?[^.]+)\.[^/]*"), re.compile(r"__[^/]*__(/|$)")
_READ_FILES, _READ_BYTES = 256, 32 << 20
"""Maximum number and size of the files that are read at once."""


Plan = tuple[AbstractFileSystem, str, OutputFolder]
"""Arguments of every shard: the file system, the source's folder in it, and the folder to write to."""
Shard = tuple[int, tuple[SourceFile, ...]]
"""Number of a shard, and its files, in order."""


@dataclass
class PackSummary(WorkSummary):
    """Summary of a shard.

    Attributes:
        files: Number of packed files.
    """

    files: int = 0


def run(context: StepContext, *, source: Mapping[str, object], shard_mb: int) -> Artifact:
    """Writes the artifact ``packed_files``: ``shards/*.tar``, and for each shard ``index/*.parquet``.

    Shards are `WebDataset's <https://github.com/webdataset/webdataset>`_: the files of a sample, whose paths are equal
    up to the first dot of the name, follow each other. Samples are in the order of a hash of their path, so that a
    reader that shuffles within a buffer gets all classes. Files that its reader skips are packed, and counted apart.

    Parameters are those of ``PackOperator``.

    Raises:
        BadInput: there are no files, or they cannot be listed.
        HopsError: a file changed while it was read, or Spark failed.
    """
    files = context.sources({"source": FileSource.from_value("source", source)})["source"]
    with step_pool(context, "local[*]") as pool, context.output() as writer:
        fs, listed = list_files(files)
        root = source_root(fs, files.uri)
        samples, skipped = _count_samples([relative_path(root, file) for file in listed])
        shards = plan_shards(root, listed, shard_mb * 1_000_000)
        message = f"{len(listed)} files, of which {skipped} in no sample, and {samples} samples in {len(shards)} shards"
        context.progress(0.1, message)
        plan = fs, root, pool.folder(context, writer)
        summaries = run_parts(pool, pack_shard, plan, shards, PackSummary, context.progress)
        check_unchanged(files, listed)
        for name in (SHARDS, INDEX):
            remove_leftovers(writer.path / name)
        writer.add(uploaded_files(summaries))
        counts = RowCounts(len(listed), sum(summary.files for summary in summaries)).check("packed files")
        log.info("%s", message)
        metrics = {
            "files": counts.rows_out,
            "samples": samples,
            "skipped": skipped,
            "shards": len(shards),
            "bytes": sum(file.size_bytes for file in listed),
        }
        return writer.commit(rows={"files": counts}, metrics=metrics)


def _count_samples(paths: Sequence[str]) -> tuple[int, int]:
    """Returns the number of samples, and of files that WebDataset's reader skips; warns of what it reads otherwise."""
    by_sample: dict[str | None, list[str]] = {}
    for path in paths:
        by_sample.setdefault(sample_of(path), []).append(path)
    skipped = by_sample.pop(None, [])
    if skipped:
        log.warning(
            "%d of %d files, such as %r, are in no sample, and WebDataset's reader skips them: their names have no dot",
            len(skipped),
            len(paths),
            skipped[0],
        )
    largest = max(by_sample, key=lambda sample: len(by_sample[sample]), default=None)
    if largest is not None and len(by_sample[largest]) > _MANY_FILES:
        log.warning(
            "the %d files of %r are one sample, since their names are equal up to the first dot; if each is a "
            "sample, give them names without a dot before the extension",
            len(by_sample[largest]),
            largest,
        )
    alike = [files for files in by_sample.values() if len({path.lower() for path in files}) < len(files)]
    if alike:
        log.warning(
            "%d samples have extensions that differ in case only, such as %s, which WebDataset's reader refuses",
            len(alike),
            ", ".join(map(repr, alike[0][:2])),
        )
    return len(by_sample), len(skipped)


def plan_shards(root: str, listed: Sequence[SourceFile], shard_bytes: int) -> list[Shard]:
    """Divides files into shards; the files of a sample are in the same one."""

    def order(file: SourceFile) -> tuple[bytes, str]:
        path = relative_path(root, file)
        sample = sample_of(path) or path
        return hashlib.blake2b(sample.encode(), digest_size=8).digest(), sample

    shards: list[Shard] = []
    chosen: list[SourceFile] = []
    size = 0
    for _, sample in itertools.groupby(sorted(listed, key=lambda file: (order(file), file.path)), order):
        if size >= shard_bytes:
            shards.append((len(shards), tuple(chosen)))
            chosen, size = [], 0
        for file in sample:
            chosen.append(file)
            size += file.size_bytes + tarfile.BLOCKSIZE
    return [*shards, (len(shards), tuple(chosen))]


def relative_path(root: str, file: SourceFile) -> str:
    """Returns a file's path below the source's folder."""
    return PurePosixPath(file.path).relative_to(root).as_posix()


def sample_of(path: str) -> str | None:
    """Returns the key of a file's sample, its path up to the first dot of its name; None if WebDataset skips it.

    Its reader skips names without a dot, and files and folders of the source that begin and end with two underscores.
    """
    if _METADATA.match(path):
        return None
    return match[1] if (match := _SAMPLE.fullmatch(path)) else None


def pack_shard(plan: Plan, shard: Shard) -> str:
    """Packs a shard; returns its :class:`PackSummary` as JSON."""
    (fs, root, target), (number, listed) = plan, shard
    summary = PackSummary()
    name = f"{number:05d}"
    with (
        summary.recording_errors(target.path),
        target.writing(summary.uploaded) as folder,
        StagedFiles() as staged,
    ):
        # Plain headers where they suffice, and PAX records for long and non-ASCII names; no times and owners, so that
        # the same files make the same shard.
        archive = staged.open(folder / SHARDS / f"{name}.tar", partial(tarfile.TarFile, mode="w"))
        index = staged.open(folder / INDEX / f"{name}.parquet", partial(parquet_writer, schema=INDEX_SCHEMA))
        for files, contents in _read(fs, listed):
            entries = []
            for file, content in zip(files, contents, strict=True):
                if len(content) != file.size_bytes:
                    raise HopsError(f"{file.name}: the file changed while it was read; retry when it is complete")
                info = tarfile.TarInfo(relative_path(root, file))
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                begin = archive.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                entries.append((info.name, f"{name}.tar", begin, len(content), hashlib.sha256(content).digest()))
            columns = zip(*entries, strict=True)
            index.write_table(pa.table([list(column) for column in columns], schema=INDEX_SCHEMA))
            summary.files += len(entries)
    return summary.to_json()


def _read(fs: AbstractFileSystem, files: Sequence[SourceFile]) -> Iterator[tuple[list[SourceFile], list[bytes]]]:
    """Yields files and their contents; reads many in parallel, which is faster with remote stores."""
    chosen: list[SourceFile] = []
    size = 0
    for number, file in enumerate(files, 1):
        chosen.append(file)
        size += file.size_bytes
        if number == len(files) or len(chosen) == _READ_FILES or size >= _READ_BYTES:
            try:
                # fsspec 2026.9 (fsspec/filesystem_spec#838): names with brackets are patterns for fs.cat().
                yield chosen, fs.cat_ranges([each.path for each in chosen], None, None, on_error="raise")
            except FileNotFoundError as error:
                raise HopsError(f"{error.filename or error}: the file disappeared while it was read; retry") from error
            chosen, size = [], 0
