"""The artifact store: one directory per artifact, on anything that fsspec opens.

A writer works in a local staging directory and publishes on :meth:`ArtifactWriter.commit`: on a local store by
renaming the finished directory into place, or swapping it with the one that lies there; elsewhere by uploading the
files first and the manifest last. Readers therefore see a whole artifact or none.
"""

from __future__ import annotations

from airflow_hops.core.store.artifact_store import ArtifactStore, kept_version
from airflow_hops.core.store.writer import ArtifactWriter

__all__ = ["ArtifactStore", "ArtifactWriter", "kept_version"]
