"""Bodies of requests and answers as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any


def json_object(body: Any) -> Mapping[str, Any] | None:
    """Returns the JSON object that a body is; None if it is another."""
    if isinstance(body, str | bytes):
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(body)
    return body if isinstance(body, Mapping) else None
