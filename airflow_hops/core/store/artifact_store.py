"""Reads and writes artifacts by address, and the small files beside them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote

from airflow_hops.core.artifacts.artifact import (
    MANIFEST_NAME,
    Artifact,
    FileEntry,
    Manifest,
    Producer,
    is_segment,
    name_in,
    segment,
)
from airflow_hops.core.errors import ArtifactNotFound, BadInput, StoreAway, UnreadableText
from airflow_hops.core.json_files import MOST_JSON_BYTES, parse_json
from airflow_hops.core.redaction import without_password
from airflow_hops.core.store.checksums import CHUNK_BYTES, sha256_of
from airflow_hops.core.store.files import Files, LocalFiles, StoreFiles, normalized, reaching_store
from airflow_hops.core.store.integrity import (
    Damage,
    additions,
    check_paths,
    damaged,
    damages,
    damages_in,
    paths_in,
)
from airflow_hops.core.store.local_copies import LocalCopies
from airflow_hops.core.store.writer import ArtifactWriter

MARKER = "_store.json"
"""File in the root of a store that is there: an empty mount point, or a folder of another name, does not have it."""
_RECORDS = {"_backtests", "_cache", "_datasets", "_models", "_owners", "_runs", "_serving", "_trainings"}
_NOT_OURS = {"lost+found", "_state"}
"""Folders that say nothing of whether a root is a store: of its file system, and of tasks whose store went away."""
_MOST_DAGS, _MOST_NAMES = 10, (2, 4, 4)
"""Numbers of DAGs, and of runs, tasks and kinds in each, in which an older store's artifact is looked for."""

FROZEN = "_frozen"
"""Folder of the frozen schemas in a DAG's folder."""

files_read: ContextVar[list[str] | None] = ContextVar("files_read", default=None)
"""Collects the addresses of the small files that are read, for error messages."""


