"""Fleets for tests, with an oracle that answers each row by itself in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from airflow_hops.core.serving_api.tensors import BY_NAME
from airflow_hops.extensions.fleet.core.linear import CategoryEncoding, Encoding, NumberEncoding, weights_to_bytes
from airflow_hops.extensions.fleet.core.packs import LINEAR, ONNX, FleetDescription, PackWriter, write_index
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, EstimatorInputs, ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs

ENCODING = Encoding(
    (NumberEncoding("price", 10.0, 2.0, marks_missing=True), NumberEncoding("stock", 0.0, 5.0)),
    (CategoryEncoding("day", ("Mon", "Sun", "Ö")), CategoryEncoding("size", ("1", "2"))),
)
COLUMNS = {"price": "float", "stock": "double", "day": "string", "size": "int64"}


def graph(weights: np.ndarray, problem: str, padding: int = 0) -> bytes:
    """An ONNX graph that answers as a linear model; ``padding`` are bytes of a constant that is added times zero."""
    initializers = [
        numpy_helper.from_array(weights[:, 1:].T.astype(np.float32), "w"),
        numpy_helper.from_array(weights[:, 0].astype(np.float32), "b"),
        numpy_helper.from_array(np.random.default_rng(0).normal(size=padding // 4 + 1).astype(np.float32), "padding"),
    ]
    last = {"regression": "Identity", "binary": "Sigmoid", "multiclass": "Softmax"}[problem]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["scores"]),
        helper.make_node("Slice", ["padding", "zero", "one"], ["some"]),
        helper.make_node("Mul", ["some", "nothing"], ["none"]),
        helper.make_node("Add", ["scores", "none"], ["sum"]),
        helper.make_node(last, ["sum"], ["y"]),
    ]
    initializers += [
        numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(np.array([1]), "one"),
        numpy_helper.from_array(np.zeros(1, np.float32), "nothing"),
    ]
    width, outputs = weights.shape[1] - 1, len(weights)
    made = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, outputs])],
        initializers,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


@dataclass
class PackedFleet:
    """A fleet in a folder: ``weights`` by segment, None for the pooled model's."""

    folder: Path
    problem: str = "regression"
    segment_type: str = "string"
    weights: dict[str | None, np.ndarray] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...] | None:
        return ("a", "b", "c") if self.problem == "multiclass" else None

    def expected(self, key: str, row: Mapping[str, Any]) -> Any:
        """The answer for a row: a number, or the probabilities of the classes."""
        weights = self.weights.get(key, self.weights[None])
        price = row["price"]
        values = [1.0, 0.0 if math.isnan(price) else (price - 10) / 2, float(math.isnan(price)), row["stock"] / 5]
        values += [float(row["day"] == day) for day in ("Mon", "Sun", "Ö")]
        values += [float(str(row["size"]) == size) for size in ("1", "2")]
        scores = [sum(weight * value for weight, value in zip(line, values, strict=True)) for line in weights.tolist()]
        if self.problem == "regression":
            return scores[0]
        if self.problem == "binary":
            return 1 / (1 + math.exp(-scores[0]))
        exponents = [math.exp(score - max(scores)) for score in scores]
        return [each / sum(exponents) for each in exponents]


def write_packed_fleet(
    folder: Path,
    keys: Sequence[str],
    *,
    problem: str = "regression",
    formats: Sequence[str] = (LINEAR, ONNX),
    pooled_every: int = 4,
    segment_type: str = "string",
    padding: int = 0,
    seed: int = 0,
) -> PackedFleet:
    """Writes a fleet with random models, of the formats in turn; each ``pooled_every``-th segment is pooled."""
    rng = np.random.default_rng(seed)
    fleet = PackedFleet(folder, problem, segment_type)
    outputs = 3 if problem == "multiclass" else 1
    rows = []
    with PackWriter(folder) as packs:

        def add(key: str | None, number: int) -> Any:
            weights = fleet.weights[key] = rng.normal(size=(outputs, 1 + ENCODING.width))
            form = formats[number % len(formats)]
            payload = weights_to_bytes(weights) if form == LINEAR else graph(weights, problem, padding * (number % 3))
            return packs.add(payload, form)

        pooled = add(None, 0)
        for number, key in enumerate(keys):
            row = {"segment": key, "state": "pooled", "reason": "few rows", "rows": number}
            if number % pooled_every:
                row |= {"state": "own", "reason": "better", "place": add(key, number)}
            rows.append(row)
    write_index(folder, rows)
    columns = {"shop": segment_type, **COLUMNS}
    requests = EstimatorInputs({name: BY_NAME[kind] for name, kind in columns.items()})
    signature = ModelSignature(requests, requests, outputs=ProblemOutputs(problem, fleet.classes))
    (folder / SIGNATURE_FILE).write_text(signature.to_json())
    FleetDescription("shop", segment_type, ENCODING, pooled).write(folder)
    return fleet


def random_rows(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Rows of a request without the segment, among them missing prices and unknown categories."""
    price = rng.normal(10, 3, count).astype(np.float32)
    price[rng.random(count) < 0.2] = np.nan
    days = np.array([day.encode() for day in ("Mon", "Sun", "Ö", "never", "")], object)
    return {
        "price": price,
        "stock": rng.normal(size=count) * 9,
        "day": days[rng.integers(len(days), size=count)],
        "size": rng.integers(0, 4, count),
    }


def row_of(columns: Mapping[str, np.ndarray], row: int) -> dict[str, Any]:
    """A row of :func:`random_rows` as plain values."""
    values = {
        name: column[row].item() if column.dtype != object else column[row].decode() for name, column in columns.items()
    }
    return values
