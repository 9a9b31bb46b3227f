"""Provider information of experiments."""

from __future__ import annotations

PROVIDER_INFO: dict[str, object] = {
    "task-decorators": [{"name": "search", "class-name": "airflow_hops.extensions.experiments.decorators.search_task"}],
}
