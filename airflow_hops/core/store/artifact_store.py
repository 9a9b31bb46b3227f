"""Reads and writes artifacts by their addresses, and the small files that lie beside them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote

from airflow_hops.core.contract.artifacts import (
    MANIFEST_NAME,
    MOST_JSON_BYTES,
    Artifact,
    BadInput,
    FileEntry,
    Manifest,
    Producer,
    UnreadableFile,
    parse_json,
)
from airflow_hops.core.contract.redaction import without_password
from airflow_hops.core.store.checksums import CHUNK_BYTES, sha256_of
from airflow_hops.core.store.files import Files, LocalFiles, StoreFiles
from airflow_hops.core.store.integrity import (
    Damage,
    DamagedArtifact,
    additions,
    check_paths,
    damages,
    damages_in,
    paths_in,
)
from airflow_hops.core.store.local_copies import LocalCopies
from airflow_hops.core.store.reaching import reaching_store
from airflow_hops.core.store.writer import ArtifactWriter

_NAME_BYTES = 255

files_read: ContextVar[list[str] | None] = ContextVar("files_read", default=None)
"""Collects the addresses of the small files that are read, for who must say which of them cannot be used."""


class ArtifactStore:
    """Reads and writes the artifacts under one root.

    Args:
        root: URI of the store (``file:///var/hops``, ``s3://bucket/hops``) or a local path. A password in it goes to
            the storage options, since the URI becomes a part of every artifact's address.
        storage_options: Passed to fsspec (``endpoint_url`` of an S3-compatible service, for instance).
        local_cache: Where artifacts of a remote store are kept for local readers; by default in this user's cache.

    Attributes:
        root: The store's URI.
        storage_options: As they were given.
        files: The files of the place that the store lies in.

    Raises:
        BadInput: the root climbs out of itself with ``..``.
    """

    def __init__(
        self, root: str, *, storage_options: Mapping[str, Any] | None = None, local_cache: str | None = None
    ) -> None:
        address, password = without_password(
            (root if "://" in root else Path(root).expanduser().resolve().as_uri()).rstrip("/")
        )
        self.root = address
        if _climbs(self.root):
            raise BadInput(f"the store's address {root!r} has a part '..'; expected a normalized address")
        self.storage_options = {**({} if password is None else {"password": password}), **(storage_options or {})}
        self.files: Files = (
            LocalFiles(self.root) if self.root.startswith("file://") else StoreFiles(self.root, self.storage_options)
        )
        self._local_cache = None if local_cache is None else Path(local_cache)

    @property
    def is_local(self) -> bool:
        """Whether the store lies in a local file system."""
        return isinstance(self.files, LocalFiles)

    def address(self, producer: Producer, kind: str) -> str:
        """The artifact address of a task: the same for every try, so that a retry replaces what it wrote.

        Raises:
            BadInput: an identifier would lead out of the store.
        """
        return self.uri(producer.dag_id, producer.run_id, producer.task, kind)

    def dag_of(self, uri: str) -> str:
        """The DAG whose artifacts lie at an address, by the address alone; empty if it is not in this store."""
        inside = uri.removeprefix(f"{self.root}/")
        return "" if inside == uri else inside.partition("/")[0]

    def uri(self, *segments: str) -> str:
        """Joins path segments to the root, each made safe for any file system.

        Raises:
            BadInput: a segment is empty, ``.`` or ``..``, or too long for a file system.
        """
        for segment in segments:
            if len(segment.encode(errors="replace")) > _NAME_BYTES:
                raise BadInput(
                    f"{segment[:60]!r}… has {len(segment.encode(errors='replace'))} bytes, but names in a file system "
                    f"have {_NAME_BYTES} at most; shorten it"
                )
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
        if not isinstance(self.files, LocalFiles):
            return f"{uri}/{path}"
        folder = self.files.path(uri).resolve()
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
            BadInput: ``uri`` is not inside this store, or the store cannot be written.
        """
        self._check_inside(uri)
        with reaching_store(self.root):
            return ArtifactWriter(self.files, self.root, uri, kind, producer, inputs or {}, cache_key_parts or {})

    def manifest(self, uri: str) -> Manifest:
        """The manifest of the artifact at ``uri``.

        Raises:
            BadInput: there is no artifact, or its manifest cannot be read.
        """
        self._check_inside(uri)
        path = f"{uri}/{MANIFEST_NAME}"
        try:
            text = self.read_text(path)
        except FileNotFoundError:
            raise BadInput(
                f"{uri}: no artifact found (no {MANIFEST_NAME}); the step that makes it has not finished, or it was "
                f"deleted: {self._how_to_make(uri)}"
            ) from None
        return Manifest.from_json(text, path)

    def _how_to_make(self, uri: str) -> str:
        """The task to clear, by the address alone: see :meth:`address`."""
        segments = uri.removeprefix(f"{self.root}/").split("/")
        if len(segments) != 4:
            return "run the task that makes it again"
        dag_id, run_id, task, _ = segments
        of_run = "" if run_id.startswith("_") else f" in run {run_id!r}"
        return f"clear the task {task!r} of DAG {dag_id!r}{of_run}, with its downstream tasks"

    def exists(self, uri: str) -> bool:
        """Whether a whole artifact is at ``uri``."""
        self._check_inside(uri)
        return self.files.exists(f"{uri}/{MANIFEST_NAME}")

    def find(self, artifact: Artifact) -> tuple[Artifact, Manifest]:
        """An artifact with its manifest; of one that was replaced and is kept (:func:`kept_version`), what is meant.

        Raises:
            BadInput: the artifact is missing, its manifest names files outside of it, or another one lies at its
                address by now.
        """
        self._check_inside(artifact.uri)
        retained, result = replace(artifact, uri=kept_version(artifact.uri, artifact.fingerprint)), artifact
        try:
            manifest = self.manifest(artifact.uri)
        except BadInput:
            if not self.exists(retained.uri):
                raise
            result, manifest = retained, self.manifest(retained.uri)
        check_paths(manifest, result.uri)
        if manifest.fingerprint == artifact.fingerprint:
            return result, manifest
        if self.exists(retained.uri):
            return self.find(retained)
        raise BadInput(
            f"{artifact.uri}: another {manifest.kind} is stored there now (fingerprint "
            f"{manifest.fingerprint[:12]}…, "
            f"expected {artifact.fingerprint[:12]}…): its task ran again; run the downstream tasks again"
        )

    def local(self, artifact: Artifact, *, without: Collection[str] = (), checked: bool = True) -> Path:
        """A local directory with the artifact's files: itself on a local store, else a download.

        It is that which :meth:`find` finds.

        Args:
            artifact: The artifact.
            without: Folders of it that are not needed.
            checked: Whether files of a local store are compared with the manifest's checksums; a download always is.

        Raises:
            BadInput: the artifact is missing, or another one lies at its address by now.
            DamagedArtifact: a file is gone, its checksum differs from its manifest's, or the manifest lists no such
                file: what reads all files of a folder must not read it.
        """
        result, manifest = self.find(artifact)
        files = tuple(entry for entry in manifest.files if entry.path.partition("/")[0] not in without)
        wanted = replace(manifest, files=files)
        damage = next(self._additions(result.uri, manifest), None)
        if isinstance(self.files, LocalFiles):
            folder = self.files.path(result.uri)
            if damage is None and checked:
                damage = next(damages_in(folder, wanted, result.uri), None)
        elif damage is None:
            name = "-without-".join([manifest.fingerprint, *sorted(without)])
            folder = LocalCopies(self.files, self._local_cache).fetch(result.uri, wanted, name)
        if damage is None:
            return folder
        retained = kept_version(result.uri, artifact.fingerprint)
        if self.exists(retained):
            return self.local(replace(artifact, uri=retained), without=without)
        raise DamagedArtifact(damage, manifest.producer, retryable=False)

    def verify(self, artifact: Artifact) -> Manifest:
        """Re-reads every file of an artifact in the store and compares its checksum with the manifest's.

        Raises:
            DamagedArtifact: a file is missing or differs, or the manifest does not list it.
        """
        manifest = self.manifest(artifact.uri)
        for damage in self.damages(artifact.uri, manifest):
            raise DamagedArtifact(damage, manifest.producer, retryable=False)
        return manifest

    def damages(self, uri: str, manifest: Manifest) -> Iterator[Damage]:
        """Re-reads every file of an artifact in the store; yields those that are not what the manifest says."""
        self._check_inside(uri)
        yield from self._additions(uri, manifest)
        files = self.files
        if isinstance(files, LocalFiles):
            yield from damages_in(files.path(uri), manifest, uri, reread=True)
            return

        def checksum(path: str) -> str:
            with files.open(uri, path) as stream:
                return sha256_of(stream)

        yield from damages(manifest, uri, checksum)

    def damage(self, uri: str, manifest: Manifest) -> Damage | None:
        """A file of an artifact that is not what the manifest says, as far as can be told without a download."""
        self._check_inside(uri)
        if isinstance(self.files, LocalFiles):
            result = damages_in(self.files.path(uri), manifest, uri)
            return next(itertools.chain(self._additions(uri, manifest), result), None)
        sizes = self.files.sizes(uri)
        for entry in manifest.files:
            if sizes.get(entry.path) != entry.size_bytes:
                found_bytes = f"{sizes[entry.path]} bytes" if entry.path in sizes else None
                return Damage(uri, entry.path, f"{entry.size_bytes} bytes", found_bytes)
        return next(additions(manifest, uri, sizes), None)

    def artifacts(self, uri: str) -> list[str]:
        """Addresses of the artifacts at or below an address of the store, sorted."""
        if uri != self.root:
            self._check_inside(uri)
        return self.files.folders_with(uri, MANIFEST_NAME)

    def accept_edit(self, uri: str, path: str) -> Artifact:
        """The artifact after somebody may have edited one of its text files: its manifest then says what is in there.

        Raises:
            BadInput: there is no artifact, or no such file in it.
        """
        manifest = self.manifest(uri)
        try:
            content = self.files.read(f"{uri}/{path}")
        except FileNotFoundError:
            raise BadInput(f"{uri}/{path}: it is in the manifest, but was deleted") from None
        entry = FileEntry(path, len(content), hashlib.sha256(content).hexdigest())
        if entry not in manifest.files:
            others = tuple(file for file in manifest.files if file.path != path)
            manifest = replace(manifest, files=(*others, entry))
            self.write_text(f"{uri}/{MANIFEST_NAME}", manifest.to_json())
        return manifest.reference(uri)

    def write_text(self, uri: str, text: str) -> None:
        """Writes a small file atomically."""
        self._check_inside(uri)
        self.files.write(uri, text.encode())

    def create_text(self, uri: str, text: str) -> None:
        """Writes a small file that is not there yet, atomically; of several that try, one succeeds.

        Raises:
            FileExistsError: it is there.
        """
        self._check_inside(uri)
        self.files.create(uri, text.encode())

    def remove_text(self, uri: str) -> None:
        """Removes a small file, if it is there."""
        self._check_inside(uri)
        self.files.remove(uri)

    def remove_folder(self, uri: str) -> None:
        """Removes an artifact, or another folder with all that is in it, if it is there."""
        self._check_inside(uri)
        self.files.remove_folder(uri)

    def names(self, uri: str) -> list[str]:
        """Names of what lies in a folder, sorted; none if there is no folder."""
        self._check_inside(uri)
        return self.files.names(uri)

    def lock(self, uri: str, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Holds a lock on a folder of a local store, against threads and processes; elsewhere there is none to hold.

        Raises:
            TimeoutError: another has held it for ``timeout_s`` seconds.
        """
        self._check_inside(uri)
        return self.files.lock(uri, timeout_s)

    def read_text(self, uri: str, *, errors: str = "strict") -> str:
        """Reads a small file; ``errors`` is as in ``bytes.decode``.

        Raises:
            FileNotFoundError: there is none.
            UnreadableFile: it is not UTF-8, or larger than such a file can be.
        """
        self._check_inside(uri)
        if (before := files_read.get()) is not None:
            before.append(uri)
        try:
            content = self.files.read(uri, MOST_JSON_BYTES + 1)
            if len(content) > MOST_JSON_BYTES:
                raise UnreadableFile(
                    f"{uri}: the file has more than {MOST_JSON_BYTES} bytes, which no step writes; restore it, or "
                    "clear the task that writes it"
                )
            return content.decode(errors=errors)
        except UnicodeDecodeError as error:
            raise UnreadableFile(
                f"{uri}: expected text in UTF-8, found byte 0x{error.object[error.start]:02x} at {error.start}; the "
                "file was damaged, or another program wrote it: restore it, or clear the task that writes it"
            ) from None

    def read_json(self, uri: str) -> Any:
        """The JSON value in a small file.

        Raises:
            FileNotFoundError: there is none.
            UnreadableFile: it is not JSON.
        """
        return parse_json(self.read_text(uri), uri)

    def stream(self, uri: str) -> Iterator[bytes]:
        """The content of a file of any size, piece by piece; the file is opened at once.

        Raises:
            FileNotFoundError: there is none.
        """
        self._check_inside(uri)
        return _pieces(self.files.open(uri))

    def _additions(self, uri: str, manifest: Manifest) -> Iterator[Damage]:
        """The files in an artifact's folder that its manifest does not list."""
        files = self.files
        inside = paths_in(files.path(uri), manifest) if isinstance(files, LocalFiles) else files.sizes(uri)
        return additions(manifest, uri, inside)

    def _check_inside(self, uri: str) -> None:
        if not uri.startswith(f"{self.root}/") or _climbs(uri):
            raise BadInput(f"artifact address {uri!r} is not inside the store {self.root!r}")


def kept_version(uri: str, fingerprint: str) -> str:
    """Returns the address for a version when another takes its place; None if versions are not retained."""
    return f"{uri.rpartition('/')[0]}/history/{fingerprint}"


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while piece := stream.read(CHUNK_BYTES):
            yield piece


def _climbs(uri: str) -> bool:
    # A local path is unquoted before it is opened, so that %2e%2e is a way out too.
    return ".." in (*PurePosixPath(uri).parts, *PurePosixPath(unquote(uri)).parts)
