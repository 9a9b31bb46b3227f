"""Constants that operators and the web API share."""

from __future__ import annotations

URL_PREFIX = "/hops"
"""Path at which the plugin mounts the web API in Airflow's API server."""

REFUSED_KEY = "refused"
"""The XCom in which a skipped task says why: ``reason``, and facts of its operator."""
