"""Parts of the model server that distributions add: entry points of the group ``airflow_hops.server_parts``.

A request passes through parts at most twice: a part with an API receives it, and a
:class:`~airflow_hops.serving.models.lookups.Lookup` fills inputs before the model runs. Each of several workers has
parts of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_hops.core.extensions import SERVER_PARTS, load_all
from airflow_hops.serving.flags import Flags

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.serving.api.grpc_service import GrpcServer
    from airflow_hops.serving.capture.routes import CaptureCounts
    from airflow_hops.serving.lifecycle import Lifecycle
    from airflow_hops.serving.models.catalog import Catalog, ModelSource
    from airflow_hops.serving.models.servable import OpenBatching
    from airflow_hops.serving.models.stored_version import StoredVersion
    from airflow_hops.serving.monitoring.stats import RequestStats
    from airflow_hops.serving.request_handler import RequestHandler
    from airflow_hops.serving.routes import Routes


class Counted(Protocol):
    """Counts of all processes of the server."""

    @property
    def stats(self) -> RequestStats:
        """Counts of requests."""

    @property
    def batches(self) -> Callable[[], dict[str | float, float]]:
        """Returns the totals of batches."""

    @property
    def capture(self) -> CaptureCounts:
        """Captured requests."""


OnLook = Callable[[str, "Sequence[StoredVersion] | Exception"], None]


class VersionStores(Protocol):
    """Versions at base paths that are URLs, which are listed in the background."""

    def ask(self, base_paths: Collection[str]) -> None:
        """Requests a new listing of each base path; base paths that are not listed are dropped."""

    @property
    def awaited(self) -> bool:
        """Whether a requested listing is still to come, and soon."""

    def closed(self, path: str | os.PathLike[str]) -> None:
        """Removes the copy that a closed version was loaded from; does nothing for other folders."""

    def stop(self) -> None:
        """Prevents further listings, and removes all copies."""


class ServerPart:
    """A part of the model server. An entry point names a subclass, which is made once without arguments.

    State belongs to the objects that the methods return, since each process makes its own. The methods import the
    libraries that they need: whoever parses flags loads the part, in any environment.

    Attributes:
        flags: Frozen dataclass of the part's flags, each made by :func:`airflow_hops.serving.flags.flag`; its docstring
            is their heading in ``--help``. :meth:`Flags.of` returns the parsed ones. None for no flags.
        models_flag: Name of the flag with which the part provides the models; empty if it never does.
    """

    flags: ClassVar[type[Any] | None] = None
    models_flag: ClassVar[str] = ""

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together; empty if they can."""
        return ""

    def run(self, flags: Flags) -> int | None:
        """Runs the server in another way than as this process; returns its exit status, or None without doing so.

        Raises:
            StartError: It cannot start.
        """
        return None

    def models(self, flags: Flags, catalog: Catalog, config: Any) -> ModelSource:
        """Returns the source of the models; called if the flag ``models_flag`` is set.

        Args:
            flags: The server's flags.
            catalog: Catalog to fill.
            config: A ``ModelServerConfig``; without ``--model_config_file``, it has no models.

        Raises:
            StartError, ConfigError: The flags name unusable files.
        """
        raise NotImplementedError

    def add_api(self, handler: RequestHandler, lifecycle: Lifecycle, routes: Routes, server: GrpcServer) -> None:
        """Adds another API to the ports of this process.

        Args:
            handler: Answers Predict requests, with split, capture and counts.
            lifecycle: Tells whether the server is ready.
            routes: REST routes; each new one needs its ``right``.
            server: Takes gRPC methods.
        """

    def batching(self, flags: Flags) -> OpenBatching | None:
        """Returns how requests of versions are batched; None to run each alone.

        Raises:
            StartError: The flags name an unusable file.
        """
        return None

    def stores(self, flags: Flags, changed: threading.Condition, on_look: OnLook) -> VersionStores | None:
        """Returns the lister of base paths that are URLs; None if the part opens none.

        Args:
            flags: The server's flags.
            changed: The loader's lock; it must not be held during a listing, and is notified after it.
            on_look: Called under the lock with a base path and its versions, or the exception of the listing.
        """
        return None

    def reports(
        self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted, registry: CollectorRegistry
    ) -> None:
        """Adds REST routes, and metrics for Prometheus.

        Args:
            flags: The server's flags.
            routes: Routes; each new one needs its ``right``.
            catalog: The models.
            counted: Counts of requests and batches.
            registry: Takes metrics and collectors.

        Raises:
            ConfigError: The flags name an unusable file.
        """


def server_parts() -> Mapping[str, ServerPart]:
    """Returns the registered parts by name. Raises BadInput if one cannot be loaded."""
    return load_all(SERVER_PARTS, ServerPart)
