"""Catalog of the server's models and versions, which finds the version for a request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.serving.errors import ServingError, invalid_argument, not_found
from airflow_hops.serving.models.traffic import Split, TrafficTable

if TYPE_CHECKING:
    from airflow_hops.serving.models.servable import Servable

# Readers take no lock: a request reads `views` once and works on that snapshot. Writers build a new mapping under
# _lock and replace `views`.
# A version may be closed between find() and acquire(); acquire() then fails, and the look-up is repeated, because a
# version leaves its view before it is closed. States (_statuses) are separate from views: they also list versions that
# fail, load or unload, and requests never depend on them.

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
    """State of one version, and the error of its last failure."""

    version: int
    state: State
    error: ServingError | None = None


Statuses = Mapping[int, VersionStatus]


@dataclass(frozen=True)
class ModelView:
    """Immutable snapshot of a model, which requests read without a lock; every change replaces it.

    Attributes:
        servables: Available versions.
        labels: Label to version.
        split: Shares of the versions; None if the latest version answers.
        by_label: Returns the servable of a label if only an upstream server knows the label's version; used instead of
            ``labels``.
    """

    servables: Mapping[int, Servable] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    split: Split | None = None
    by_label: Callable[[str], Servable] | None = None

    @cached_property
    def computes_here(self) -> bool:
        """Whether all versions compute in the thread of the request."""
        return all(servable.computes_here for servable in self.servables.values())

    @property
    def latest(self) -> int | None:
        """Highest available version."""
        return max(self.servables, default=None)


@dataclass(frozen=True)
class CurrentConfig:
    """The config in effect.

    Attributes:
        config: The ``ModelServerConfig``.
        source: Path of the config file, "command line" or "HandleReloadConfigRequest".
        applied_at: Time when the config took effect, in seconds since 1970 UTC.
    """

    config: Any
    source: str
    applied_at: float


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


class Catalog:
    """All models by name. The loader writes it, and every request reads it.

    Args:
        traffic: The traffic splits.

    Attributes:
        views: Models with at least one available version; replaced, never changed.
        discover: Searches for an unknown model or version, and returns whether to repeat the look-up; used for models
            that another server serves.
        after_change: Called after a change of the traffic at run time, in the thread that makes it.
        of_all_processes: Returns the states of a model's versions in all processes at the same ports, given those
            in this one.
        is_coming: Returns whether the model, and the requested version or label, is configured but not loaded yet.
    """

    def __init__(self, traffic: TrafficTable) -> None:
        self.traffic = traffic
        self.discover: Callable[[str], bool] = lambda model: False
        self.is_coming: Callable[[str, int | None, str | None], bool] = lambda model, version, label: False
        self.after_change: Callable[[], None] = lambda: None
        self.of_all_processes: Callable[[str, Statuses], Statuses] = lambda model, own: own
        self._lock = threading.Lock()
        self.views: Mapping[str, ModelView] = MappingProxyType({})
        self._statuses: dict[str, dict[int, VersionStatus]] = {}

    def publish(
        self,
        model: str,
        servables: Mapping[int, Servable],
        labels: Mapping[str, int],
        by_label: Callable[[str], Servable] | None = None,
    ) -> None:
        """Replaces the available versions and labels of a model atomically."""
        with self._lock:
            views = dict(self.views)
            if servables:
                split = self.traffic.split(model, servables)
                views[model] = ModelView(dict(servables), dict(labels), split, by_label)
            else:
                views.pop(model, None)
            self.views = MappingProxyType(views)

    def reload_traffic(self) -> None:
        """Applies the traffic file if it has changed."""
        if self.traffic.reload():
            self._apply_traffic()

    def set_split(self, model: str, percents: Mapping[int, int] | None) -> None:
        """Sets the split of a model, which is in effect on return, and saves it to the traffic file, if any.

        Args:
            model: Model name.
            percents: Version to percent, integers that sum to 100; None lets the latest version answer.

        Raises:
            ServingError: The split or the traffic file is not valid, or the file cannot be written; nothing changes
                then.
        """
        try:
            self.traffic.set_split(model, percents)
        except ConfigError as error:
            raise invalid_argument(str(error)) from error
        except OSError as error:
            raise ServingError(
                grpc.StatusCode.UNAVAILABLE, f"{self.traffic.file}: cannot be written: {error.strerror}"
            ) from error
        self._apply_traffic()
        self.after_change()

    def _apply_traffic(self) -> None:
        with self._lock:
            self.views = MappingProxyType(
                {
                    name: replace(view, split=self.traffic.split(name, view.servables))
                    for name, view in self.views.items()
                }
            )

    def set_status(self, model: str, status: VersionStatus) -> None:
        """Sets the state of a version."""
        with self._lock:
            self._statuses.setdefault(model, {})[status.version] = status

    def set_statuses(self, model: str, statuses: Sequence[VersionStatus]) -> None:
        """Replaces the states of all versions of a model; an empty list removes the model."""
        with self._lock:
            self._statuses[model] = {status.version: status for status in statuses}
            if not statuses:
                del self._statuses[model]

    def all_statuses(self) -> dict[str, dict[int, VersionStatus]]:
        """Returns a copy of the states in this process, by model and version."""
        with self._lock:
            return {model: dict(statuses) for model, statuses in self._statuses.items()}

    def statuses(self, model: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the states of a model's versions, newest version first: in all processes at the same ports.

        Raises:
            ServingError: The model or version is not known.
        """
        with self._lock:
            known: Statuses = dict(self._statuses.get(model, {}))
        if (not known or version not in (None, *known)) and self.discover(model):
            with self._lock:
                known = dict(self._statuses.get(model, {}))
        known = self.of_all_processes(model, known)
        if version is not None:
            if version not in known:
                raise not_found(f"Could not find version {version} of model {model}")
            return [known[version]]
        if not known:
            raise not_found(f"Could not find any versions of model {model}")
        return [known[number] for number in sorted(known, reverse=True)]

    def traffic_percent(self, model: str) -> dict[int, float]:
        """Returns the share of each available version in the requests that name only the model."""
        view = self.views.get(model)
        if view is None or view.latest is None:
            return {}
        shares = view.split.percents() if view.split else {view.latest: 100.0}
        return {version: shares.get(version, 0.0) for version in view.servables}

    def acquire(
        self, model: str, version: int | None = None, label: str | None = None, sticky_key: str | None = None
    ) -> Servable:
        """Finds the version that answers a request, and holds it open until its ``release`` is called.

        Args:
            model: Model name.
            version: Requested version.
            label: Requested label, if no version is given.
            sticky_key: With a split, requests with equal keys go to the same version.

        Raises:
            ServingError: The model, version or label does not exist.
        """
        for _ in range(100):
            servable = self.find(model, version, label, sticky_key)
            if servable.acquire():
                return servable
            # The version was unloaded after the look-up: the next view is published already, or will be soon.
        raise ServingError(grpc.StatusCode.UNAVAILABLE, f"Model {model} is being unloaded")

    def find(
        self, model: str, version: int | None = None, label: str | None = None, sticky_key: str | None = None
    ) -> Servable:
        """Finds the version that would answer a request, without holding it open.

        Raises:
            ServingError: The model, version or label does not exist; UNAVAILABLE if it is not loaded yet.
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
        # Try again: the version may have been discovered or become available meanwhile.
        return self._find(model, version, label, sticky_key)

    def _find(self, model: str, version: int | None, label: str | None, sticky_key: str | None) -> Servable:
        view = self.views.get(model)
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
