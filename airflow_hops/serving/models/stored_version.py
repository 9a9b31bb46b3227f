"""A version under a base path, as the loader sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_hops.serving.models.servable import Servable

Fingerprint = tuple[tuple[str | int | None, ...], ...]
"""Names, sizes and times of a version's files, which change while the files are being written."""


class StoredVersion(Protocol):
    """One version, on disk or in a store."""

    @property
    def number(self) -> int:
        """The version."""

    @property
    def place(self) -> str:
        """Path or URL of its folder."""

    def has_model(self) -> bool:
        """Returns whether the files include those of a model."""

    def fingerprint(self) -> Fingerprint:
        """Returns the fingerprint of the files."""

    def is_quiet(self) -> bool:
        """Returns whether its contents have been unchanged for a second. Raises OSError if it no longer exists."""

    def open(self, open_folder: Callable[[Path], Servable]) -> Servable:
        """Opens the version, or a copy of it on this machine."""
