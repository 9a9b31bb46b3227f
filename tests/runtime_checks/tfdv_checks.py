"""Checks that need TFDV itself: run as steps in the runtime environment, they return plain values to a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.statistics import generate_statistics


def mixed_table(rows: int = 3000) -> pa.Table:
    """Columns of every type that has statistics, with what is awkward in them."""
    random = np.random.default_rng(1)
    floats = random.normal(size=rows)
    floats[::7] = np.nan
    missing = random.random(rows) < 0.2
    text = [None if gone else f"value-{int(v)}" for gone, v in zip(missing, random.exponential(5, rows), strict=True)]
    extremes = random.integers(-5, 5, rows)
    extremes[:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return pa.table(
        {
            "float": pa.array(floats),
            "float32": pa.array(np.where(missing, None, floats), pa.float32(), from_pandas=True),
            "infinite": pa.array(np.where(missing, np.inf, floats)),
            "integer": pa.array(random.integers(0, 50, rows)),
            "extreme": pa.array(extremes),
            "text": pa.array(text),
            "bytes": pa.array([b"\xff\xfe" if gone else b"plain" for gone in missing]),
            "all_null": pa.nulls(rows, pa.float64()),
            "untyped": pa.nulls(rows),
            "empty_text": pa.array([""] * rows),
            "list": pa.array([[1.0] * (i % 4) for i in range(rows)]),
        }
    )


def compare_with_tfdv(context: StepContext) -> dict[str, Any]:
    """Schema and validation by the native module and by TFDV's package, and statistics by TFDV's dataframe path."""
    import tensorflow_data_validation as tfdv
    from statistics_equality import compare

    table = mixed_table()
    folder = context.scratch / "mixed"
    folder.mkdir()
    for part in range(3):
        pq.write_table(table.slice(part * 1000, 1000), folder / f"part-{part}.parquet", version="2.6")
    ours = generate_statistics(folder)
    # Pandas has no other missing number than NaN.
    frame = table.drop(["list", "bytes", "untyped"]).to_pandas()
    nulls = generate_statistics(pa.Table.from_pandas(frame, preserve_index=False))
    return {
        "dataframe": compare(nulls, tfdv.generate_statistics_from_dataframe(frame), pa.Table.from_pandas(frame)),
        "lacking": _lacking(context.scratch),
        "schema_as_tfdv": _same_schema(ours),
        "validation_as_tfdv": _same_anomalies(ours, generate_statistics(table.slice(0, 500).drop(["text"]))),
    }


def _lacking(scratch: Path) -> dict[str, float]:
    """Rows and missing values of a feature that one of two files has."""
    folder = scratch / "lacking"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1, 2], "id": [1, 2]}), folder / "a.parquet")
    pq.write_table(pa.table({"id": [3, 4, 5]}), folder / "b.parquet")
    dataset = generate_statistics(folder, exclude=["id"]).datasets[0]
    rows = dataset.num_examples
    return {"rows": rows, "missing": rows - dataset.features[0].num_stats.common_stats.num_non_missing}


def nan_against_itself(context: StepContext) -> dict[str, Any]:
    """Skew of a column with NaN, and of one with missing strings, against themselves."""
    from airflow_hops.runtime.skew import detect_skew

    random = np.random.default_rng(2)
    values = random.normal(size=10_000)
    with_nan = np.where(random.random(10_000) < 0.5, np.nan, values)
    names = random.choice(["a", "b", "c"], 10_000)
    whole = pa.table({"x": pa.array(values), "s": pa.array(names)})
    holes = pa.table({"x": pa.array(with_nan), "s": pa.array(np.where(random.random(10_000) < 0.5, None, names))})
    gone = pa.table({"x": pa.array(np.full(10_000, np.nan)), "s": pa.nulls(10_000, pa.string())})
    return {
        "holes_to_holes": detect_skew(holes, holes).to_dict(),
        "whole_to_holes": detect_skew(whole, holes).to_dict(),
        "whole_to_gone": detect_skew(whole, gone).to_dict(),
        "few": detect_skew(whole, whole.slice(0, 10)).to_dict(),
    }


def _same_schema(statistics: Any) -> bool:
    import tensorflow_data_validation as tfdv

    from airflow_hops.runtime import tfdv_extension

    return tfdv_extension.infer_schema(statistics) == tfdv.infer_schema(statistics, infer_feature_shape=False)


def _same_anomalies(statistics: Any, other: Any) -> bool:
    import tensorflow_data_validation as tfdv

    from airflow_hops.runtime import tfdv_extension

    schema = tfdv.infer_schema(statistics)
    ours = tfdv_extension.validate_statistics(other, schema, previous=statistics)
    return ours == tfdv.validate_statistics(other, schema, previous_statistics=statistics) and bool(ours.anomaly_info)


def describe_schema(context: StepContext) -> dict[str, Any]:
    """A schema artifact as plain values."""
    from tensorflow_metadata.proto.v0 import schema_pb2

    from airflow_hops.runtime.schema import SCHEMA_FILE, load_schema

    schema = load_schema(context.local("schema") / SCHEMA_FILE)
    domains = {domain.name: list(domain.value) for domain in schema.string_domain}
    return {
        feature.name: {
            "type": schema_pb2.FeatureType.Name(feature.type),
            "min_fraction": feature.presence.min_fraction,
            "domain": domains.get(feature.domain),
            "not_in": list(feature.not_in_environment),
            "int_domain": [feature.int_domain.min, feature.int_domain.max] if feature.HasField("int_domain") else None,
            "skew": _comparator(feature.skew_comparator) if feature.HasField("skew_comparator") else None,
            "drift": _comparator(feature.drift_comparator) if feature.HasField("drift_comparator") else None,
        }
        for feature in schema.feature
    }


def _comparator(comparator: Any) -> list[Any]:
    for name in ("infinity_norm", "jensen_shannon_divergence"):
        if comparator.HasField(name):
            return [name, getattr(comparator, name).threshold]
    return []


def imports_of_schema_and_validation(context: StepContext) -> list[str]:
    """Runs both steps' native calls in a fresh process; returns which heavy libraries they import."""
    import subprocess
    import sys

    code = (
        "import sys; from airflow_hops.runtime import tfdv_extension as x; "
        "from tensorflow_metadata.proto.v0 import statistics_pb2 as s; import airflow_hops.runtime.validation; "
        "stats = s.DatasetFeatureStatisticsList(datasets=[s.DatasetFeatureStatistics(num_examples=1)]); "
        "x.validate_statistics(stats, x.infer_schema(stats)); "
        "print(*[n for n in ('tensorflow', 'apache_beam', 'pandas', 'pyarrow') if n in sys.modules]); "
        "import tensorflow_data_validation as t; t.infer_schema(stats)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return [str(done.returncode), *done.stdout.split()]
