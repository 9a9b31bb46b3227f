"""Estimators in files of skops, which hold no code, but name types."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PLAIN_DATA = ("numpy.dtype",)
"""Types that skops does not trust by itself, and restores from data alone: a dtype from that of an empty array."""
MAX_SCHEMA_BYTES = 128 << 20
"""Maximum bytes of the description in a file, which is read whole and compresses a thousandfold."""


def untrusted_types(path: Path, trusted: Sequence[str] = ()) -> list[str]:
    """The types that a file names and that neither skops nor the caller trusts, sorted.

    Raises:
        ValueError: Its description is too large.
    """
    import skops.io

    _check_schema(path)
    return sorted({*skops.io.get_untrusted_types(file=path)} - {*trusted, *_PLAIN_DATA})


def load_estimator(path: Path, trusted: Sequence[str] = ()) -> Any:
    """Loads a file whose types are trusted.

    Raises:
        skops.io.exceptions.UntrustedTypesFoundException: It names others, too.
        ValueError: Its description is too large.
    """
    import skops.io

    _check_schema(path)
    return skops.io.load(path, trusted=[*trusted, *_PLAIN_DATA])


def _check_schema(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        # No more than the archive says is read of a member.
        size = archive.getinfo("schema.json").file_size if "schema.json" in archive.namelist() else 0
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"{path}: schema.json has {size} bytes; the limit is {MAX_SCHEMA_BYTES} bytes")
