"""Estimators in files of skops, which hold no code, but name types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PLAIN_DATA = ("numpy.dtype",)
"""Types that skops does not trust by itself, and restores from data alone: a dtype from that of an empty array."""


def untrusted_types(path: Path, trusted: Sequence[str] = ()) -> list[str]:
    """The types that a file names and that neither skops nor the caller trusts, sorted."""
    import skops.io

    return sorted({*skops.io.get_untrusted_types(file=path)} - {*trusted, *_PLAIN_DATA})


def load_estimator(path: Path, trusted: Sequence[str] = ()) -> Any:
    """Loads a file whose types are trusted.

    Raises:
        skops.io.exceptions.UntrustedTypesFoundException: It names others, too.
    """
    import skops.io

    return skops.io.load(path, trusted=[*trusted, *_PLAIN_DATA])
