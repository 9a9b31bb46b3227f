"""Kubernetes: steps and ranks as pods, and KServe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.kubernetes.runner.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]

__getattr__ = lazy_names(__name__, {".runner.launcher": "KubernetesLauncher"})
