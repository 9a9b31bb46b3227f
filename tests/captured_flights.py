"""Requests about flights as a model server captures them, and the record of the model that they were sent to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.capture_layout import FEEDBACK_FOLDER
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import PredictRequest, PredictResponse
from airflow_hops.core.store import ArtifactStore
from airflow_hops.serving.capture.record import CapturedCall, CapturedLabel
from airflow_hops.serving.capture.rows import CallTables
from airflow_hops.serving.request_kind import RequestKind
from tests import flights_examples

INPUTS = [*flights_examples.FEATURES, "scheduled_at"]


def write_champion(store: ArtifactStore, statistics: Artifact, schema: Artifact) -> str:
    """Records a champion of the model ``flights``, trained on the statistics' data; returns the record's address."""
    model = {"uri": "file:///model", "kind": "model", "fingerprint": "m", "properties": {"features": INPUTS[:-1]}}
    champion = {
        "version": 3, "model": model, "statistics": statistics.uri, "schema": schema.uri, "fingerprint": "m",
        "serving_path": "/models/flights/3", "since": "2013-04-01T00:00:00+00:00",
    }  # fmt: skip
    address = store.internal("_models", "flights.json")
    store.write_text(address, json.dumps({"champion": champion, "challenger": None, "history": []}))
    return address


class CaptureFolder:
    """The folder of captured requests, and a way to add files to it as the server writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = 0

    def add(self, frame: pd.DataFrame, *, version: int = 3, at_us: int | None = None) -> Path:
        """Captures the rows of a frame as one request: missing numbers are NaN, missing strings empty."""
        inputs = {name: _as_served(frame[name]) for name in INPUTS if name in frame}
        return self.answer(inputs, {"probability": np.zeros(len(frame), np.float32)}, version=version, at_us=at_us)

    def answer(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *, version: int = 3, at_us: int | None = None
    ) -> Path:
        """Captures a request, called ``request-<number of the file>``, with the answer to it."""
        request, response = PredictRequest(), PredictResponse()
        for message, arrays in ((request.inputs, inputs), (response.outputs, outputs)):
            for name, values in arrays.items():
                tensors.fill_proto(message[name], values)
        call = CapturedCall(
            kind=RequestKind("flights", version, "Predict", "GRPC"),
            request_id=f"request-{self._files}",
            at_us=1_700_000_000_000_000 + self._files * 60_000_000 if at_us is None else at_us,
            latency_ms=2.0,
            rows=len(next(iter(outputs.values()))),
            request=request.SerializeToString(),
            response=response.SerializeToString(),
        )
        tables = CallTables()
        tables.add(call)
        return self.write(tables.groups[0].to_table(), version)

    def label(self, labels: Sequence[CapturedLabel]) -> None:
        """Keeps labels as the server does that was told them."""
        from airflow_hops.serving.capture.batch import labels_table  # which the Airflow side cannot import

        folder = self.path / "flights" / FEEDBACK_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(labels_table(list(labels)), folder / f"20231114T2214{len(list(folder.iterdir())):02d}.parquet")

    def write(self, table: pa.Table, version: int = 3) -> Path:
        self._files += 1
        path = self.path / "flights" / f"20231114T2213{self._files:02d}.000000Z-v{version}-17.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return path


def _as_served(column: pd.Series) -> np.ndarray:
    if pd.api.types.is_float_dtype(column):
        return column.to_numpy(np.float32)
    if pd.api.types.is_integer_dtype(column):
        return column.to_numpy(np.int64)
    return np.array([b"" if pd.isna(value) else value.encode() for value in column], object)
