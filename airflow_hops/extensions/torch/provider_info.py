"""Provider information of PyTorch's ranks."""

from __future__ import annotations

PROVIDER_INFO: dict[str, object] = {
    "task-decorators": [{"name": "torch", "class-name": "airflow_hops.extensions.torch.decorators.torch_task"}],
}
