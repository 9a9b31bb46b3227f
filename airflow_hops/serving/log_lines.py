"""Logging of the server and its processes: their own lines from INFO on, of libraries warnings alone.

The library of a store may tell of every request at INFO, and a base path is looked at every second.
"""

from __future__ import annotations

import logging
from typing import Any

TIMED = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(**settings: Any) -> None:
    """Configures logging once, early in a process.

    Args:
        settings: As of ``logging.basicConfig``, but for the level.
    """
    logging.basicConfig(level=logging.WARNING, **settings)
    logging.getLogger("airflow_hops").setLevel(logging.INFO)
