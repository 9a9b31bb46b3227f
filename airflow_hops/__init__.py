"""End-to-end machine-learning pipelines in Apache Airflow.

Importing this package imports neither Airflow nor TensorFlow: both environments share it.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def get_provider_info() -> dict[str, Any]:
    """Returns the provider information for Airflow: connection types, decorators, configuration, commands."""
    from airflow_hops.provider_info import provider_info

    return provider_info()
