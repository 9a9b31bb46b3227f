"""Writes small transformed examples without Spark: two Gaussian numbers, an id, and a label that follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.hops import Constants, StepContext
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform

IDS = 5


def preprocess(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
    """Two numbers side by side, and an id."""
    import tensorflow as tf

    numeric = tf.stack([features["a"], features["b"]], axis=1)
    return {"numeric": numeric, "kind_id": tf.math.floormod(features["kind"], IDS)}


def write(context: StepContext, *, rows: dict[str, list[int]]) -> Artifact:
    """The step: ``rows`` holds, by split, the rows of each file."""
    from tensorflow_metadata.proto.v0 import statistics_pb2

    random = np.random.default_rng(7)
    raw = {"a": "float32", "b": "float32", "kind": "int64"}
    with context.output() as writer:
        constants = Constants(statistics_pb2.DatasetFeatureStatistics())
        traced = trace_transform(preprocess, {**raw, "when": "int64"}, constants)
        traced.save(writer.path / "transform_graph")
        specs = FeatureSpecs(raw, "late", "key", "when", traced.outputs)
        (writer.path / "features.json").write_text(specs.to_json())
        for split, files in rows.items():
            (writer.path / split).mkdir()
            for number, count in enumerate(files):
                numeric = random.normal(size=(count, 2)).astype("float32")
                kind = random.integers(0, IDS, count)
                late = (numeric[:, 0] + 0.5 * numeric[:, 1] + 0.3 * kind + random.normal(size=count) > 0.6).astype(
                    "int64"
                )
                table = pa.table(
                    {
                        "numeric": pa.FixedSizeListArray.from_arrays(pa.array(numeric.ravel()), 2),
                        "kind_id": kind,
                        "late": late,
                    }
                )
                pq.write_table(table, writer.path / split / f"part-{number:05d}.parquet", row_group_size=100)
        return writer.commit(
            rows={split: RowCounts(sum(files), sum(files)) for split, files in rows.items()},
            properties={
                "label": "late",
                "key": "key",
                "time": "when",
                "features": list(raw),
                "window": ["2013-01-01T00:00:00+00:00", "2013-04-01T00:00:00+00:00"],
                "splits": list(rows),
            },
        )
