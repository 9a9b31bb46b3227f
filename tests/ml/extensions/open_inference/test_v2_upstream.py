"""A gateway in front of a server that is asked with the Open Inference Protocol: this package's own, as a stand-in."""

from __future__ import annotations

import math
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from server_process import ServerProcess, write_models
from waiting import wait_for

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import parse_config
from airflow_hops.serving.flag_parser import parse_flags
from tests.ml.extensions.open_inference.v2_client import V2Client
from tests.ml.model_servers import running_server
from tests.ml.serving.random_signatures import KINDS, Input, Model
from tests.ml.serving.test_capture import captured

pytestmark = pytest.mark.runtime

ROW = {"instances": [{"carrier": "AA", "distance": [0.5], "hour": 3}]}
COLUMNS = tuple(
    Input(f"{kind}{len(shape)}", kind, shape, True) for kind in KINDS for shape in ((None,), (None, 2))
)  # 12 kinds
SPECIAL: dict[str, list[Any]] = {
    "float": [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 0.1],
    "double": [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.7e308, 0.1],
    "int64": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
    "int32": [0, -1, 2**31 - 1, -(2**31)],
    "bool": [True, False],
    "string": [b"", b"a", b"\xff\x00", "é".encode(), b"null", b"x" * 300],
}


@pytest.fixture(scope="module")
def gateway(runtime_python: Path, shared_server: ServerProcess, tmp_path_factory: Any) -> Iterator[ServerProcess]:
    flags = {"upstream": f"v2://{shared_server.address}", "capture_base_path": tmp_path_factory.mktemp("captured")}
    with running_server(runtime_python, tmp_path_factory.mktemp("gateway"), flags) as server:
        yield server


def test_unknown_scheme_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--upstream=v3://h:1"])
    assert "value is 'v3://h:1'; known schemes are v2://" in capsys.readouterr().err
    assert parse_flags(["--upstream=v2://h:1,h:2"])[0].models_flag == "upstream"


def test_answers_of_every_api_are_those_of_the_server(gateway: ServerProcess, shared_server: ServerProcess) -> None:
    for path in ("flights/versions/1", "flights/versions/2", "vectors"):
        body = ROW if path != "vectors" else {"inputs": [[1.0, 2.0, 3.0]]}
        assert gateway.predict(path, body) == shared_server.predict(path, body)
    rows = {
        "carrier": np.array([b"AA", b"\xff"], object),
        "distance": np.array([[0.5], [np.nan]], np.float32),
        "hour": np.array([3, 4]),
    }
    with V2Client(gateway) as through, V2Client(shared_server) as direct:
        for form in ("typed", "raw", "binary"):
            theirs = direct.infer("flights", rows, form, version="2", outputs=["score"])
            ours = through.infer("flights", rows, form, version="2", outputs=["score"])
            assert ours.version == theirs.version == "2" and ours.outputs.keys() == theirs.outputs.keys()
            np.testing.assert_array_equal(ours.outputs["score"], theirs.outputs["score"])
        inputs = through.get("/models/flights/versions/1")["inputs"]
        assert inputs == direct.get("/models/flights/versions/1")["inputs"]


def test_split_is_the_gateways(gateway: ServerProcess) -> None:
    def answered() -> dict[str, int]:
        versions = gateway.call("/v1/stats")[1]["models"]["flights"]["versions"]
        return {version: counts["codes"].get("OK", 0) for version, counts in versions.items()}

    gateway.predict("flights", ROW)
    gateway.call("/v1/models/flights:traffic", {"percents": {"1": 75, "2": 25}})
    reference = answered()
    for _ in range(40):
        gateway.predict("flights", ROW)
    counts = {version: count - reference.get(version, 0) for version, count in answered().items()}
    assert sum(counts.values()) == 40 and 15 <= counts["1"] <= 40
    gateway.call("/v1/models/flights:traffic", {"percents": None})


def test_labels_signatures_and_unknown_versions_are_refused(gateway: ServerProcess) -> None:
    assert gateway.error("/v1/models/flights/labels/canary:predict", ROW) == (
        400,
        "Unrecognized servable version label: canary. Servers of the Open Inference Protocol have no labels; name a "
        "version, or none",
    )
    with ModelServerClient(gateway.address) as client:
        with pytest.raises(ModelServerError, match="signature_name is strings; models of the Open Inference Protocol"):
            client.predict("vectors", {"text": np.array([b"a"], object)}, signature="strings")
        assert {each.version: each.state for each in client.status("flights")} == {1: "AVAILABLE", 2: "AVAILABLE"}
        with pytest.raises(ModelServerError, match="Servable not found"):
            client.predict("flights", {"carrier": np.array([b"AA"], object)}, version=9)


