"""A part of the model server that takes the events of KServe's logger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import Counted, ServerPart

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.routes import Routes


@dataclass(frozen=True)
class EventFlags:
    """Events of KServe's logger."""

    kserve_events_path: str = flag(
        "", "folder for the requests and responses that KServe's logger posts to /v1/kserve/events, as JSON lines"
    )


class KServeEventLog(ServerPart):
    """Writes the events of KServe's logger to a log."""

    flags = EventFlags

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together."""
        path = flags.of(EventFlags).kserve_events_path
        return "" if not path or Path(path).is_absolute() else f"--kserve_events_path={path} is not an absolute path"

    def reports(
        self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted, registry: CollectorRegistry
    ) -> None:
        """Adds ``POST /v1/kserve/events`` if there is a folder for the events."""
        path = flags.of(EventFlags).kserve_events_path
        if path:
            from airflow_hops.extensions.kubernetes.serving.event_log import EventLog

            try:
                log = EventLog(Path(path))
            except OSError as error:
                raise StartError(f"--kserve_events_path={path}: {error}") from error
            log.add_routes(routes)
