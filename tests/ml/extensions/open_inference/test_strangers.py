"""Other projects' clients, unchanged, and MLServer with the same model; each in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_projects import REQUIREMENTS, free_port, is_ready, python_in
from server_process import ServerProcess, Start
from waiting import wait_for

from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.extensions.frameworks import scikit_learn
from tests.ml.extensions.open_inference import strangers
from tests.ml.extensions.open_inference.v2_client import V2Client, infer_body

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="open_inference")]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def python_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes environments of other projects' programs."""
    folder = tmp_path_factory.mktemp("other-projects")
    return lambda name: python_in(folder, name)


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_clients_get_the_answers_of_v1(
    shared_server: ServerProcess, python_of: Callable[[str], Path], name: str
) -> None:
    command = [str(python_of(name)), str(HERE / "strangers.py"), name, shared_server.url, shared_server.address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    with ModelServerClient(shared_server.address) as client:
        v1 = client.predict("flights", dict(strangers.ROWS)).outputs
    expected = {output: v1[output].tolist() for output in strangers.OUTPUTS}
    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers
    assert {way: answer for way, answer in answers.items() if answer != expected} == {}


def test_mlserver_answers_alike(python_of: Callable[[str], Path], start_server: Start, tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    python = python_of("mlserver")
    random = np.random.default_rng(1)
    features = random.normal(size=(200, 3))
    model = LogisticRegression().fit(features, (features.sum(axis=1) > 0).astype(int))
    scikit_learn.save(model, tmp_path / "ours" / "1", features)
    names = ("http_port", "grpc_port", "metrics_port")
    ports = {name: free_port() for name in names}
    coefficients = {"coef": model.coef_[0].tolist(), "intercept": float(model.intercept_[0]), "ports": ports}
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    subprocess.run([python, HERE / "mlserver_model.py", theirs, json.dumps(coefficients)], check=True)
    ours = start_server(model_name="late", model_base_path=tmp_path / "ours")
    url = f"http://127.0.0.1:{ports['http_port']}"
    with (theirs / "log").open("wb") as log:
        process = subprocess.Popen([python.with_name("mlserver"), "start", theirs], stdout=log, stderr=log)
    try:
        wait_for(lambda: is_ready(f"{url}/v2/models/late/ready"), (theirs / "log").read_text, 120)
        with V2Client(ours) as client:
            for rows in (1, 2, 50):
                inputs = random.normal(size=(rows, 3))
                outputs = ("predict", "predict_proba")
                body, headers = infer_body({"inputs": inputs}, "json", outputs=outputs)
                answered = post(f"{url}/v2/models/late/infer", body, headers)
                expected = {each["name"]: np.reshape(each["data"], each["shape"]) for each in answered["outputs"]}
                for form in ("json", "binary", "typed", "raw"):
                    answer = client.infer("late", {"inputs": inputs}, form).outputs
                    assert answer["predictions"].ravel().tolist() == expected["predict"].ravel().tolist()
                    np.testing.assert_allclose(answer["probabilities"], expected["predict_proba"], rtol=1e-6)
    finally:
        process.kill()
        process.wait()


def post(url: str, body: bytes, headers: dict[str, str]) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as response:
        return json.loads(response.read())
