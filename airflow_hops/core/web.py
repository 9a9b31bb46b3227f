"""Constants shared by operators and the web API."""

from __future__ import annotations

URL_PREFIX = "/hops"
"""Path at which the plugin mounts the web API in Airflow's API server."""

REFUSED_KEY = "refused"
"""XCom of a skipped task with its ``reason`` and further facts."""
