"""What a user reads when something is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_hops.artifacts import BadInput


def messages(tries: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """What each attempt says that is refused; "nothing" where it is not."""
    said = {}
    for name, attempt in tries.items():
        try:
            attempt()
            said[name] = "nothing"
        except BadInput as error:
            said[name] = str(error)
    return said