def test_version_is_waited_for_where_the_server_polls_a_folder(
    runtime_python: Path, saved_models: Path, tmp_path: Path
) -> None:
    def config(*versions: int) -> Any:
        specific = " ".join(f"versions: {version}" for version in versions)
        policy = f"model_version_policy {{ specific {{ {specific} }} }}"
        return parse_config(f'model_config_list {{ config {{ name: "flights" base_path: "/m" {policy} }} }}', "")

    shutil.copytree(saved_models / "flights" / "1", tmp_path / "flights" / "1")
    models = write_models(tmp_path, flights=(tmp_path / "flights", "model_version_policy { all {} }"))
    flags = {"model_config_file": models, "file_system_poll_wait_seconds": 0.1}
    with running_server(runtime_python, tmp_path / "polls", flags) as polling:
        flags = {"upstream": f"v2://{polling.address}"}
        with (
            running_server(runtime_python, tmp_path / "gateway", flags) as through,
            ModelServerClient(through.address) as client,
        ):
            client.reload_config(config(1, 2))
            assert {each.version: each.state for each in client.status("flights")} == {1: "AVAILABLE", 2: "LOADING"}
            with pytest.raises(ModelServerError, match=r"version 2 is not available after 0\.3 s"):
                client.wait_until_available("flights", 2, 0.3)
            shutil.copytree(saved_models / "flights" / "2", tmp_path / "flights" / "2")
            client.wait_until_available("flights", 2, 60)
            client.reload_config(config(2))
            wait_for(lambda: [each.version for each in client.status("flights")] == [2], "the end of version 1")
            assert through.predict("flights", ROW) == polling.predict("flights/versions/2", ROW)


def values(draw: random.Random, kind: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    flat = np.empty(int(np.prod(shape)), dtype)
    flat[:] = [draw.choice(SPECIAL[kind]) for _ in flat]
    return flat.reshape(shape)


def test_captured_rows_are_those_of_the_server_itself(runtime_python: Path, tmp_path: Path) -> None:
    model, draw = Model("saved_model", COLUMNS, True), random.Random(70)
    model.write(tmp_path / "columns")
    config = write_models(tmp_path, columns=tmp_path / "columns")
    direct_flags = {"model_config_file": config, "capture_base_path": tmp_path / "direct"}
    asked = [
        {each.name: values(draw, each.kind, (rows, *each.shape[1:]), each.numpy) for each in COLUMNS}
        for rows in (draw.choice([1, 1, 2, 3]) for _ in range(1000))
    ]
    with running_server(runtime_python, tmp_path / "one", direct_flags) as direct:
        through_flags = {"upstream": f"v2://{direct.address}", "capture_base_path": tmp_path / "through"}
        with running_server(runtime_python, tmp_path / "two", through_flags) as gateway:
            for server in (direct, gateway):
                with V2Client(server) as client:
                    for number, arrays in enumerate(asked):
                        client.infer("columns", arrays, "raw", request_id=f"{server is gateway}-{number}")
                server.flush()
    # The direct server also captures what the gateway asks it.
    own = rows_of(captured(tmp_path / "direct" / "columns"), "False-")
    through = rows_of(captured(tmp_path / "through" / "columns"), "True-")
    differing = [
        (key, name, row[name], through[key][name])
        for key, row in own.items()
        for name in row
        if through[key][name] != row[name]
    ]
    assert differing == [] and own.keys() == through.keys()
    assert len(own) == sum(len(arrays["int641"]) for arrays in asked)


def rows_of(table: pa.Table, prefix: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows by request and row, bit by bit, without what differs between any two servers."""
    rows = {}
    for row in table.to_pylist():
        request = row.pop("request_id")
        if request is not None and request.startswith(prefix):
            compared = {name: bits(value) for name, value in row.items() if name not in ("captured_at", "latency_ms")}
            rows[request.removeprefix(prefix), row["row"]] = compared
    return rows


def bits(value: Any) -> Any:
    if isinstance(value, list):
        return [bits(each) for each in value]
    # The sign of a NaN that a model computes may differ between two runs of it.
    return struct.pack("<d", np.nan if math.isnan(value) else value) if isinstance(value, float) else value
