"""Provider information of experiments."""

from __future__ import annotations

from typing import Any

PROVIDER_INFO: dict[str, Any] = {
    "task-decorators": [{"name": "search", "class-name": "airflow_hops.extensions.experiments.decorators.search_task"}],
}
