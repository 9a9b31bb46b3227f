"""Other processes of the same server, which listen at its ports; a part of the server may provide them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.serving.endpoint import Endpoint
    from airflow_hops.serving.flags import Flags
    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.models.loader import Loader
    from airflow_hops.serving.parts import Counted
    from airflow_hops.serving.routes import Routes


class Peers(ABC):
    """The other processes, as one of them sees them.

    Attributes:
        is_first: Whether this process logs the warnings of the start.
    """

    is_first: bool

    @abstractmethod
    def flags(self, flags: Flags) -> Flags:
        """Returns the flags of the server with the files that the processes share."""

    @abstractmethod
    def slots_of_keys(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the owners of the slots of sticky keys in the other processes, by model."""

    @abstractmethod
    def reported(self) -> Counted:
        """Returns the counts of all processes."""

    @abstractmethod
    def add_reports(self, routes: Routes, registry: CollectorRegistry) -> None:
        """Adds routes and metrics about the processes."""

    @abstractmethod
    def start(self, endpoint: Endpoint, catalog: Catalog, loader: Loader) -> None:
        """Begins to exchange states; changes of the config and the split take effect in all processes from now on."""

    @abstractmethod
    def open(self) -> None:
        """Announces that this process listens at the ports."""

    @abstractmethod
    def close(self) -> None:
        """Ends the exchange."""
