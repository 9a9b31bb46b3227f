"""Rehearsals: what a monitor would find, when, and what would slip through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.rehearsal.core.requirements import RequirementsFailed
    from airflow_hops.extensions.rehearsal.operators import RehearseOperator

__all__ = ["RehearseOperator", "RequirementsFailed"]

__getattr__ = lazy_names(
    __name__,
    {
        ".operators": "RehearseOperator",
        ".core.requirements": "RequirementsFailed",
    },
)
