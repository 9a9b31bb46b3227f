"""The layout of the files below a capture base path, for its writers and its readers.

``<base path>/<folder_name(model)>/`` holds the captured rows, and folders of its own for all else.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

FEEDBACK_FOLDER = "_feedback"
"""Folder of labels in a model's folder; readers of captured rows do not look into it."""
SHADOW_FOLDER = "_shadow"
"""Folder of rows that were answered, and not returned."""
PREDICTION_LOG_FOLDER = "_prediction_log"
"""Folder of the requests in ``PredictionLog`` files."""
FOLDERS = ("", FEEDBACK_FOLDER, SHADOW_FOLDER, PREDICTION_LOG_FOLDER)

_LONGEST_FOLDER = 200


def folder_name(model: str) -> str:
    """Returns the name of a model's folder: its own, with what would leave or hide the folder escaped.

    One that no file system could hold is cut, and ends with a digest of the whole.
    """
    escaped = quote(model, safe="")
    if len(escaped) > _LONGEST_FOLDER:
        digest = hashlib.sha256(model.encode()).hexdigest()[:16]
        escaped = f"{escaped[: _LONGEST_FOLDER - 17].rstrip('%')}-{digest}"
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def rows_file_pattern(version: int | None = None) -> str:
    """Returns the pattern of the names of files of captured rows: of all versions, or of one."""
    return "[!.]*.parquet" if version is None else f"[!.]*-v{version}-*.parquet"
