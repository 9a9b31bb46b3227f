"""The place of ranks in pods that are created with the step's, from a connection of type ``kubernetes``."""

from __future__ import annotations

from typing import Any

from airflow_hops.core.rank_places import RankConnection, RankPlace

GANG_VARIABLE = "HOPS_GANG"
"""Environment variable of a step whose ranks are pods: ``host``, ``port`` and ``secret`` of its gang, as JSON.

With a range of ranks, also the address ``chosen``, where the step writes the hosts of those that train, and
``more_timeout_s``, the seconds for which it waits for those above the least.
"""

PODS = "kubernetes"
"""Name of this place."""


class PodPlace(RankPlace):
    """Pods beside the step's; the option ``slots`` is their number."""

    launcher = "airflow_hops.extensions.kubernetes.ml.pods:pod_ranks"
    connection_types = ("kubernetes",)
    step_launcher = "kubernetes"
    made_with_step = True

    def where(self, connection: RankConnection | None, hosts: str | None, ranks: int) -> dict[str, Any]:
        """Describes a pod for each rank."""
        return {"kind": PODS, "slots": ranks}
