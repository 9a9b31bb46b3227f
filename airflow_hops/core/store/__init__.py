"""Artifact store: one folder per artifact, on any file system that fsspec opens.

A writer works in a local staging folder and publishes on :meth:`ArtifactWriter.commit`: on a local store by renaming
the finished folder into place, or swapping it with the existing one; elsewhere by uploading the files first and the
manifest last. Readers therefore see a whole artifact or none.
"""

from __future__ import annotations

from airflow_hops.core.store.artifact_store import ArtifactStore, kept_version
from airflow_hops.core.store.writer import ArtifactWriter

__all__ = ["ArtifactStore", "ArtifactWriter", "kept_version"]
