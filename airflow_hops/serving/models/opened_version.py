"""A version that several processes open; all of them must read the same files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.storage import Fingerprint, VersionFolder


@dataclass(frozen=True)
class OpenedVersion:
    """A version, and the fingerprint of its files when it was first opened."""

    model: str
    version: int
    folder: Path
    fingerprint: Fingerprint = ()

    def as_it_is(self) -> OpenedVersion:
        """Returns a copy with the current fingerprint."""
        return replace(self, fingerprint=VersionFolder(self.version, self.folder).fingerprint())

    def check(self) -> None:
        """Checks that the files have not changed; called before and after another process opens the version.

        Raises:
            ServingError: The files have changed.
        """
        if self.as_it_is() != self:
            message = f"{self.folder} has changed since model {self.model} version {self.version} was loaded from it"
            raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, message)
