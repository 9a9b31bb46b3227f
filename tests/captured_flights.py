"""Requests about flights as a model server captures them, and the record of the model that they were sent to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.artifacts import Artifact
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.capture.tables import CallTables
from airflow_hops.serving.monitoring.stats import RequestKind
from airflow_hops.serving_api import tensors
from airflow_hops.serving_api.protocol import PredictRequest, PredictResponse
from airflow_hops.store import ArtifactStore
from tests import flights_examples

INPUTS = [*flights_examples.FEATURES, "scheduled_at"]


def write_champion(store: ArtifactStore, statistics: Artifact, schema: Artifact) -> str:
    """Records a champion of the model ``flights``, trained on the statistics' data; returns the record's address."""
    model = {"uri": "file:///model", "kind": "model", "fingerprint": "m", "properties": {"features": INPUTS[:-1]}}
    champion = {
        "version": 3, "model": model, "statistics": statistics.uri, "schema": schema.uri, "fingerprint": "m",
        "serving_path": "/models/flights/3", "since": "2013-04-01T00:00:00+00:00",
    }  # fmt: skip
    address = store.uri("_models", "flights.json")
    store.write_text(address, json.dumps({"champion": champion, "challenger": None, "history": []}))
    return address


class CaptureFolder:
    """The folder of captured requests, and a way to add files to it as the server writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = 0

    def add(self, frame: pd.DataFrame, *, version: int = 3) -> Path:
        """Captures the rows of a frame as one request: missing numbers are NaN, missing strings empty."""
        request, response = PredictRequest(), PredictResponse()
        for name in (name for name in INPUTS if name in frame):
            tensors.fill_proto(request.inputs[name], _as_served(frame[name]))
        tensors.fill_proto(response.outputs["probability"], np.zeros(len(frame), np.float32))
        at_us = 1_700_000_000_000_000 + self._files * 60_000_000
        call = CapturedCall(
            kind=RequestKind("flights", version, "Predict", "GRPC"),
            request_id=f"request-{self._files}",
            at_us=at_us,
            latency_ms=2.0,
            rows=len(frame),
            request=request.SerializeToString(),
            response=response.SerializeToString(),
        )
        tables = CallTables()
        tables.add(call)
        return self.write(tables.groups[0].to_table(), version)

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
