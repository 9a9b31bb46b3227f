"""Removes captured files that are too old, or too many."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_hops.core.serving_api.capture_layout import FOLDERS
from airflow_hops.serving.capture.files import CapturedFiles, time_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Removed:
    """The files that were removed."""

    files: int = 0
    size_bytes: int = 0


def remove_old(files: CapturedFiles, model_folder: str, days: float, limit_bytes: int) -> Removed:
    """Removes files of a model, oldest first.

    A local file that a reader has open stays readable to it. Labels, shadow answers and logs count as the model's.

    Args:
        files: Where they are.
        model_folder: The model's folder.
        days: Age beyond which a file is removed, by the time in its name; 0 for any age.
        limit_bytes: Size of all files beyond which the oldest are removed; 0 for any size.
    """
    result = sorted(
        (name, folder, size)
        for folder in (f"{model_folder}/{name}".rstrip("/") for name in FOLDERS)
        for name, size in files.sizes(folder).items()
    )
    oldest_kept = datetime.now(UTC) - timedelta(days=days) if days else None
    excess_bytes = sum(size for _, _, size in result) - limit_bytes if limit_bytes else 0
    removed = removed_bytes = 0
    for name, folder, size in result:
        at = time_of(name)
        assert at is not None
        if not ((oldest_kept is not None and at < oldest_kept) or removed_bytes < excess_bytes):
            break
        files.remove(folder, name)
        removed, removed_bytes = removed + 1, removed_bytes + size
    if removed:
        log.info("capture: removed %d old files of %s, %d bytes", removed, model_folder, removed_bytes)
    return Removed(removed, removed_bytes)
