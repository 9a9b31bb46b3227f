"""Ranks on other machines: by SSH, on Spark's executors, in pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.ranks.hooks import RanksHook
    from airflow_hops.extensions.ranks.ml.balance import BalancedBatches
    from airflow_hops.extensions.ranks.ml.keras_balance import BySpeed
    from airflow_hops.extensions.ranks.ml.ssh import SshRanks, SshSettings, parse_hosts

__all__ = [
    "BalancedBatches",
    "BySpeed",
    "RanksHook",
    "SshRanks",
    "SshSettings",
    "parse_hosts",
]

__getattr__ = lazy_names(
    __name__,
    {
        ".hooks": "RanksHook",
        ".ml.balance": "BalancedBatches",
        ".ml.keras_balance": "BySpeed",
        ".ml.ssh": "SshRanks SshSettings parse_hosts",
    },
)
