"""Our side of ``benchmarks/retraining.py``, in the runtime environment, and the files that both sides read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement.worker import Work, perform, twice

MODEL = "late"
REQUEST_ROWS = 10
FILE_ROWS = 100_000


def write(folder: str, rows: str) -> Work:
    """Captured predictions, ten in a request, and a label for nine of ten, of which some are corrected."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, count, path = np.random.default_rng(1), int(rows), Path(folder)

    def run() -> Mapping[str, Any]:
        (path / MODEL).mkdir(parents=True, exist_ok=True)
        number = np.arange(count)
        seconds = 1_700_000_000 + number // 100
        words = random.integers(0, 2**63, count // REQUEST_ROWS + 1)
        ids = np.array([f"{word:032x}" for word in words], object)[number // REQUEST_ROWS]
        times = pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC"))
        captured = pa.table(
            {
                "request_id": ids, "row": pa.array(number % REQUEST_ROWS, pa.int32()),
                "version": 1 + (number >= count // 2), "captured_at": times,
                **{f"input.{name}": random.random(count, np.float32) for name in "abcdefghij"},
                "output.probability": random.random(count, np.float32),
            }
        )  # fmt: skip
        for start in range(0, count, FILE_ROWS):
            name = f"20240101T{start // FILE_ROWS:06}.000000Z-v{1 + (start >= count // 2)}-1.parquet"
            pq.write_table(captured.slice(start, FILE_ROWS), path / MODEL / name)
        known = np.concatenate([number[number % 10 != 9], random.integers(0, count // 10, count // 100) * 10])
        random.shuffle(known)
        labels = {
            "request_id": ids[known], "row": pa.array(known % REQUEST_ROWS, pa.int32()),
            "late": random.integers(0, 2, len(known)), "known_at": 1_700_100_000 + random.permutation(len(known)),
        }  # fmt: skip
        pq.write_table(pa.table(labels), path / "labels.parquet")
        return {"rows": count, "labels": len(known)}

    return run


def join(folder: str) -> Work:
    """Does the stage's work before it measures: one label for each prediction, and the join."""
    import pyarrow.parquet as pq

    from airflow_hops.core.performance import PerformanceOptions
    from airflow_hops.ml.captured.requests import CapturedRequests
    from airflow_hops.ml.performance.join import join_labels
    from airflow_hops.ml.performance.labels import NO_LABEL, as_time, one_for_each

    options = PerformanceOptions(MODEL)

    def run() -> Mapping[str, Any]:
        table = pq.read_table(Path(folder) / "labels.parquet").rename_columns(
            ["request_id", "row", "label", "known_at"]
        )
        table = table.set_column(3, "known_at", as_time(table["known_at"], "labels.parquet"))
        labels = one_for_each(table, options.keys, None)
        joined = join_labels(CapturedRequests(folder, MODEL), labels, options, "binary")
        found = [each.labels[each.labels != NO_LABEL] for each in joined.versions.values()]
        return {
            "rows": sum(len(each.labels) for each in joined.versions.values()),
            "joined": sum(len(each) for each in found),
            "sum": sum(sum(labels.values[code] * int(n) for code, n in _counts(each)) for each in found),
        }

    return twice(run)


def _counts(codes: Any) -> Any:
    import numpy as np

    return zip(*np.unique(codes, return_counts=True), strict=True)


if __name__ == "__main__":
    perform({"write": write, "join": join})
