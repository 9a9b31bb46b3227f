"""Layout of the files below a capture base path, shared by writers and readers.

``<base path>/<folder_name(model)>/`` holds the captured rows, and separate folders for everything else. A file's name
begins with the time at which the file appeared (:func:`name_time`), by which a garbage collection
counts its age.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from urllib.parse import quote

FEEDBACK_FOLDER = "_feedback"
"""Folder of labels in a model's folder; readers of captured rows skip it."""

IS_SHADOW = re.compile(r"-v\d+-shadow-")
"""Found in the names of files whose scores were handed on to nobody."""

_LONGEST_FOLDER = 200
_TIME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-.*\.(?:parquet|tfrecord)")


def folder_name(model: str) -> str:
    """Returns the name of a model's folder: the model's name, escaped so that it cannot leave or hide the folder.

    A name that is too long for file systems is cut, and ends with ``+``, which no other has, and a digest of the whole.
    """
    escaped = quote(model, safe="")
    if len(escaped) > _LONGEST_FOLDER:
        digest = hashlib.sha256(model.encode()).hexdigest()[:16]
        escaped = f"{escaped[: _LONGEST_FOLDER - 17].rstrip('%')}+{digest}"
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def rows_file_pattern(version: int | None = None) -> str:
    """Returns the glob pattern of files of captured rows, of one version or of all."""
    return "[!.]*.parquet" if version is None else f"[!.]*-v{version}-*.parquet"


def name_time(at: datetime) -> str:
    """Returns the beginning of the name of a file that appears at a time."""
    return at.astimezone(UTC).strftime(_TIME_FORMAT)


def time_of(name: str) -> datetime | None:
    """Returns the time in a captured file's name; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
