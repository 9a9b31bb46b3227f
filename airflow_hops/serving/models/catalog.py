"""The models and versions that the server has, and how a request finds its version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from airflow_hops.serving.errors import ServingError, invalid_argument, not_found
from airflow_hops.serving.models.traffic import Split, TrafficTable

if TYPE_CHECKING:
    from airflow_hops.serving.models.servable import Servable

log = logging.getLogger(__name__)


class State(IntEnum):
    """States of a version, numbered as in TensorFlow Serving's ``ModelVersionStatus``."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True)
class VersionStatus:
    """State of one version, and the error that ended it or its last try to load."""

    version: int
    state: State
    error: ServingError | None = None


@dataclass(frozen=True)
class ModelView:
    """A model as requests see it: replaced as a whole at every change, so that they need no lock.

    Attributes:
        servables: Available versions.
        labels: Label to version.
        split: Shares of the versions, or None if the latest answers.
        by_label: What answers a label whose version only a server upstream knows, in place of ``labels``.
    """

    servables: Mapping[int, Servable] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    split: Split | None = None
    by_label: Callable[[str], Servable] | None = None

    @cached_property
    def computes_here(self) -> bool:
        """Whether whatever version is asked computes in the thread that asks."""
        return all(servable.computes_here for servable in self.servables.values())

    @property
    def latest(self) -> int | None:
        """The highest available version."""
        return max(self.servables, default=None)


@dataclass(frozen=True)
class CurrentConfig:
    """The config in effect.

    Attributes:
        config: The ``ModelServerConfig``.
        source: The file that it was read from, "command line" or "HandleReloadConfigRequest".
        applied_at: Since when, seconds since 1970 UTC.
    """

    config: Any
    source: str
    applied_at: float


class ModelSource(Protocol):
    """A source that fills a catalog."""

    def start(self) -> None:
        """Starts filling it, in threads of its own."""

    def stop(self) -> None:
        """Stops; what is available stays so."""

    def wait_for_first_round(self, stop: Callable[[], bool]) -> None:
        """Waits until every wanted version was tried once, or ``stop`` says so."""

    def reload(self, config: Any) -> None:
        """Takes a ``ModelServerConfig``, the whole truth from now on, and waits until what it adds was tried once.

        Raises:
            ServingError: The config is not valid, or what it adds is not available.
        """

    def current_config(self) -> CurrentConfig:
        """Returns the config in effect."""

    def current_names(self) -> set[str]:
        """Returns the names of the models in the config in effect."""


