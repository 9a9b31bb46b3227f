"""Provider information of streams."""

from __future__ import annotations

from typing import Any

PROVIDER_INFO: dict[str, Any] = {
    "triggers": [{"integration-name": "Hops", "python-modules": ["airflow_hops.extensions.streams.triggers"]}],
}
