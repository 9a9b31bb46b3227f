"""A version that several processes have open: one that opens it later must find the same files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.storage import Fingerprint, VersionFolder


@dataclass(frozen=True)
class OpenedVersion:
    """A version, and what its files were like when it was opened first."""

    model: str
    version: int
    folder: Path
    fingerprint: Fingerprint = ()

    def as_it_is(self) -> OpenedVersion:
        """Returns it with its files as they are now."""
        return replace(self, fingerprint=VersionFolder(self.version, self.folder).fingerprint())

    def check(self) -> None:
        """Makes sure that its files are as they were; asked before and after it is opened once more.

        Raises:
            ServingError: They have changed.
        """
        if self.as_it_is() != self:
            message = f"{self.folder} has changed since model {self.model} version {self.version} was loaded from it"
            raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, message)
