"""The folders and services of a query."""

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
    """A connection's store and services.

    Attributes:
        store_uri: The artifact store's address.
        storage_options: Passed to fsspec.
        tracking_uri: MLflow's tracking URI.
    """

    store_uri: str
    storage_options: Mapping[str, Any]
    tracking_uri: str

    @cached_property
    def store(self) -> ArtifactStore:
        """The artifact store."""
        return ArtifactStore(self.store_uri, storage_options=self.storage_options)

    def folder(self, artifact: Mapping[str, Any], *, without: Collection[str] = ()) -> Path:
        """A local folder with an artifact's files, as they are: a page does not wait until all of them have been read.

        Args:
            artifact: The reference, as :meth:`~airflow_hops.core.contract.artifacts.Artifact.to_dict` makes it.
            without: Folders of it that need not be downloaded.

        Raises:
            BadInput: it is missing, or another one lies at its address by now.
        """
        return self.store.local(Artifact.from_dict(artifact), without=without, checked=False)
