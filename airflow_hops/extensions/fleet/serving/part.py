"""The part of the model server that bounds the memory of fleets, and counts what answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_hops.serving import flag_values
from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import Counted, ServerPart

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.routes import Routes


@dataclass(frozen=True)
class FleetFlags:
    """Fleets."""

    fleet_memory_bytes: int = flag(
        2**28,
        "memory for models of segments, of all fleets of a process; those that were asked last stay loaded (default "
        "268435456)",
        flag_values.positive,
    )


class FleetPart(ServerPart):
    """Bounds the models of segments in memory."""

    flags = FleetFlags

    def reports(
        self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted, registry: CollectorRegistry
    ) -> None:
        """Sets the limit, before versions are loaded, and adds the metrics."""
        from airflow_hops.extensions.fleet.serving.loaded import MODELS

        MODELS.limit_bytes = flags.of(FleetFlags).fleet_memory_bytes
        registry.register(MODELS)
