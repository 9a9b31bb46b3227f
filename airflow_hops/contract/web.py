"""What operators and the web API know of each other."""

from __future__ import annotations

URL_PREFIX = "/hops"
"""Where the plugin mounts the web API in Airflow's API server."""

REFUSED_KEY = "refused"
"""The XCom that says why no retraining was asked for."""
