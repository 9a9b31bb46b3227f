"""The pages' JavaScript, built from ``ui/`` into ``static/``, which is in the wheel but not in the repository.

It contains no data, so it is served without authentication, like Airflow's own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from airflow_hops.core.web import URL_PREFIX

_HERE = Path(__file__).parent
ADDRESS = (
    f"{URL_PREFIX.lstrip('/')}/static"  # relative to the page's base, which includes the path of Airflow's base_url
)
BUNDLE = "hops.umd.js"
STATIC = _HERE / "static"
ASSETS = _HERE / "assets"


def version_of(content: bytes) -> str:
    """Returns what a file's address ends in (``?v=``), so that browsers may keep it, as the build computes it."""
    return hashlib.sha256(content).hexdigest()[:16]


def fingerprint() -> str:
    """Returns the fingerprint of the current build, or ``none`` if the pages are not built."""
    try:
        return (STATIC / "fingerprint").read_text()
    except OSError:
        return "none"


def react_apps() -> list[dict[str, Any]]:
    """Returns the plugin's ``react_apps`` entries: one bundle under three names.

    Airflow drops the whole plugin if it rejects one entry. It also reports a bundle as broken that was already loaded
    under another name, so each entry has its own URL.
    """
    entries = [
        ("Pipelines", "hops", "nav", {"nav_top_level": True}),  # the side bar cuts off longer names
        ("ML Artifacts", "hops-run", "dag_run", {}),
        ("ML Results", "hops-task", "task_instance", {}),
    ]
    return [
        {
            "name": name,
            "url_route": route,
            "destination": destination,
            "bundle_url": f"{ADDRESS}/{BUNDLE}?v={fingerprint()}&for={destination}",
            "icon": f"{ADDRESS}/icon.svg",
            **more,
        }
        for name, route, destination, more in entries
    ]
