"""Writes artifacts and publishes them."""

# The order of a commit, and what a kill leaves behind:
# 1. The task writes files into a staging folder, ``<name>!staging-<random>``. Nobody reads such folders. After a kill,
#    the next try of the task, or a garbage collection, removes it.
# 2. ``manifest.json`` is written into the staging folder last, with the checksums of all files.
# 3. In a local store the staging folder is renamed to the address, or exchanged with the folder of an earlier try in
#    one system call: readers find the old artifact or the new one. If the file system cannot exchange folders, two
#    renames follow each other, and a kill in between leaves no artifact at the address.
# 4. In an object store the old manifest is removed first, and the new one is uploaded last. An address without a
#    manifest is not an artifact, so a kill leaves files that the next try replaces.

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Artifact, FileEntry, Manifest, Producer, RowCounts
from airflow_hops.core.profiles import own_profile
from airflow_hops.core.store import integrity
from airflow_hops.core.store.files import STAGING, Files, LocalFiles, reaching_store


class ArtifactWriter:
    """A staging folder that :meth:`commit` turns into an artifact.

    As a context manager it removes the staging folder if there was no commit.

    Attributes:
        uri: Address of the future artifact.
        kind: Kind of the future artifact.
        path: The staging folder.
        cost: Called at the commit; returns the cost for the manifest.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        uri: str,
        kind: str,
        producer: Producer,
        inputs: Mapping[str, tuple[Artifact, ...]],
        cache_key_parts: Mapping[str, str],
    ) -> None:
        self.uri, self.kind = uri, kind
        self._files, self._root = files, root
        self._producer, self._inputs, self._parts = producer, inputs, cache_key_parts
        self.path = files.staging(uri)
        self.cost: Callable[[], Mapping[str, float]] = dict
        self._parts_uri = ""
        self._uploaded: list[FileEntry] = []

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Removes the staging folder, and that of tasks."""
        self._files.discard(self.path)
        if self._parts_uri:
            self._files.remove_folder(self._parts_uri)
            self._parts_uri = ""

    def parts(self) -> str:
        """Returns the address of a staging folder in a remote store, for files that tasks on other hosts write."""
        if not self._parts_uri:
            folder, _, name = self.uri.rpartition("/")
            for other in self._files.names(folder):
                if other.startswith(f"{name}{STAGING}"):  # left by a killed try
                    self._files.remove_folder(f"{folder}/{other}")
            self._parts_uri = f"{self.uri}{STAGING}{uuid.uuid4().hex[:8]}"
        return self._parts_uri

    def add(self, entries: Iterable[FileEntry]) -> None:
        """Adds files that tasks wrote to :meth:`parts`."""
        self._uploaded += entries

    def commit(
        self,
        *,
        rows: Mapping[str, RowCounts] | None = None,
        metrics: Mapping[str, float] | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> Artifact:
        """Publishes the staged files, the manifest last, replacing the artifact of an earlier try.

        Args:
            rows: Row counts by table, split or window; each must be conserved.
            metrics: Numbers to show without opening the artifact.
            properties: Small JSON facts.

        Raises:
            RowsNotConserved: a row count does not add up.
            HopsError: the store cannot be written.
        """
        for name, counts in (rows or {}).items():
            counts.check(f"{self.kind} {name!r}")
        manifest = Manifest(
            kind=self.kind,
            producer=self._producer,
            inputs=self._inputs,
            files=tuple(sorted([*integrity.describe(self.path), *self._uploaded], key=lambda entry: entry.path)),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            rows=rows or {},
            metrics=metrics or {},
            properties=properties or {},
            cache_key_parts=self._parts,
            cost=self.cost(),
            profile=profile.name if (profile := own_profile()) else None,
        )
        (self.path / MANIFEST_NAME).write_text(manifest.to_json())
        with reaching_store(self._root):
            uploaded = {entry.path for entry in self._uploaded}
            staged = [entry.path for entry in manifest.files if entry.path not in uploaded]
            if isinstance(self._files, LocalFiles):
                self._files.publish(self.path, self.uri, staged)
            else:
                self._files.publish(self.path, self.uri, staged, parts=self._parts_uri, uploaded=sorted(uploaded))
        self.discard()
        return manifest.reference(self.uri)
