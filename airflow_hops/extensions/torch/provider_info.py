"""Provider information of PyTorch's ranks."""

from __future__ import annotations

from typing import Any

PROVIDER_INFO: dict[str, Any] = {
    "task-decorators": [{"name": "torch", "class-name": "airflow_hops.extensions.torch.decorators.torch_task"}],
}
