"""The model server explains predictions: ``POST /v1/models/MODEL:explain``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server_process import Start

from airflow_hops.core.store import ArtifactStore
from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.extensions.explain.test_explain import TABLE, write_model


class TestContract(ServerPartContract):
    name = "explain"

    @pytest.fixture
    def arguments(self) -> Any:
        return ["--explain_background_path=/backgrounds", "--explain_max_predictions=1000"]


def test_requests_are_explained_within_bounds_and_are_not_captured(start_server: Start, tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    model = store.local(write_model(store, "binary"))
    for name in ("flights", "other", "lacking"):
        shutil.copytree(model / "onnx", tmp_path / "models" / name / "1")
    configs = [f'config {{ name: "{n}" base_path: "{tmp_path}/models/{n}" }}' for n in ("flights", "other", "lacking")]
    (tmp_path / "models.config").write_text(f"model_config_list {{ {' '.join(configs)} }}")
    backgrounds = tmp_path / "backgrounds"
    backgrounds.mkdir()
    pq.write_table(pa.Table.from_pandas(TABLE[:50], preserve_index=False), backgrounds / "flights.parquet")
    pq.write_table(pa.table({"site": ["a"]}), backgrounds / "lacking.parquet")
    server = start_server(
        model_config_file=tmp_path / "models.config",
        explain_background_path=backgrounds,
        explain_background_rows=50,
        explain_max_predictions=3000,
        capture_path=tmp_path / "captured",
    )
    rows, of_background = (json.loads(part.to_json(orient="records")) for part in (TABLE[600:603], TABLE[:50]))
    answer = server.post("/v1/models/flights:explain", {"instances": rows})
    assert (answer["exact"], answer["background_rows"]) == (True, 50)
    probability, others = (
        server.predict("flights", {"instances": each})["predictions"] for each in (rows, of_background)
    )
    for of, expected in zip(answer["explanations"], probability, strict=True):
        assert of["prediction"] == pytest.approx(expected, abs=1e-6)
        assert of["base"] == pytest.approx(np.mean(others), abs=1e-6)
        assert set(of["contributions"]) == {*TABLE}
        assert of["base"] + sum(of["contributions"].values()) == pytest.approx(of["prediction"], abs=1e-9)
    assert server.post("/v1/models/flights/versions/1:explain", {"instances": rows}) == answer

    refused = "6 rows need 4,206 predictions, and --explain_max_predictions allows 3,000; ask for 4 rows at once"
    assert server.error("/v1/models/flights:explain", {"instances": rows * 2}) == (400, refused)
    status, message = server.error("/v1/models/flights:explain", {"instances": [{**rows[0], "colour": "red"}]})
    assert status == 400 and "does not have named input: colour" in message
    missing = f"There is no background {backgrounds}/other.parquet on the server."
    assert server.error("/v1/models/other:explain", {"instances": rows}) == (400, missing)
    status, message = server.error("/v1/models/lacking:explain", {"instances": rows})
    assert status == 400 and message.startswith(f"The background {backgrounds}/lacking.parquet has no column")
    assert server.error("/v1/models/nothing:explain", {"instances": rows})[0] == 404
    version = server.get("/v1/stats")["models"]["flights"]["versions"]["1"]
    assert version["rows"] == 53, "neither counted nor captured: predictions that explain others"
