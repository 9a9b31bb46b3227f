"""The model server explains predictions: ``POST /v1/models/MODEL:explain``."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server_process import Start, write_models

from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.extensions.explain.test_explain import TABLE, Bench
from tests.ml.serving.random_signatures import FORMATS, KINDS, Input, Model, random_values


class TestContract(ServerPartContract):
    name = "explain"

    @pytest.fixture
    def arguments(self) -> Any:
        return ["--explain_background_path=/backgrounds", "--explain_max_predictions=1000"]


def test_requests_are_explained_within_bounds_and_are_not_captured(start_server: Start, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    model = bench.store.local(bench.trained("binary"))
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
        capture_base_path=tmp_path / "captured",
    )
    rows, of_background = (json.loads(part.to_json(orient="records")) for part in (TABLE[600:603], TABLE[:50]))
    answer = server.post("/v1/models/flights:explain", {"instances": rows})
    assert (answer["exact"], answer["background_rows"]) == (True, 50)
    probability, others = (
        server.predict("flights", {"instances": each})["predictions"] for each in (rows, of_background)
    )
    for explanation, expected in zip(answer["explanations"], probability, strict=True):
        assert explanation["prediction"] == pytest.approx(expected, abs=1e-6)
        assert explanation["base"] == pytest.approx(np.mean(others), abs=1e-6)
        assert set(explanation["contributions"]) == {*TABLE}
        assert explanation["base"] + sum(explanation["contributions"].values()) == pytest.approx(
            explanation["prediction"], abs=1e-9
        )
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


def shapley(model: Model, row: dict[str, Any], background: list[dict[str, Any]]) -> dict[str, float]:
    """Contributions from the definition: the mean over all orders of the features and all rows of the background."""
    names = [each.name for each in model.inputs]
    result = dict.fromkeys(names, 0.0)
    orders = list(itertools.permutations(names))
    for order, other in itertools.product(orders, background):
        mixed = dict(other)
        for name in order:
            base = float(np.sum(model.row(mixed)))
            mixed[name] = row[name]
            result[name] += (float(np.sum(model.row(mixed))) - base) / len(orders) / len(background)
    return result


def column(spec: Input, values: Any) -> Any:
    return values.tolist() if spec.kind != "string" else [value.decode() for value in values]


BROKEN: dict[str, Callable[[Path, pa.Table], Any]] = {
    "no Parquet": lambda path, table: path.write_bytes(b"PAR1 but no more"),
    "folder": lambda path, table: path.mkdir(),
    "no rows": lambda path, table: pq.write_table(table[:0], path),
    "text": lambda path, table: pq.write_table(table.set_column(0, "x0", pa.array(["a"] * 5)), path),
    "time": lambda path, table: pq.write_table(table.set_column(0, "x0", pa.array([0] * 5, pa.timestamp("s"))), path),
    "lists": lambda path, table: pq.write_table(table.set_column(0, "x0", pa.array([[1.0, 2.0]] * 5)), path),
    "other": lambda path, table: pq.write_table(table.rename_columns(["other", *table.column_names[1:]]), path),
    "numbers": lambda path, table: pq.write_table(table.set_column(2, "x2", pa.array([5] * 5)), path),
    "fractions": lambda path, table: pq.write_table(table.set_column(1, "x1", pa.array([0.5] * 5)), path),
    "missing": lambda path, table: pq.write_table(table.set_column(1, "x1", pa.array([None, 1, 2, 3, 4])), path),
    "large": lambda path, table: pq.write_table(table.set_column(1, "x1", pa.array([2**40] * 5)), path),
}
NOT_FINITE = [(None, "background"), (float("inf"), "background"), (float("nan"), "request")]


def test_explanations_of_random_models_are_shapley_values_or_refused(start_server: Start, tmp_path: Path) -> None:
    """Any type, format and batch size; batching's limit is far below the predictions of one row."""
    draw, models, backgrounds = random.Random(5), {}, {}
    (tmp_path / "backgrounds").mkdir()
    for number in range(12):
        form = FORMATS[number % 2]
        kinds = [draw.choice(KINDS) for _ in range(draw.choice([1, 2, 3]))]
        batch = (None, 3, None, 1)[number % 4]
        shapes = [draw.choice([(batch,), (batch, 1)]) for _ in kinds]
        inputs = (
            Input(f"x{index}", kind, shape, True) for index, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
        )
        models[f"m{number}"] = Model(form, tuple(inputs), True, draw.choice(["prediction", "probability"]))
    kinds = ("float", "int32", "string")
    plain = Model(
        "onnx", tuple(Input(f"x{index}", kind, (None,), True) for index, kind in enumerate(kinds)), True, "prediction"
    )
    for index in range(len(BROKEN) + len(NOT_FINITE)):
        models[f"b{index}"] = plain
    for name, model in models.items():
        model.write(tmp_path / name)
        backgrounds[name] = {each.name: random_values(draw, each.kind, (5,)) for each in model.inputs}
        table = pa.table({each.name: column(each, backgrounds[name][each.name]) for each in model.inputs})
        path = tmp_path / "backgrounds" / f"{name}.parquet"
        number = int(name[1:])
        if name[0] == "b" and number < len(BROKEN):
            list(BROKEN.values())[number](path, table)
        else:
            number -= len(BROKEN)
            if name[0] == "b" and NOT_FINITE[number][1] == "background":
                table = table.set_column(0, "x0", pa.array([1.0, NOT_FINITE[number][0], 2.0, 3.0, 4.0]))
            pq.write_table(table, path)
    (tmp_path / "batching").write_text("max_batch_size { value: 8 }")
    server = start_server(
        model_config_file=write_models(tmp_path, **{name: tmp_path / name for name in models}),
        explain_background_path=tmp_path / "backgrounds",
        enable_batching="true",
        batching_parameters_file=tmp_path / "batching",
    )
    for name, model in models.items():
        rows = [{each.name: random_values(draw, each.kind, (1,)) for each in model.inputs} for _ in range(2)]
        body = {"instances": [{each.name: column(each, row[each.name])[0] for each in model.inputs} for row in rows]}
        if name == f"b{len(BROKEN) + 2}":
            body["instances"][0]["x0"] = None
        status, answer = server.call(f"/v1/models/{name}:explain", body)
        if name[0] == "b":
            number = int(name[1:])
            path = f"The background {tmp_path}/backgrounds/{name}.parquet has" if number < len(BROKEN) else ""
            message = answer["error"]
            assert status == 400, (number, answer)
            assert message.startswith((path, path.replace(" has", " cannot be used"))), (number, message)
            assert number < len(BROKEN) or "is NaN or infinite for a row" in message
            continue
        assert status == 200, (model, answer)
        background = backgrounds[name]
        others = [{each: values[index] for each, values in background.items()} for index in range(5)]
        for row, explained in zip(rows, answer["explanations"], strict=True):
            single = {each: values[0] for each, values in row.items()}
            assert explained["output"] == (model.output == "probability")
            assert explained["prediction"] == pytest.approx(float(np.sum(model.row(single))), rel=1e-5)
            assert explained["base"] == pytest.approx(np.mean([np.sum(model.row(each)) for each in others]), rel=1e-5)
            assert explained["contributions"] == pytest.approx(shapley(model, single, others), rel=1e-5, abs=1e-5)
