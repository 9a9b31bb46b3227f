"""Control of the kind ``batch``: models that score tables, and never listen on a port.

Versions, labels and shares are in the artifact store. A version is available once it was loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from airflow_hops.core.serving_api import traffic_config
from airflow_hops.core.serving_api.answers import ModelVersion
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.scoring.ml.batches import SignatureModel
from airflow_hops.extensions.scoring.ml.captured import scored_rows
from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.model_server.steering import StoredConfig
from airflow_hops.ml.model_server.version_folders import version_folders
from airflow_hops.serving.models.lookups import refuse_lookup


@dataclass(frozen=True)
class BatchServer(ModelServer):
    """Models that score tables; ``ScoreOperator`` reads their versions and shares from the model's record."""

    configs: StoredConfig
    shares: StoredShares

    has_stats: ClassVar[bool] = False

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the models of a connection; see :meth:`ModelServer.connect`."""
        places = SharedPlaces.of(services, store)
        folders = version_folders(places.base_path, places.storage_options)
        return cls(at, places, store, folders, StoredConfig(store, "batch"), StoredShares(store))

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the configured versions, which are available."""
        versions = [each for each in self.configured(model_name) if version in (None, each)]
        return [ModelVersion(each, "AVAILABLE") for each in versions]

    def serve_again(self, model_name: str) -> None:
        """No-op: the store keeps the versions."""

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Loads a model, and copies it to its version's folder; see :meth:`ModelServer.publish`.

        Raises:
            BadInput: the model does not load, takes no columns of examples, or needs a look-up of features.
        """
        refuse_lookup(model, "a model server of the kind 'batch'")
        SignatureModel(model, "serving_default")
        return super().publish(model, model_name, version, fingerprint)

    def wait_until_available(
        self, model_name: str, version: int, timeout_s: float, *, on_state: Callable[[str], None] = lambda state: None
    ) -> None:
        """Returns at once: :meth:`publish` has loaded the version."""
        on_state("AVAILABLE")

    def counts(self, model_name: str, since: str | None = None) -> dict[int, dict[str, Any]]:
        """Returns the rows that each version scored since a time, and those on which it failed."""
        shares = self.shares.read(model_name)
        scored = scored_rows(self.store, model_name, since) if since else {}
        result = {}
        for version in self.configured(model_name):
            counts = scored.get(version, {"rows": 0, "failed": 0})
            result[version] = {
                "requests": counts["rows"] + counts["failed"],
                "errors": counts["failed"],
                "client_errors": 0,
                "traffic_percent": float(shares.get(version, 0)),
            }
        return result

    def flush_capture(self) -> None:
        """No-op: a task that has ended has written its rows."""


class StoredShares:
    """The shares of each model, in a file of the store."""

    splits: ClassVar[bool] = True

    def __init__(self, store: ArtifactStore) -> None:
        self.store = store

    def read(self, model_name: str) -> dict[int, int]:
        """Returns version to percent; empty if none is set."""
        try:
            return {int(version): percent for version, percent in self.store.read_json(self._file(model_name)).items()}
        except FileNotFoundError:
            return {}

    def set(self, model_name: str, percents: Mapping[int, int] | None) -> None:
        """Writes the shares; None removes them."""
        if percents is None:
            self.store.remove_text(self._file(model_name))
        else:
            traffic_config.check_split(percents, f"models.{model_name}")
            self.store.write_text(self._file(model_name), json.dumps(dict(percents)))

    def _file(self, model_name: str) -> str:
        return self.store.internal("_serving", "shares", f"{model_name}.json")
