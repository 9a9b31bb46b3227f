"""Provider information of streams."""

from __future__ import annotations

PROVIDER_INFO: dict[str, object] = {
    "triggers": [{"integration-name": "Hops", "python-modules": ["airflow_hops.extensions.streams.triggers"]}],
}
