"""A part of the model server that shows the last hour of requests, and the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import Counted, ServerPart

if TYPE_CHECKING:
    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.routes import Routes


@dataclass(frozen=True)
class ObservabilityFlags:
    """The last hour."""

    request_series: bool = flag(
        False, "count the last hour's requests in steps of ten seconds, for charts: enables GET /v1/stats/series"
    )


class Observability(ServerPart):
    """Shows the last hour of requests with ``--request_series``, and the log with ``--log_file``."""

    flags = ObservabilityFlags

    def reports(self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted) -> None:
        """Adds the routes that the flags ask for."""
        if flags.of(ObservabilityFlags).request_series:
            from airflow_hops.extensions.observability.serving import series

            steps = series.RequestSeries(counted.stats, counted.batches)
            series.add_routes(routes, steps)
            steps.start()
        if flags.log_file:
            from airflow_hops.extensions.observability.serving import logs

            logs.add_routes(routes, Path(flags.log_file))
