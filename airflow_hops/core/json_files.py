"""JSON in files of unknown origin, with bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import UnreadableText

MOST_JSON_BYTES = 32 << 20
"""Maximum size of JSON, above that of any record; larger files or deeper values could take minutes to parse."""


_MOST_LEVELS = 100


def parse_json(text: str | bytes, source: str) -> Any:
    """Returns the JSON value in a file's text; NaN and infinities, which Python writes, are accepted.

    The message names ``source``, the file's address.

    Raises:
        UnreadableText: the text is not JSON in UTF-8, too large, or nested too deeply.
    """
    try:
        if len(text) > MOST_JSON_BYTES:
            raise ValueError(f"{len(text)} bytes, more than {MOST_JSON_BYTES}")
        value = json.loads(text)
        level = [value]
        for _ in range(_MOST_LEVELS):
            inner = (
                each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
            )
            level = [item for items in inner for item in items if isinstance(item, dict | list)]
            if not level:
                return value
        raise RecursionError
    except RecursionError:
        result = f"values within values, more than {_MOST_LEVELS} deep"
    except (ValueError, MemoryError) as error:
        result = str(error)
    raise UnreadableText(
        source, f": expected JSON ({result}); the file was damaged: restore it, or clear the task that writes it"
    ) from None


def read_json(path: Path) -> Any:
    """Returns the JSON value in a local file.

    Raises:
        FileNotFoundError: the file does not exist.
        UnreadableText: as :func:`parse_json`.
    """
    with path.open("rb") as file:
        return parse_json(file.read(MOST_JSON_BYTES + 1), str(path))
