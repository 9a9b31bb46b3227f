"""MLServer as a process, in an environment of its own, behind a gateway: the kind ``mlserver``."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from other_projects import free_port, is_ready, python_in
from server_process import ServerProcess
from waiting import wait_for

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.extensions.frameworks.ml.scikit_learn import inputs_of, write_skops
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.serving.models.model_signature import ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs
from airflow_hops.testing.model_servers import ModelServerContract
from tests.ml.extensions.frameworks.exported import GRAPES, LATE, PRICE, WINE, WINES, flights
from tests.ml.model_servers import running_server

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="open_inference")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def mlserver(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an MLServer without models."""
    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    settings = {**ports, "parallel_workers": 0, "host": "127.0.0.1"}
    (repository / "settings.json").write_text(json.dumps(settings))
    program = python_in(tmp_path_factory.mktemp("other-projects"), "mlserver").with_name("mlserver")
    with (repository / "log").open("wb") as log:
        process = subprocess.Popen([program, "start", repository], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{ports['http_port']}/v2/health/ready"
        wait_for(lambda: is_ready(url), (repository / "log").read_text, 120)
        yield f"127.0.0.1:{ports['grpc_port']}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def gateway(mlserver: str, runtime_python: Path, tmp_path_factory: Any) -> Iterator[ServerProcess]:
    flags = {"upstream": f"v2://{mlserver}", "capture_base_path": tmp_path_factory.mktemp("captured")}
    with running_server(runtime_python, tmp_path_factory.mktemp("gateway"), flags) as server:
        yield server


def services_of(gateway: ServerProcess, repository: Path) -> Mapping[str, str]:
    ports = {"serving_port": str(gateway.ports["port"]), "serving_rest_port": str(gateway.ports["rest_api_port"])}
    return {**ports, "serving_base_path": str(repository)}


@pytest.fixture
def server(gateway: ServerProcess, repository: Path, tmp_path: Path) -> ModelServer:
    return ModelServer.of(
        {**services_of(gateway, repository), "serving_kind": "mlserver"}, ArtifactStore(str(tmp_path / "store"))
    )


class TestContract(ModelServerContract):
    kind = "mlserver"

    @pytest.fixture
    def services(self, gateway: ServerProcess, repository: Path) -> Mapping[str, str]:
        return services_of(gateway, repository)

    def write(self, folder: Path) -> None:
        save_classifier(folder)


def save_classifier(folder: Path) -> Any:
    from sklearn.linear_model import LogisticRegression

    rows = np.random.default_rng(1).normal(size=(100, 3))
    model = LogisticRegression().fit(rows, (rows.sum(axis=1) > 0).astype(int))
    scikit_learn.save(model, folder, rows)
    return model


def models() -> Mapping[str, tuple[Any, Any, Any]]:
    """Estimators of every form of signature, with their targets and rows."""
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    table, late = flights()
    columns = ColumnTransformer([("words", OneHotEncoder(), ["carrier"])], remainder="passthrough")
    return {
        "late": (make_pipeline(columns, LogisticRegression()).fit(table, late), LATE, table),
        "wines": (LogisticRegression(max_iter=5000).fit(WINES, GRAPES), WINE, WINES),
        "price": (LinearRegression().fit(WINES, WINES["m0"] * 2 + WINES["m1"]), PRICE, WINES),
    }


def test_answers_are_those_of_our_server(
    server: ModelServer, gateway: ServerProcess, runtime_python: Path, tmp_path: Path
) -> None:
    save_classifier(tmp_path / "ours" / "matrix" / "1")
    asked: dict[str, dict[str, Any]] = {"matrix": {"inputs": np.random.default_rng(2).normal(size=(5, 3))}}
    for name, (model, target, rows) in models().items():
        (tmp_path / "ours" / name / "1").mkdir(parents=True)
        write_skops(model, tmp_path / "ours" / name / "1")
        inputs, outputs = inputs_of(rows), ProblemOutputs(target.problem, target.classes)
        signature = ModelSignature(inputs, inputs, outputs=outputs).to_json()
        (tmp_path / "ours" / name / "1" / "signature.json").write_text(signature)
        asked[name] = as_columns(rows.head(7))
    for name, columns in asked.items():
        folder = tmp_path / "ours" / name
        assert server.publish(folder / "1", name, 1, "fingerprint")
        server.serve(name, [1])
        server.wait_until_available(name, 1, 60)
        flags = {"model_name": name, "model_base_path": folder}
        with running_server(runtime_python, tmp_path / f"server-{name}", flags) as ours:
            with ModelServerClient(ours.address) as direct, ModelServerClient(gateway.address) as through:
                expected, answer = (client.predict(name, columns).outputs for client in (direct, through))
            assert gateway.get(f"/v2/models/{name}")["inputs"] == ours.get(f"/v2/models/{name}")["inputs"]
            assert gateway.get(f"/v2/models/{name}")["outputs"] == ours.get(f"/v2/models/{name}")["outputs"]
        assert answer.keys() == expected.keys()
        for output, values in expected.items():
            assert answer[output].dtype == values.dtype
            if values.dtype == object:
                assert answer[output].tolist() == values.tolist()
            else:
                np.testing.assert_allclose(answer[output], values, rtol=1e-5, atol=1e-6)  # two builds of NumPy
        server.withdraw(name)


def as_columns(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        str(name): np.array([each.encode() for each in column], object) if column.dtype == object else column.to_numpy()
        for name, column in rows.items()
    }


def test_canary_is_promoted_and_another_rolled_back(
    server: ModelServer, gateway: ServerProcess, tmp_path: Path
) -> None:
    save_classifier(tmp_path / "model")
    rows = {"inputs": [[0.1, 0.2, 0.3]]}

    def answered(requests: int) -> Counter[str]:
        versions = [gateway.post("/v2/models/shares/infer", v2(rows))["model_version"] for _ in range(requests)]
        return Counter(versions)

    for version in (1, 2):
        server.publish(tmp_path / "model", "shares", version, f"fingerprint {version}")
        server.serve("shares", list(range(1, version + 1)))
        server.wait_until_available("shares", version, 60)
    server.set_traffic("shares", {1: 80, 2: 20})
    shares = answered(100)
    assert 3 <= shares["2"] <= 45 and sum(shares.values()) == 100
    server.set_traffic("shares", {2: 100})
    assert answered(10) == {"2": 10}
    server.set_traffic("shares", {1: 100})
    server.serve("shares", [1])
    assert answered(10) == {"1": 10}
    assert server.wait_until_gone("shares", 2, 60)
    assert server.counts("shares")[2]["codes"]["OK"] >= 18
    server.withdraw("shares")


def v2(rows: Mapping[str, Any]) -> Any:
    return {
        "inputs": [
            {"name": name, "shape": list(np.shape(value)), "datatype": "FP64", "data": value}
            for name, value in rows.items()
        ]
    }


def test_version_that_does_not_load_is_an_error_and_the_other_stays(
    server: ModelServer, gateway: ServerProcess, repository: Path, tmp_path: Path
) -> None:
    save_classifier(tmp_path / "model")
    for version in (1, 2):
        server.publish(tmp_path / "model", "broken", version, f"fingerprint {version}")
    (repository / "broken" / "2" / "signature.json").write_text("{")
    server.serve("broken", [1])
    previous = server.serve("broken", [1, 2])
    with pytest.raises(BadInput, match=r"version 2 .*JSONDecodeError|Expecting"):
        server.wait_until_available("broken", 2, 30)
    server.restore("broken", previous)
    assert gateway.post("/v2/models/broken/infer", v2({"inputs": [[0.1, 0.2, 0.3]]}))["model_version"] == "1"
    server.withdraw("broken")


@pytest.mark.parametrize("name", ["transform_graph", "lookup.json"])
def test_model_that_mlserver_cannot_run_is_refused(server: ModelServer, name: str, tmp_path: Path) -> None:
    save_classifier(tmp_path / "model")
    (tmp_path / "model" / name).mkdir()
    with pytest.raises(BadInput, match=rf"{name}.* which MLServer does not run; "):
        server.publish(tmp_path / "model", "refused", 1, "fingerprint")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    with pytest.raises(BadInput, match="mlserver, which serves only scikit-learn"):
        server.publish(tmp_path / "saved", "refused", 1, "fingerprint")
