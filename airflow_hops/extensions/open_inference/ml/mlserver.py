"""MLServer: version folders in its layout, behind the bundled server as a gateway.

The gateway (``--upstream=v2://host:port``) has MLServer load and unload models, splits requests among their versions,
captures them and counts them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from airflow_hops.core.errors import BadInput, ConnectionFieldError
from airflow_hops.core.processes.files import write_atomically
from airflow_hops.core.serving_api.protocol import SignatureDefMap
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.open_inference.serving.predict import described
from airflow_hops.ml.model_server.server import ModelServer, traffic_of
from airflow_hops.ml.model_server.steering import ConfigByRpc
from airflow_hops.ml.model_server.version_folders import LocalFolders, check_model, version_folders
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.lookups import refuse_lookup
from airflow_hops.serving.models.model_signature import TRANSFORM_GRAPH
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE

# MLServer's repository is every model-settings.json below its folder. So a version that is published, but not served,
# keeps its settings in another file. The settings of the served versions are written before the gateway is asked, so
# that a restarted MLServer loads what the config names.

_SETTINGS, _KEPT = "model-settings.json", "settings-to-serve.json"
_RUNTIME = "hops_estimator.py"


class MLServer(ModelServer):
    """A gateway to MLServer, which serves estimators of scikit-learn from a folder that it shares with the worker."""

    @classmethod
    def connect(cls, at: ServerAddress, services: Mapping[str, str], store: ArtifactStore) -> Self:
        """Returns the gateway at an address; see :meth:`airflow_hops.ml.model_server.server.ModelServer.connect`."""
        places = SharedPlaces.of(services, store)
        folders = version_folders(places.base_path, places.storage_options)
        if not isinstance(folders, LocalFolders):
            raise ConnectionFieldError(
                "serving_base_path", f" is {places.base_path!r}; expected a local folder, which MLServer reads, too"
            )
        configs = _RepositoryConfig(store, f"{at.host}:{at.grpc_port}", at.client)
        configs.folders = folders
        return cls(at, places, store, folders, configs, traffic_of(at, places))

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Copies a model to its version's folder, with MLServer's settings and the code that serves it.

        Raises:
            BadInput: MLServer cannot serve the model, or the folder holds another one.
        """
        check_model(model, served_by=self.at.kind)
        refuse_lookup(model, "MLServer")
        if (model / TRANSFORM_GRAPH).exists():
            raise BadInput(
                f"{model}: the model needs a graph of TensorFlow ({TRANSFORM_GRAPH}), which MLServer does not run; "
                "serve it with 'airflow hops serve' (kind 'bundled')"
            )
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            shutil.copytree(model, folder)
            (folder / _KEPT).write_text(json.dumps(_settings(model, model_name, version), indent=1))
            shutil.copy(Path(__file__).with_name(_RUNTIME), folder)
            return self.folders.publish(folder, model_name, version, fingerprint)

    def withdraw(self, model_name: str) -> None:
        """Makes MLServer unload all versions of a model."""
        self.status(model_name)  # a gateway that was started anew unloads only models that it knows
        super().withdraw(model_name)

    def why_not_available(self, model_name: str) -> str:
        """Returns a possible reason why a model is not available in time."""
        return f"does MLServer read {self.folders.uri(model_name)}, and is it an --upstream=v2://… of {self.at}?"


class _RepositoryConfig(ConfigByRpc):
    """The config of a gateway, and the settings of the versions that it serves."""

    folders: LocalFolders

    def _send(self, message: Any) -> None:
        served = {
            Path(self.folders.uri(model.name, version))
            for model in message.model_config_list.config
            for version in model.model_version_policy.specific.versions
        }
        for settings in sorted(self.folders.base_path.glob(f"*/[0-9]*/{_KEPT}")):
            if settings.parent in served:
                write_atomically(settings.with_name(_SETTINGS), settings.read_bytes())
            else:
                settings.with_name(_SETTINGS).unlink(missing_ok=True)
        super()._send(message)


def _settings(model: Path, model_name: str, version: int) -> dict[str, object]:
    """Returns MLServer's settings of a model, which is loaded for its inputs and outputs.

    Raises:
        BadInput: The model does not load, or is not stored with skops.
    """
    if not (model / "model.skops").is_file():
        raise BadInput(f"{model}: the estimator is a pickle; expected model.skops")
    try:
        servable = open_model(model_name, version, model, ModelOptions())
        definition = SignatureDefMap.FromString(servable.metadata()[1]).signature_def[DEFAULT_SIGNATURE]
        servable.close()
        inputs, outputs = described(definition)
    except ServingError as error:
        raise BadInput(f"{model}: {error.message}") from error
    return {
        "name": model_name,
        "implementation": "hops_estimator.Estimator",
        "platform": "airflow-hops",
        "versions": [str(version)],
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {"uri": "./model.skops", "version": str(version)},
    }
