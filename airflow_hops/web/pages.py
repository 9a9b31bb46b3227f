"""The pages' JavaScript: built from ``ui/`` into ``static/``, which is in the wheel but not in the repository.

It holds no data, so that anybody may load it, as with Airflow's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_hops.core.contract.web import URL_PREFIX

_HERE = Path(__file__).parent
_ADDRESS = f"{URL_PREFIX.lstrip('/')}/static"  # below the page's base, which has the path of Airflow's base_url
BUNDLE = "hops.umd.js"
STATIC = _HERE / "static"
ASSETS = _HERE / "assets"


def fingerprint() -> str:
    """Returns the fingerprint of the present build; ``none`` where there is none."""
    try:
        return (STATIC / "fingerprint").read_text()
    except OSError:
        return "none"


def react_apps() -> list[dict[str, Any]]:
    """The pages' entries for the plugin: one bundle under three names.

    Airflow drops a whole plugin for one entry that it does not like. It takes a bundle that was loaded once under
    another name for broken, so that the addresses differ.
    """
    entries = [
        ("Pipelines", "hops", "nav", {"nav_top_level": True}),  # the side bar cuts off what is longer
        ("ML Artifacts", "hops-run", "dag_run", {}),
        ("ML Results", "hops-task", "task_instance", {}),
    ]
    return [
        {
            "name": name,
            "url_route": route,
            "destination": destination,
            "bundle_url": f"{_ADDRESS}/{BUNDLE}?v={fingerprint()}&for={destination}",
            "icon": f"{_ADDRESS}/icon.svg",
            **more,
        }
        for name, route, destination, more in entries
    ]
