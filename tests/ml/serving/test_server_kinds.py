"""Kinds of model servers: the contract, by files and by RPC, and errors of kinds that are not registered."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from server_process import Start
from sklearn.linear_model import LinearRegression

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.testing.model_servers import ModelServerContract


class TestServerByRpc(ModelServerContract):
    kind = "bundled"

    def write(self, folder: Path) -> None:
        rows = np.arange(6.0).reshape(3, 2)
        scikit_learn.save(LinearRegression().fit(rows, rows[:, 0]), folder, rows)

    @pytest.fixture
    def services(self, start_server: Start, tmp_path: Path) -> Mapping[str, str]:
        (tmp_path / "models.config").write_text("model_config_list {}\n")
        server = start_server(model_config_file=tmp_path / "models.config")
        return {"serving_port": str(server.ports["port"]), "serving_base_path": str(tmp_path / "models")}


class TestServerByFiles(TestServerByRpc):
    @pytest.fixture
    def services(self, start_server: Start, tmp_path: Path) -> Mapping[str, str]:
        files = {"model_config_file": tmp_path / "models.config", "traffic_config_file": tmp_path / "traffic.json"}
        files["model_config_file"].write_text("model_config_list {}\n")
        polls = {"model_config_file_poll_wait_seconds": 0.1, "traffic_config_file_poll_wait_seconds": 0.1}
        server = start_server(**files, **polls)
        return {
            "serving_port": str(server.ports["port"]),
            "serving_base_path": str(tmp_path / "models"),
            "serving_config_file": str(files["model_config_file"]),
            "serving_traffic_file": str(files["traffic_config_file"]),
        }


class TestTensorFlowModelServer(TestServerByRpc):
    """The bundled server in the place of TensorFlow Serving's, whose API it has."""

    kind = "tensorflow_model_server"

    @pytest.fixture(autouse=True)
    def models(self, saved_models: Path) -> None:
        self.saved_models = saved_models

    def write(self, folder: Path) -> None:
        shutil.copytree(self.saved_models / "flights" / "1", folder)


def test_unregistered_kind_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"'serving_kind' is 'triton', expected one of batch, bundled, .*tensorflow_model"
    ):
        ServerAddress.of({"serving_kind": "triton"})
