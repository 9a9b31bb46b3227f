"""The artifact store: one directory per artifact, on anything that fsspec opens.

A writer works in a local staging directory and publishes on :meth:`ArtifactWriter.commit`: on a local store by
renaming the finished directory into place, or swapping it with the one that lies there; elsewhere by uploading the
files first and the manifest last. Readers therefore see a whole artifact or none.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from airflow_hops.artifacts import (
    MANIFEST_NAME,
    Artifact,
    BadInput,
    FileEntry,
    HopsError,
    Manifest,
    Producer,
    RowCounts,
    as_cached,
    cache_key,
)

_CHUNK_BYTES = 1 << 20


class ArtifactStore:
    """Reads and writes the artifacts under one root.

    Args:
        root: URI of the store (``file:///var/hops``, ``s3://bucket/hops``) or a local path.
        storage_options: Passed to fsspec (``endpoint_url`` of an S3-compatible service, for instance).
        local_cache: Where artifacts of a remote store are kept for local readers; by fingerprint.

    Raises:
        BadInput: the root climbs out of itself with ``..``.
    """

    def __init__(
        self, root: str, *, storage_options: Mapping[str, Any] | None = None, local_cache: str | None = None
    ) -> None:
        self.root = _as_uri(root).rstrip("/")
        if _climbs(self.root):
            raise BadInput(f"the store's address {root!r} has a part '..'; expected one that says where it leads")
        self.storage_options = dict(storage_options or {})
        self.is_local = self.root.startswith("file://")
        self._local_cache = Path(
            local_cache or os.environ.get("HOPS_LOCAL_CACHE") or Path(tempfile.gettempdir()) / "hops-cache"
        )

    def address(self, producer: Producer, kind: str) -> str:
        """The artifact address of a task: the same for every try, so that a retry replaces what it wrote.

        Raises:
            BadInput: an identifier would lead out of the store.
        """
        task = producer.task_id if producer.map_index < 0 else f"{producer.task_id}@{producer.map_index}"
        return self.uri(producer.dag_id, producer.run_id, task, kind)

    def uri(self, *segments: str) -> str:
        """Joins path segments to the root, each made safe for any file system.

        Raises:
            BadInput: a segment is empty, ``.`` or ``..``.
        """
        for segment in segments:
            if segment in ("", ".", ".."):
                raise BadInput(f"store path segment {segment!r} of {'/'.join(segments)!r} would leave {self.root}")
        return "/".join([self.root, *(re.sub(r"[^\w.+@-]", "_", segment) for segment in segments)])

    def file(self, uri: str, path: str) -> str:
        """The address of a file of an artifact, for a reader who shows it to others.

        Such a reader may read more than whoever made the artifact; a link must not have it read that to them.

        Args:
            uri: The artifact's address.
            path: As its manifest names it.

        Raises:
            BadInput: it is not inside the artifact, or is a link that leads out of it.
        """
        self._check_inside(f"{uri}/{path}")
        if not self.is_local:
            return f"{uri}/{path}"
        folder = _local_path(uri).resolve()
        if not (folder / path).resolve().is_relative_to(folder):
            raise BadInput(f"{uri}: {path!r} leads out of the artifact, and is not shown")
        return f"{uri}/{path.replace('%', '%25')}"

    def create(
        self,
        uri: str,
        kind: str,
        producer: Producer,
        *,
        inputs: Mapping[str, tuple[Artifact, ...]] | None = None,
        cache_key_parts: Mapping[str, str] | None = None,
    ) -> ArtifactWriter:
        """Opens a writer for the artifact at ``uri``.

        Raises:
            BadInput: ``uri`` is not inside this store.
        """
        self._check_inside(uri)
        return ArtifactWriter(self, uri, kind, producer, inputs or {}, cache_key_parts or {})

    def manifest(self, uri: str) -> Manifest:
        """The manifest of the artifact at ``uri``.

        Raises:
            BadInput: there is no artifact, or its manifest cannot be read.
        """
        self._check_inside(uri)
        path = f"{uri}/{MANIFEST_NAME}"
        try:
            text = self._read_text(path)
        except FileNotFoundError:
            raise BadInput(
                f"{uri}: no artifact there (no {MANIFEST_NAME}); the step that makes it has not finished, or it was "
                "deleted"
            ) from None
        return Manifest.from_json(text, path)

    def exists(self, uri: str) -> bool:
        """Whether a whole artifact is at ``uri``."""
        self._check_inside(uri)
        if self.is_local:
            return (_local_path(uri) / MANIFEST_NAME).is_file()
        fs = self._fs()
        fs.invalidate_cache()
        return bool(fs.exists(f"{uri}/{MANIFEST_NAME}"))

    def local(self, artifact: Artifact, *, without: Collection[str] = ()) -> Path:
        """A local directory with the artifact's files: itself on a local store, else a verified download.

        Of an artifact that has been replaced, or is being replaced, and whose versions are kept (:func:`kept_version`),
        it is the version that was asked for.

        Args:
            artifact: The artifact.
            without: Folders of it that need not be downloaded.

        Raises:
            BadInput: the artifact is missing, or another one lies at its address by now.
            HopsError: a file's checksum differs from its manifest's.
        """
        self._check_inside(artifact.uri)
        kept = kept_version(artifact.uri, artifact.fingerprint)
        try:
            manifest = self.manifest(artifact.uri)
        except BadInput:
            if self.exists(kept):
                return self.local(replace(artifact, uri=kept), without=without)
            raise
        for entry in manifest.files:
            _check_relative(entry.path, artifact.uri)
        if manifest.fingerprint != artifact.fingerprint:
            if self.exists(kept):
                return self.local(replace(artifact, uri=kept), without=without)
            raise BadInput(
                f"{artifact.uri}: another {manifest.kind} lies there by now (fingerprint {manifest.fingerprint[:12]}…, "
                f"expected {artifact.fingerprint[:12]}…): its task ran again; run the tasks after it again"
            )
        if self.is_local:
            return _local_path(artifact.uri)
        target = self._local_cache / "-without-".join([manifest.fingerprint, *sorted(without)])
        files = tuple(entry for entry in manifest.files if entry.path.partition("/")[0] not in without)
        manifest = replace(manifest, files=files)
        if not _is_whole(target, manifest):
            # What clears temporary folders may have taken some of the files.
            shutil.rmtree(target, ignore_errors=True)
            self._download(artifact.uri, manifest, target)
        return target

    def _download(self, uri: str, manifest: Manifest, target: Path) -> None:
        staging = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
        staging.mkdir(parents=True)
        try:
            fs = self._fs()
            for entry in manifest.files:
                path = staging / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # its absence is told below
                    fs.get_file(f"{uri}/{entry.path}", str(path))
            (staging / MANIFEST_NAME).write_text(manifest.to_json())
            _verify(manifest, uri, lambda path: (staging / path).open("rb"))
            with contextlib.suppress(OSError):  # another process finished the same download first
                staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def verify(self, artifact: Artifact) -> Manifest:
        """Re-reads every file of an artifact in the store and compares its checksum with the manifest's.

        Raises:
            HopsError: a file is missing or differs.
        """
        manifest = self.manifest(artifact.uri)
        if self.is_local:
            folder = _local_path(artifact.uri)
            _verify(manifest, artifact.uri, lambda path: (folder / path).open("rb"))
        else:
            fs = self._fs()
            fs.invalidate_cache()
            _verify(manifest, artifact.uri, lambda path: fs.open(f"{artifact.uri}/{path}", "rb"))
        return manifest

    def accept_edit(self, uri: str, path: str) -> Artifact:
        """The artifact after somebody may have edited one of its text files: its manifest then says what is in there.

        Args:
            uri: The artifact's address.
            path: The file's path in it.

        Raises:
            BadInput: there is no artifact, or no such file in it.
        """
        manifest = self.manifest(uri)
        try:
            content = self._read_bytes(f"{uri}/{path}")
        except FileNotFoundError:
            raise BadInput(f"{uri}/{path}: the manifest names it, but it is gone") from None
        entry = FileEntry(path, len(content), hashlib.sha256(content).hexdigest())
        if entry not in manifest.files:
            others = tuple(file for file in manifest.files if file.path != path)
            manifest = replace(manifest, files=(*others, entry))
            self.write_text(f"{uri}/{MANIFEST_NAME}", manifest.to_json())
        return manifest.reference(uri)

    def _is_whole(self, uri: str, manifest: Manifest) -> bool:
        """Whether the store has all files of an artifact, by their sizes."""
        if self.is_local:
            return _is_whole(_local_path(uri), manifest)
        fs = self._fs()
        fs.invalidate_cache()
        root = fs._strip_protocol(uri)
        found = {path: info["size"] for path, info in fs.find(root, detail=True).items()}
        return all(found.get(f"{root}/{entry.path}") == entry.size_bytes for entry in manifest.files)

    def find_cached(self, producer: Producer, parts: Mapping[str, str]) -> tuple[Artifact | None, str]:
        """Looks for an artifact that the same task made from the same parts.

        Returns:
            The artifact, marked as cached, or None; and the explanation: where the hit came from, or which parts
            differ from the task's last run.
        """
        folder = self.uri("_cache", producer.dag_id, producer.task_id)
        path = f"{folder}/{cache_key(parts)}.json"
        try:
            entry = json.loads(self._read_text(path))
            artifact = Artifact.from_dict(entry["artifact"])
            manifest = self.manifest(artifact.uri)
            if manifest.fingerprint != artifact.fingerprint:
                return None, f"{artifact.uri} has changed since it was recorded"
            if not self._is_whole(artifact.uri, manifest):
                return None, f"{artifact.uri} has lost files that its manifest names"
            return as_cached(artifact), f"same {', '.join(sorted(parts))} as in run {entry['run_id']}"
        except FileNotFoundError:
            pass
        except BadInput as error:
            return None, str(error)
        except (ValueError, KeyError, TypeError) as error:
            return None, f"{path} cannot be read ({error!r})"
        try:
            latest = json.loads(self._read_text(f"{folder}/latest.json"))
            before = latest["parts"]
        except FileNotFoundError:
            return None, "the task has not run before"
        except (ValueError, KeyError, TypeError) as error:
            return None, f"{folder}/latest.json cannot be read ({error!r})"
        changed = sorted(name for name in {*before, *parts} if before.get(name) != parts.get(name))
        return None, f"changed since run {latest['run_id']}: {', '.join(changed)}"

    def record_cached(self, producer: Producer, parts: Mapping[str, str], artifact: Artifact) -> None:
        """Remembers that ``parts`` made ``artifact``, for :meth:`find_cached`."""
        folder = self.uri("_cache", producer.dag_id, producer.task_id)
        entry = {"artifact": artifact.to_dict(), "parts": dict(parts), "run_id": producer.run_id}
        self.write_text(f"{folder}/{cache_key(parts)}.json", json.dumps(entry))
        self.write_text(f"{folder}/latest.json", json.dumps(entry))

    def write_text(self, uri: str, text: str) -> None:
        """Writes a small file atomically."""
        self._check_inside(uri)
        if self.is_local:
            path = _local_path(uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            staging = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            try:
                staging.write_text(text)
                staging.replace(path)
            finally:
                staging.unlink(missing_ok=True)
        else:
            self._fs().pipe_file(uri, text.encode())

    def create_text(self, uri: str, text: str) -> None:
        """Writes a small file that is not there yet, atomically; of several that try, one succeeds.

        Raises:
            FileExistsError: it is there.
        """
        self._check_inside(uri)
        if not self.is_local:
            self._fs().pipe_file(uri, text.encode(), mode="create")
            return
        path = _local_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            staging.write_text(text, encoding="utf-8")
            os.link(staging, path)
        finally:
            staging.unlink(missing_ok=True)

    def remove_text(self, uri: str) -> None:
        """Removes a small file, if it is there."""
        self._check_inside(uri)
        with contextlib.suppress(FileNotFoundError):
            if self.is_local:
                _local_path(uri).unlink()
            else:
                self._fs().rm_file(uri)

    def names(self, uri: str) -> list[str]:
        """Names of what lies in a folder, sorted; none where there is no folder."""
        self._check_inside(uri)
        if self.is_local:
            folder = _local_path(uri)
            return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        fs = self._fs()
        fs.invalidate_cache()
        try:
            return sorted(PurePosixPath(path).name for path in fs.ls(fs._strip_protocol(uri), detail=False))
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def lock(self, uri: str) -> Iterator[None]:
        """Holds a lock on a folder of a local store, against threads and processes; elsewhere there is none to hold."""
        self._check_inside(uri)
        if not self.is_local:
            yield
            return
        folder = _local_path(uri)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def read_text(self, uri: str, *, errors: str = "strict") -> str:
        """Reads a small file; ``errors`` is as in ``bytes.decode``.

        Raises:
            FileNotFoundError: there is none.
        """
        self._check_inside(uri)
        return self._read_bytes(uri).decode(errors=errors)

    def stream(self, uri: str) -> Iterator[bytes]:
        """The content of a file of any size, piece by piece; the file is opened at once.

        Raises:
            FileNotFoundError: there is none.
        """
        self._check_inside(uri)
        return _pieces(_local_path(uri).open("rb") if self.is_local else self._fs().open(uri, "rb"))

    def _read_text(self, uri: str) -> str:
        return self._read_bytes(uri).decode()

    def _read_bytes(self, uri: str) -> bytes:
        if self.is_local:
            return _local_path(uri).read_bytes()
        content: bytes = self._fs().cat_file(uri)
        return content

    def _fs(self) -> Any:
        import fsspec

        try:
            return fsspec.url_to_fs(self.root, **self.storage_options)[0]
        except (ImportError, ValueError) as error:
            raise BadInput(f"store {self.root!r}: {error}") from error

    def _check_inside(self, uri: str) -> None:
        if not uri.startswith(f"{self.root}/") or _climbs(uri):
            raise BadInput(f"artifact address {uri!r} is not inside the store {self.root!r}")


class ArtifactWriter:
    """A staging directory that becomes an artifact on :meth:`commit`, and nothing otherwise.

    A context manager: leaving it without a commit removes what was staged.
    """

    def __init__(
        self,
        store: ArtifactStore,
        uri: str,
        kind: str,
        producer: Producer,
        inputs: Mapping[str, tuple[Artifact, ...]],
        cache_key_parts: Mapping[str, str],
    ) -> None:
        self.store, self.uri, self.kind = store, uri, kind
        self._producer, self._inputs, self._parts = producer, inputs, cache_key_parts
        if store.is_local:
            target = _local_path(uri)
            # A try that was killed leaves its staging directory; the next one clears it.
            for rubbish in target.parent.glob(f"{target.name}.staging-*"):
                shutil.rmtree(rubbish, ignore_errors=True)
            self.path = target.parent / f"{target.name}.staging-{uuid.uuid4().hex[:8]}"
        else:
            self.path = Path(tempfile.mkdtemp(prefix="hops-artifact-"))
        self.path.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Removes what was staged."""
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(
        self,
        *,
        rows: Mapping[str, RowCounts] | None = None,
        metrics: Mapping[str, float] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Artifact:
        """Publishes the staged files, the manifest last, replacing what an earlier try published.

        Args:
            rows: Row counts by table, split or window; each must be conserved.
            metrics: Numbers worth showing without opening the artifact.
            properties: Small JSON facts.

        Raises:
            RowsNotConserved: a row count does not add up.
        """
        for name, counts in (rows or {}).items():
            counts.check(f"{self.kind} {name!r}")
        manifest = Manifest(
            kind=self.kind,
            producer=self._producer,
            inputs=self._inputs,
            files=tuple(_describe_files(self.path)),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            rows=rows or {},
            metrics=metrics or {},
            properties=properties or {},
            cache_key_parts=self._parts,
        )
        (self.path / MANIFEST_NAME).write_text(manifest.to_json())
        if self.store.is_local:
            self._publish_by_rename()
        else:
            self._publish_by_upload(manifest)
        return manifest.reference(self.uri)

    def _publish_by_rename(self) -> None:
        target = _local_path(self.uri)
        if not target.exists():
            self.path.rename(target)
            return
        if not _exchange(self.path, target):
            replaced = self.path.with_name(f"{target.name}.staging-replaced-{uuid.uuid4().hex[:8]}")
            target.rename(replaced)
            self.path.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)
        self.discard()

    def _publish_by_upload(self, manifest: Manifest) -> None:
        fs = self.store._fs()
        fs.invalidate_cache()
        if fs.exists(self.uri):
            if fs.exists(f"{self.uri}/{MANIFEST_NAME}"):
                fs.rm_file(f"{self.uri}/{MANIFEST_NAME}")
            with contextlib.suppress(FileNotFoundError):  # the manifest was all there was
                fs.rm(self.uri, recursive=True)
        for entry in manifest.files:
            fs.put_file(str(self.path / entry.path), f"{self.uri}/{entry.path}")
        fs.put_file(str(self.path / MANIFEST_NAME), f"{self.uri}/{MANIFEST_NAME}")
        fs.invalidate_cache()


def _pieces(stream: Any) -> Iterator[bytes]:
    with stream:
        while piece := stream.read(1 << 20):
            yield piece


def kept_version(uri: str, fingerprint: str) -> str:
    """Where a version of an artifact is kept when another one takes its address, if versions of it are kept at all."""
    return f"{uri.rpartition('/')[0]}/history/{fingerprint}"


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file, read in chunks."""
    with path.open("rb") as stream:
        return _sha256(stream)


def _sha256(stream: Any) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _describe_files(folder: Path) -> Iterable[FileEntry]:
    for path in sorted(folder.rglob("*")):
        # Hadoop leaves checksum files and markers beside its output; they are no part of the data.
        if path.is_file() and not path.name.startswith("_SUCCESS") and not path.name.endswith(".crc"):
            yield FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of(path))


def _verify(manifest: Manifest, uri: str, open_file: Callable[[str], Any]) -> None:
    for entry in manifest.files:
        _check_relative(entry.path, uri)
        try:
            with open_file(entry.path) as stream:
                found = _sha256(stream)
        except FileNotFoundError:
            raise HopsError(f"{uri}/{entry.path}: the manifest names it, but it is gone") from None
        if found != entry.sha256:
            raise HopsError(
                f"{uri}/{entry.path}: SHA-256 is {found[:12]}…, the manifest says {entry.sha256[:12]}…; "
                "the file was changed or damaged after it was written"
            )


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether a folder has all files of a manifest, by their sizes."""
    for entry in manifest.files:
        path = folder / entry.path
        if not path.is_file() or path.stat().st_size != entry.size_bytes:
            return False
    return folder.is_dir()


def _check_relative(path: str, uri: str) -> None:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        raise BadInput(f"{uri}: the manifest names the file {path!r}, which is outside the artifact")


def _climbs(uri: str) -> bool:
    # A local path is unquoted before it is opened, so that %2e%2e is a way out too.
    return ".." in (*PurePosixPath(uri).parts, *PurePosixPath(unquote(uri)).parts)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two paths at once, so that nobody finds neither; False where the system or its file system cannot."""
    at_working_directory, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE, of renameat2(2)
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(rename(at_working_directory, bytes(first), at_working_directory, bytes(second), swap) == 0)


def _as_uri(root: str) -> str:
    return root if "://" in root else Path(root).expanduser().resolve().as_uri()


def _local_path(uri: str) -> Path:
    # Artifact addresses are made of safe characters; only the root may hold percent escapes.
    return Path(unquote(uri.removeprefix("file://")))