class Catalog:
    """All models by name: written by the loader, read by every request.

    Args:
        traffic: The splits and the shadow traffic.

    Attributes:
        discover: Looks for a model or version that is not known here, and says whether to look it up again; for models
            that are served elsewhere.
        on_change: Called after every change of what requests see, before who made it goes on.
        is_coming: Says whether a model, and the version or label of it that is asked for, is configured and not loaded
            yet.
    """

    def __init__(self, traffic: TrafficTable) -> None:
        self.traffic = traffic
        self.discover: Callable[[str], bool] = lambda model: False
        self.is_coming: Callable[[str, int | None, str | None], bool] = lambda model, version, label: False
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._views: Mapping[str, ModelView] = MappingProxyType({})
        self._statuses: dict[str, dict[int, VersionStatus]] = {}

    @property
    def views(self) -> Mapping[str, ModelView]:
        """Models with at least one available version."""
        return self._views

    def publish(
        self,
        model: str,
        servables: Mapping[int, Servable],
        labels: Mapping[str, int],
        by_label: Callable[[str], Servable] | None = None,
    ) -> None:
        """Makes these the available versions and labels of a model, at once."""
        with self._lock:
            views = dict(self._views)
            if servables:
                split = self.traffic.split(model, servables)
                views[model] = ModelView(dict(servables), dict(labels), split, by_label)
            else:
                views.pop(model, None)
            self._views = MappingProxyType(views)
        self.on_change()

    def replace(self, views: Mapping[str, ModelView], shadow: Mapping[str, Mapping[int | str, int]]) -> None:
        """Takes all models and the shadow traffic as another process has them, at once."""
        self.traffic.copy_shadow(shadow)
        self._views = MappingProxyType(dict(views))

    def reload_traffic(self) -> None:
        """Applies the traffic file if it changed."""
        if self.traffic.reload():
            self._apply_traffic()

    def set_split(self, model: str, percents: Mapping[int, int] | None) -> None:
        """Sets the split of a model, in the traffic file if there is one; in effect on return.

        Args:
            model: Model name.
            percents: Version to percent, integers that sum to 100; None lets the latest version answer.

        Raises:
            ConfigError: The split or the traffic file is not valid; nothing changes then.
            OSError: The traffic file cannot be written; nothing changes then.
        """
        self.traffic.set_split(model, percents)
        self._apply_traffic()

    def set_shadow(self, model: str, percents: Mapping[int | str, int] | None) -> None:
        """Sets the shadow traffic of a model, as ``set_split`` sets its split."""
        self.traffic.set_shadow(model, percents)
        self._apply_traffic()

    def _apply_traffic(self) -> None:
        with self._lock:
            self._views = MappingProxyType(
                {
                    name: replace(view, split=self.traffic.split(name, view.servables))
                    for name, view in self._views.items()
                }
            )
        self.on_change()

    def set_status(self, model: str, status: VersionStatus) -> None:
        """Records the state of a version."""
        with self._lock:
            self._statuses.setdefault(model, {})[status.version] = status

    def set_statuses(self, model: str, statuses: Sequence[VersionStatus]) -> None:
        """Records the states of all versions of a model; none forgets the model."""
        with self._lock:
            self._statuses[model] = {status.version: status for status in statuses}
            if not statuses:
                del self._statuses[model]

    def statuses(self, model: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the states of a model's versions, newest version first.

        Raises:
            ServingError: The model, or the version asked for, was never seen.
        """
        with self._lock:
            known = dict(self._statuses.get(model, {}))
        if (not known or version not in (None, *known)) and self.discover(model):
            with self._lock:
                known = dict(self._statuses.get(model, {}))
        if version is not None:
            if version not in known:
                raise not_found(f"Could not find version {version} of model {model}")
            return [known[version]]
        if not known:
            raise not_found(f"Could not find any versions of model {model}")
        return [known[number] for number in sorted(known, reverse=True)]

    def traffic_percent(self, model: str) -> dict[int, float]:
        """Returns the share of each available version among requests that name none."""
        view = self._views.get(model)
        if view is None or view.latest is None:
            return {}
        shares = view.split.percents() if view.split else {view.latest: 100.0}
        return {version: shares.get(version, 0.0) for version in view.servables}

    def acquire(
        self, model: str, version: int | None = None, label: str | None = None, sticky_key: str | None = None
    ) -> Servable:
        """Finds the version that answers a request, held open until its ``release``.

        Args:
            model: Model name.
            version: The version asked for.
            label: The label asked for, where no version is.
            sticky_key: For a split that sends equal keys to one version.

        Raises:
            ServingError: The model, version or label does not exist.
        """
        for _ in range(100):
            servable = self.find(model, version, label, sticky_key)
            if servable.acquire():
                return servable
            # Unloaded between the look-up and here: the view that replaced it is there already, or about to be.
        raise ServingError(grpc.StatusCode.UNAVAILABLE, f"Model {model} is being unloaded")

    def find(
        self, model: str, version: int | None = None, label: str | None = None, sticky_key: str | None = None
    ) -> Servable:
        """Finds the version that would answer a request, without holding it open.

        Raises:
            ServingError: The model, version or label does not exist; UNAVAILABLE if it has not been loaded yet.
        """
        if not model:
            raise invalid_argument("ModelSpec has no name specified.")
        try:
            return self._find(model, version, label, sticky_key)
        except ServingError:
            if self.is_coming(model, version, label):
                raise ServingError(
                    grpc.StatusCode.UNAVAILABLE, f"Servable is not loaded yet: {_wanted(model, version)}"
                ) from None
            self.discover(model)
        # Once more: it may have been found, or have become available, since.
        return self._find(model, version, label, sticky_key)

    def _find(self, model: str, version: int | None, label: str | None, sticky_key: str | None) -> Servable:
        view = self._views.get(model)
        if version is None and label:
            if view is not None and view.by_label is not None:
                return view.by_label(label)
            version = view.labels.get(label) if view else None
            if version is None:
                raise invalid_argument(f"Unrecognized servable version label: {label}")
        if view is None:
            raise not_found(f"Servable not found for request: {_wanted(model, version)}")
        if version is None:
            if view.split is not None:
                return view.servables[self.traffic.choose(model, view.split, sticky_key)]
            version = max(view.servables)
        servable = view.servables.get(version)
        if servable is None:
            raise not_found(f"Servable not found for request: {_wanted(model, version)}")
        return servable


def _wanted(model: str, version: int | None) -> str:
    return f"Latest({model})" if version is None else f"Specific({model}, {version})"
