"""Logging of the server and its processes: own lines from INFO, lines of libraries from WARNING.

A store's library may log every request at INFO, and base paths are polled every second.
"""

from __future__ import annotations

import logging
from typing import Any

TIMED = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(**settings: Any) -> None:
    """Configures logging, once per process; takes the settings of ``logging.basicConfig``, except the level."""
    logging.basicConfig(level=logging.WARNING, **settings)
    logging.getLogger("airflow_hops").setLevel(logging.INFO)