class ArtifactStore:
    """Reads and writes the artifacts under one root.

    Args:
        root: URI of the store (``file:///var/hops``, ``s3://bucket/hops``) or a local path. A password in it is moved
            to the storage options, since the URI becomes a part of every artifact's address.
        storage_options: Passed to fsspec (``endpoint_url`` of an S3-compatible service, for instance).
        local_cache: Folder for local copies of a remote store's artifacts; by default in this user's cache.

    Attributes:
        files: File operations of the store.

    Raises:
        BadInput: the root contains ``..``.
        StoreAway: by its methods after :meth:`check`, the store has gone away: nothing is missing for certain.
    """

    def __init__(
        self, root: str, *, storage_options: Mapping[str, Any] | None = None, local_cache: str | None = None
    ) -> None:
        address, password = without_password(
            (root if "://" in root else Path(root).expanduser().resolve().as_uri()).rstrip("/")
        )
        self.root = normalized(address)  # addresses are compared as text
        if _climbs(self.root):
            raise BadInput(f"the store's address {root!r} has a part '..'; expected a normalized address")
        self.storage_options = {**({} if password is None else {"password": password}), **(storage_options or {})}
        self.files: Files = (
            LocalFiles(self.root) if self.root.startswith("file://") else StoreFiles(self.root, self.storage_options)
        )
        self._local_cache = None if local_cache is None else Path(local_cache)
        self._marker, self._is_expected, self._is_marked = f"{self.root}/{MARKER}", False, False

    def check(self) -> None:
        """Checks that the store is there; from then on also before it writes, and when it does not find something.

        Raises:
            StoreAway: nothing has been stored at its root, or it is away.
            OSError: there can be no folder at its root.
        """
        self._is_expected = True
        self._is_marked = self.files.exists(self._marker)
        if not self._is_marked and not self._is_older():
            with contextlib.suppress(FileNotFoundError, PermissionError):
                self.files.check()
            raise StoreAway(self.root)

    def _is_older(self) -> bool:
        """Returns whether a version without the marker has made a store here: it has records, or an artifact."""
        names = self.files.names(self.root)
        if _RECORDS & {*names}:
            return True
        level = [f"{self.root}/{name}" for name in names if name not in _NOT_OURS and name[0] != "."][:_MOST_DAGS]
        with contextlib.suppress(PermissionError):  # of somebody else's folder
            for most in _MOST_NAMES:
                level = [f"{uri}/{name}" for uri in level for name in self.files.names(uri)[:most]]
            return any(self.files.exists(f"{uri}/{MANIFEST_NAME}") for uri in level)
        return False

    def make(self) -> None:
        """Makes a store; after :meth:`check`, it must be there. One that an older version made gets its marker."""
        if not self._is_marked:
            self._check_again()
            with contextlib.suppress(*[Exception] * self._is_expected):  # the right may be lacking in an older store
                self.files.write(self._marker, b"{}\n")
        self._is_expected = self._is_marked = True

    def _check_again(self) -> None:
        if self._is_expected:
            self.check()

    @property
    def is_local(self) -> bool:
        """Returns whether the store is on a local file system."""
        return isinstance(self.files, LocalFiles)

    def address(self, producer: Producer, kind: str) -> str:
        """Returns the artifact address of a task, the same for every try, so that a retry replaces the artifact.

        Raises:
            BadInput: an id is too long for a file system.
        """
        return self.uri(producer.dag_id, producer.run_id, producer.task, kind)

    def dag_of(self, uri: str) -> str:
        """Returns the DAG in an artifact's address; empty if the address is not in a DAG's folder of this store."""
        inside = uri.removeprefix(f"{self.root}/")
        return "" if inside == uri or inside.startswith("_") else name_in(inside.partition("/")[0])

    def uri(self, *ids: str) -> str:
        """Returns the address of a DAG's folder, or of one in it; different ids have different addresses.

        Raises:
            BadInput: an id is empty, or too long for a file system; see :func:`segment`.
        """
        return "/".join([self.root, *map(segment, ids)])

    def internal(self, folder: str, *ids: str) -> str:
        """Returns the address of a folder that is not a DAG's, or of one in it; ``folder`` is in no id's segment."""
        assert folder not in (segment(folder), ""), folder
        return "/".join([self.root, folder, *map(segment, ids)])

    def frozen_schema(self, dag_id: str, name: str) -> str:
        """Returns the address of a DAG's frozen schema."""
        return f"{self.uri(dag_id)}/{FROZEN}/{segment(name)}/schema"

    def place(self, text: str) -> str:
        """Returns the address that a person gives: a URI, or a path in the store; ids may also be written as they are.

        Raises:
            BadInput: it is not inside this store.
        """
        parts = text.strip("/").split("/")
        uri = self.files.canonical(text.rstrip("/"))
        if "://" not in text:
            uri = "/".join([self.root, *(each if is_segment(each) else segment(each) for each in parts)])
        if uri != self.root:
            self._check_inside(uri)
        return uri

    def file(self, uri: str, path: str) -> str:
        """Returns the address of an artifact's file, for a program that shows it to users.

        Such a program may have more permissions than the artifact's author: links must not expose other files.

        Raises:
            BadInput: the file is not inside the artifact, or is a link that leads out of it.
        """
        self._check_inside(f"{uri}/{path}")
        if not isinstance(self.files, LocalFiles):
            return f"{uri}/{path}"
        folder = self.files.path(uri).resolve()
        if not (folder / path).resolve().is_relative_to(folder):
            raise BadInput(f"{uri}: {path!r} leads out of the artifact, so it is not shown")
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
        """Returns a writer for the artifact at ``uri``.

        Raises:
            BadInput: ``uri`` is not inside this store, or the store cannot be written.
        """
        self._check_inside(uri)
        with reaching_store(self.root):
            self._check_again()
            return ArtifactWriter(self.files, self.root, uri, kind, producer, inputs or {}, cache_key_parts or {})

    def manifest(self, uri: str) -> Manifest:
        """Returns the manifest of the artifact at ``uri``.

        Raises:
            BadInput: there is no artifact, or its manifest cannot be read.
        """
        self._check_inside(uri)
        path = f"{uri}/{MANIFEST_NAME}"
        try:
            text = self.read_text(path)
        except FileNotFoundError:
            raise ArtifactNotFound(
                uri,
                f": no artifact found (no {MANIFEST_NAME}); the step that makes it has not finished, or it was "
                f"deleted: {self._how_to_make(uri)}",
            ) from None
        return Manifest.from_json(text, path)

    def _how_to_make(self, uri: str) -> str:
        """Returns advice to clear the task that :meth:`address` belongs to."""
        segments = uri.removeprefix(f"{self.root}/").split("/")
        if len(segments) != 4:
            return "run the task that makes it again"
        dag_id, run_id, task = map(name_in, segments[:3])
        of_run = "" if segments[1].startswith("_") else f" in run {run_id!r}"
        return f"clear the task {task!r} of DAG {dag_id!r}{of_run}, with its downstream tasks"

    def exists(self, uri: str) -> bool:
        """Returns whether a complete artifact is at ``uri``."""
        self._check_inside(uri)
        if self.files.exists(f"{uri}/{MANIFEST_NAME}"):
            return True
        self._check_again()
        return False

    def find(self, artifact: Artifact) -> tuple[Artifact, Manifest]:
        """Returns an artifact with its manifest; a replaced version is found in the history (:func:`kept_version`).

        Raises:
            BadInput: the artifact is missing or was replaced, or its manifest names files outside of it.
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
        """Returns a local folder with the files of the artifact from :meth:`find`; a remote store's are downloaded.

        Args:
            artifact: The artifact.
            without: Folders in it that are not needed.
            checked: Whether to compare files of a local store with the manifest's checksums; downloads always are.

        Raises:
            BadInput: the artifact is missing or was replaced.
            DamagedArtifact: a file is missing, has another checksum, or is not in the manifest, so that readers of
                whole folders would read it.
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
        raise damaged(damage, manifest.producer, retryable=False)

    def fetch(self, uri: str, entry: FileEntry, path: Path) -> None:
        """Copies one file of a remote store's artifact to a local path.

        Raises:
            DamagedArtifact: the file is missing or differs from its entry.
        """
        self._check_inside(f"{uri}/{entry.path}")
        assert isinstance(self.files, StoreFiles)
        with contextlib.suppress(FileNotFoundError):
            self.files.fetch(f"{uri}/{entry.path}", path)
        checksum = None
        if path.exists():
            with path.open("rb") as stream:
                checksum = sha256_of(stream)
        if checksum != entry.sha256:
            damage = Damage(uri, entry.path, entry.sha256, checksum)
            raise damaged(damage, self.manifest(uri).producer, retryable=True)

    def verify(self, artifact: Artifact) -> Manifest:
        """Reads every file of an artifact in the store again and compares its checksum with the manifest's.

        Raises:
            DamagedArtifact: a file is missing, differs, or is not in the manifest.
        """
        manifest = self.manifest(artifact.uri)
        for damage in self.damages(artifact.uri, manifest):
            raise damaged(damage, manifest.producer, retryable=False)
        return manifest

    def damages(self, uri: str, manifest: Manifest) -> Iterator[Damage]:
        """Reads every file of an artifact in the store again; yields those that differ from the manifest."""
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
        """Returns a file that differs from the manifest, checked without a download; None if there is none."""
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
        """Returns the addresses of the artifacts at or below an address, sorted.

        Raises:
            HopsError: the store cannot be reached.
        """
        if uri != self.root:
            self._check_inside(uri)
        with reaching_store(self.root):
            addresses = self.files.folders_with(uri, MANIFEST_NAME)
            if not addresses:
                self._check_again()
            return addresses

    def accept_edit(self, uri: str, path: str) -> Artifact:
        """Returns the artifact after updating its manifest for a text file that may have been edited.

        Raises:
            BadInput: there is no artifact, or it has no such file.
        """
        manifest = self.manifest(uri)
        try:
            content = self.files.read(f"{uri}/{path}")
        except FileNotFoundError:
            raise ArtifactNotFound(f"{uri}/{path}", ": it is in the manifest, but was deleted") from None
        entry = FileEntry(path, len(content), hashlib.sha256(content).hexdigest())
        if entry not in manifest.files:
            others = tuple(file for file in manifest.files if file.path != path)
            manifest = replace(manifest, files=(*others, entry))
            self.write_text(f"{uri}/{MANIFEST_NAME}", manifest.to_json())
        return manifest.reference(uri)

    def write_text(self, uri: str, text: str) -> None:
        """Writes a small file atomically."""
        self._check_inside(uri)
        self._check_again()
        self.files.write(uri, text.encode())

    def create_text(self, uri: str, text: str) -> None:
        """Creates a small file atomically; of several concurrent writers, one succeeds.

        Raises:
            FileExistsError: the file exists.
        """
        self._check_inside(uri)
        self._check_again()
        self.files.create(uri, text.encode())

    def remove_text(self, uri: str) -> None:
        """Removes a small file if it exists."""
        self._check_inside(uri)
        self.files.remove(uri)

    def remove_folder(self, uri: str) -> None:
        """Removes an artifact, or another folder with its contents, if it exists."""
        self._check_inside(uri)
        self.files.remove_folder(uri)

    def names(self, uri: str) -> list[str]:
        """Returns the names of a folder's entries, sorted; empty if there is not a folder."""
        self._check_inside(uri)
        names = self.files.names(uri)
        if not names:
            self._check_again()
        return names

    def stamps(self, uri: str) -> dict[str, str]:
        """Returns for each file of a folder a text that changes when the file does; empty if there is not a folder."""
        self._check_inside(uri)
        stamps = self.files.stamps(uri)
        if not stamps:
            self._check_again()
        return stamps

    def lock(self, uri: str, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Locks a folder of a local store against threads and processes; remote stores have no locks.

        Raises:
            LockHeld: another has held the lock for ``timeout_s`` seconds.
        """
        self._check_inside(uri)
        self._check_again()
        return self.files.lock(uri, timeout_s)

    def read_text(self, uri: str, *, errors: str = "strict") -> str:
        """Reads a small file; ``errors`` is as in ``bytes.decode``.

        Raises:
            FileNotFoundError: the file does not exist.
            UnreadableText: it is not UTF-8, or too large.
        """
        self._check_inside(uri)
        if (uris := files_read.get()) is not None:
            uris.append(uri)
        try:
            content = self.files.read(uri, MOST_JSON_BYTES + 1)
            if len(content) > MOST_JSON_BYTES:
                raise UnreadableText(
                    uri,
                    f": the file has more than {MOST_JSON_BYTES} bytes, which no step writes; restore it, or "
                    "clear the task that writes it",
                )
            return content.decode(errors=errors)
        except FileNotFoundError:
            self._check_again()
            raise
        except UnicodeDecodeError as error:
            raise UnreadableText(
                uri,
                f": expected text in UTF-8, found byte 0x{error.object[error.start]:02x} at {error.start}; the "
                "file was damaged, or another program wrote it: restore it, or clear the task that writes it",
            ) from None

    def read_json(self, uri: str) -> Any:
        """Returns the JSON value in a small file.

        Raises:
            FileNotFoundError: the file does not exist.
            UnreadableText: it is not JSON.
        """
        return parse_json(self.read_text(uri), uri)

    def stream(self, uri: str) -> Iterator[bytes]:
        """Yields the content of a file of any size in pieces; the file is opened at once.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        self._check_inside(uri)
        return _pieces(self.files.open(uri))

    def _additions(self, uri: str, manifest: Manifest) -> Iterator[Damage]:
        """Yields the files in an artifact's folder that its manifest does not list."""
        files = self.files
        inside = paths_in(files.path(uri), manifest) if isinstance(files, LocalFiles) else files.sizes(uri)
        return additions(manifest, uri, inside)

    def _check_inside(self, uri: str) -> None:
        if not uri.startswith(f"{self.root}/") or _climbs(uri):
            raise BadInput(f"artifact address {uri!r} is not inside the store {self.root!r}")


def kept_version(uri: str, fingerprint: str) -> str:
    """Returns the address of a replaced version, if versions are retained."""
    return f"{uri.rpartition('/')[0]}/history/{fingerprint}"


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while piece := stream.read(CHUNK_BYTES):
            yield piece


def _climbs(uri: str) -> bool:
    # A local path is unquoted before it is opened, so %2e%2e would also lead out.
    return ".." in (*PurePosixPath(uri).parts, *PurePosixPath(unquote(uri)).parts)
