"""Store and services that a query uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.store import ArtifactStore


@dataclass(frozen=True)
class Place:
    """Store and services of a connection."""

    store_uri: str
    storage_options: Mapping[str, Any]
    tracking_uri: str

    @cached_property
    def store(self) -> ArtifactStore:
        """Artifact store."""
        return ArtifactStore(self.store_uri, storage_options=self.storage_options)

    def folder(self, artifact: Mapping[str, Any], *, without: Collection[str] = ()) -> Path:
        """Returns a local folder with an artifact's files, unchecked: a page does not wait until all are read.

        Args:
            artifact: The reference, as :meth:`~airflow_hops.core.contract.artifacts.Artifact.to_dict` makes it.
            without: Folders of it that need not be downloaded.

        Raises:
            BadInput: it is missing, or was replaced by another one.
        """
        return self.store.local(Artifact.from_dict(artifact), without=without, checked=False)
