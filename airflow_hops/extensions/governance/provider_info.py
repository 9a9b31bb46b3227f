"""Provider information of quotas: their field of a connection."""

from __future__ import annotations

from typing import Any

from airflow_hops.provider_info import field

PROVIDER_INFO: dict[str, Any] = {
    "connection-fields": {
        "hops": {
            "quotas": field(
                "Quotas",
                'JSON object, such as {"team": {"gpu_hours": 400}, "dag": {"core_hours": 50}, "contact": "…"}: '
                "once they are used up, steps fail before they start. Empty: none",
            )
        }
    },
}
