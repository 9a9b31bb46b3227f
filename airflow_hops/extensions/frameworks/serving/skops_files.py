"""Estimators in skops files, which name types but contain no code."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

_PLAIN_DATA = ("numpy.dtype",)
"""Types that skops does not trust by default but restores from data alone: a dtype from that of an empty array."""
MAX_SCHEMA_BYTES = 128 << 20
"""Maximum size of a file's ``schema.json``, which is read at once and may be compressed a thousandfold."""


def untrusted_types(path: Path, trusted: Sequence[str] = ()) -> list[str]:
    """Returns the types in a file that neither skops nor the caller trusts, sorted.

    Raises:
        ValueError: The file's ``schema.json`` is too large.
    """
    import skops.io

    _check_schema(path)
    return sorted({*skops.io.get_untrusted_types(file=path)} - {*trusted, *_PLAIN_DATA})


def load_estimator(path: Path, trusted: Sequence[str] = ()) -> object:
    """Loads a file whose types are trusted.

    Raises:
        skops.io.exceptions.UntrustedTypesFoundException: The file contains other types, too.
        ValueError: The file's ``schema.json`` is too large.
    """
    import skops.io

    _check_schema(path)
    return skops.io.load(path, trusted=[*trusted, *_PLAIN_DATA])


def _check_schema(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        # zipfile reads at most the size in the archive's directory.
        size = archive.getinfo("schema.json").file_size if "schema.json" in archive.namelist() else 0
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"{path}: schema.json has {size} bytes; the limit is {MAX_SCHEMA_BYTES} bytes")
