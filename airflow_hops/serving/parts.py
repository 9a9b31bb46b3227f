"""Parts of the model server that distributions add: entry points of the group ``airflow_hops.server_parts``.

A request passes through parts at most three times: an :class:`~airflow_hops.serving.api_part.ApiPart` receives it, a
:class:`~airflow_hops.serving.models.lookups.Lookup` fills inputs before the model runs, and an :class:`Observer` gets
the answered request. Each of several workers has parts of its own; reports cover the observers of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from airflow_hops.core.extensions import SERVER_PARTS, load_all
from airflow_hops.serving.flags import Flags

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from airflow_hops.serving.capture.capture import Capture
    from airflow_hops.serving.models.catalog import Catalog, CurrentConfig
    from airflow_hops.serving.models.servable import Call, Reply
    from airflow_hops.serving.routes import Routes


@dataclass(frozen=True)
class NoFlags:
    """A part without flags."""


class Answered(NamedTuple):
    """An answered request.

    Attributes:
        request_id: The client's id of the request, or the one under which it is captured; None without both.
        api: "grpc" or "rest".
        model: Model name.
        version: The version that answered.
        call: The request.
        reply: The answer.
    """

    request_id: str | None
    api: str
    model: str
    version: int
    call: Call
    reply: Reply


class PartCounts(Protocol):
    """Counts of an observer, which can be pickled and summed."""

    def add(self, other: Any) -> None:
        """Adds the counts of another process."""

    def report(self, model: str) -> Mapping[str, Any]:
        """Returns members of the model's object in ``GET /v1/stats``; empty if nothing was counted."""


class Observer(Protocol):
    """Gets the answered requests of one process."""

    def offer(self, answered: Answered) -> None:
        """Takes an answered request. Must not block or raise, since the client has its answer only afterwards."""

    def counts(self) -> PartCounts:
        """Returns a copy of the counts."""

    def close(self) -> None:
        """Ends threads; called once, after the last request."""


class ModelSource(Protocol):
    """Fills the catalog with models; :class:`~airflow_hops.serving.models.loader.Loader` loads them from folders."""

    def current_config(self) -> CurrentConfig:
        """Returns the config in effect."""

    def current_names(self) -> Collection[str]:
        """Returns the names of the models in the config in effect."""

    def reload(self, config: Any) -> None:
        """Applies a ``ModelServerConfig`` and waits until the versions that it adds are available.

        Raises:
            ServingError: The config is not valid or not applied.
        """

    def start(self) -> None:
        """Starts to publish versions."""

    def wait_for_first_round(self, stop: Callable[[], bool]) -> None:
        """Waits until each model of the config is available or has failed once, or ``stop`` returns True."""

    def stop(self) -> None:
        """Stops changing the catalog."""


class ServerPart:
    """A part of the model server. An entry point names a subclass, which is made once without arguments.

    State belongs to the objects that the methods return, since each process makes its own. The methods import the
    libraries that they need: whoever parses flags loads the part, in any environment.

    Attributes:
        flags: Frozen dataclass of the part's flags, each made by :func:`airflow_hops.serving.flags.flag`; its docstring
            is their heading in ``--help``. :meth:`Flags.of` returns the parsed ones.
        models_flag: Name of the flag with which the part provides the models; empty if it never does.
    """

    flags: ClassVar[type[Any]] = NoFlags
    models_flag: ClassVar[str] = ""

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together; empty if they can."""
        return ""

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

    def observer(self, flags: Flags, catalog: Catalog, capture: Capture) -> Observer | None:
        """Returns the observer of this process's answered requests; None if the part has none."""
        return None

    def reports(self, flags: Flags, routes: Routes, catalog: Catalog, counts: Callable[[], Any]) -> Collector | None:
        """Adds REST routes, such as for the observers' counts, and returns their metrics.

        Args:
            flags: The server's flags.
            routes: Routes; each new one needs its ``right``.
            catalog: The models.
            counts: Returns the :class:`PartCounts` of the observers of all processes; None if none runs.
        """
        return None


def server_parts() -> Mapping[str, ServerPart]:
    """Returns the registered parts by name. Raises BadInput if one cannot be loaded."""
    return load_all(SERVER_PARTS, ServerPart)
