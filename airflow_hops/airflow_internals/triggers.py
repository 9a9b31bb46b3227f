"""Names that triggers use; they cost the import of Airflow's triggers, which DAG files do without."""

from __future__ import annotations

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

__all__ = ["BaseEventTrigger", "BaseTrigger", "TriggerEvent"]
