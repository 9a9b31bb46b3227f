"""The models and versions that the server has, and how a request finds its version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

import grpc

from airflow_hops.serving.errors import ServingError, invalid_argument, not_found
from airflow_hops.serving.gateway.traffic import Split, TrafficTable

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
    """What requests see of a model: replaced as a whole at every change, so that they need no lock.

    Attributes:
        servables: Available versions.
        labels: Label to version.
        split: Shares of the versions, or None where the latest answers.
    """

    servables: Mapping[int, Servable] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    split: Split | None = None

    @property
    def latest(self) -> int | None:
        """The highest available version."""
        return max(self.servables, default=None)


class Catalog:
    """All models by name: written by the loader, read by every request.

    Args:
        traffic: The splits.
    """

    def __init__(self, traffic: TrafficTable) -> None:
        self._traffic = traffic
        self._lock = threading.Lock()
        self._views: Mapping[str, ModelView] = MappingProxyType({})
        self._statuses: dict[str, dict[int, VersionStatus]] = {}

    @property
    def views(self) -> Mapping[str, ModelView]:
        """Models with at least one available version."""
        return self._views

    def publish(self, model: str, servables: Mapping[int, Servable], labels: Mapping[str, int]) -> None:
        """Makes these the available versions and labels of a model, at once."""
        with self._lock:
            views = dict(self._views)
            if servables:
                views[model] = ModelView(dict(servables), dict(labels), self._traffic.split(model, servables))
            else:
                views.pop(model, None)
            self._views = MappingProxyType(views)

    def reload_traffic(self) -> None:
        """Applies the traffic file if it changed."""
        if self._traffic.reload():
            with self._lock:
                self._views = MappingProxyType(
                    {
                        name: ModelView(view.servables, view.labels, self._traffic.split(name, view.servables))
                        for name, view in self._views.items()
                    }
                )

    def set_status(self, model: str, status: VersionStatus) -> None:
        """Records the state of a version."""
        with self._lock:
            self._statuses.setdefault(model, {})[status.version] = status

    def statuses(self, model: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the states of a model's versions, newest version first.

        Raises:
            ServingError: The model, or the version asked for, was never seen.
        """
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
        self, model: str, version: int | None = None, label: str | None = None, request_id: str | None = None
    ) -> Servable:
        """Finds the version that answers a request, held open until its ``release``.

        Args:
            model: Model name.
            version: The version asked for.
            label: The label asked for, where no version is.
            request_id: Identity of the request, for a split that sends equal ids to one version.

        Raises:
            ServingError: There is no such model, version or label.
        """
        for _ in range(100):
            servable = self.find(model, version, label, request_id)
            if servable.acquire():
                return servable
            # Unloaded between the look-up and here: the view that replaced it is there already, or about to be.
        raise ServingError(grpc.StatusCode.UNAVAILABLE, f"Model {model} is being unloaded")

    def find(
        self, model: str, version: int | None = None, label: str | None = None, request_id: str | None = None
    ) -> Servable:
        """Finds the version that would answer a request, without holding it open.

        Raises:
            ServingError: There is no such model, version or label.
        """
        if not model:
            raise invalid_argument("ModelSpec has no name specified.")
        view = self._views.get(model)
        if version is None and label:
            version = view.labels.get(label) if view else None
            if version is None:
                raise invalid_argument(f"Unrecognized servable version label: {label}")
        if view is None:
            raise not_found(f"Servable not found for request: {_wanted(model, version)}")
        if version is None:
            if view.split is not None:
                return view.servables[self._traffic.choose(model, view.split, request_id)]
            version = max(view.servables)
        servable = view.servables.get(version)
        if servable is None:
            raise not_found(f"Servable not found for request: {_wanted(model, version)}")
        return servable


def _wanted(model: str, version: int | None) -> str:
    return f"Latest({model})" if version is None else f"Specific({model}, {version})"
