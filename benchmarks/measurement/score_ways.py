"""Scores of a table by boosted trees in ONNX, DuckDB's own ``COPY`` of its rows, and a loop over pandas chunks.

``python -m benchmarks.measurement.score_ways <way> <folder> <rows>``, for :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measurement.worker import Work, perform

WIDTH, TREES = 20, 100
NAMES = [f"feature_{number}" for number in range(WIDTH)]
CHUNK_ROWS = 100_000
"""Rows of a frame of the loop, whose seconds hardly depend on it."""


def write(folder: str, rows: str) -> None:
    """Writes the table, a key and 20 features, and the model."""
    import duckdb
    import numpy as np
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier

    from airflow_hops.core.artifacts.target import Target
    from airflow_hops.ml.models.export import export_model

    features = ", ".join(f"random() AS {name}" for name in NAMES)
    duckdb.execute(
        f"COPY (SELECT 'customer-' || range AS id, {features} FROM range({rows})) TO '{folder}/rows.parquet' "
        "(ROW_GROUP_SIZE 131072)"
    )
    random = np.random.default_rng(7)
    x = pd.DataFrame(random.random((20_000, WIDTH)).astype(np.float32), columns=NAMES)
    y = (x["feature_0"] * 3 + np.sin(x["feature_1"] * 6) + random.normal(0, 0.3, len(x)) > 2).astype(int)
    model = HistGradientBoostingClassifier(max_iter=TREES, early_stopping=False, random_state=0).fit(x, y)
    export_model(model, Path(folder), framework="sklearn", target=Target("late", "binary"), sample=x[:500])


def ours(folder: str, rows: str, capture: str = "captured", canary: str = "") -> Work:
    """The stage, from examples to committed predictions and captured rows; 1,000 rows are scored before."""
    import duckdb

    from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
    from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
    from airflow_hops.core.steps.protocol import Output, StepSpec
    from airflow_hops.core.store import ArtifactStore
    from airflow_hops.extensions.scoring.ml import stage
    from airflow_hops.ml.step.context import StepContext

    store = ArtifactStore(f"{folder}/store")

    shared = Path(folder).parent

    def artifact(kind: str, task: str, files: dict[str, Path], **facts: Any) -> Artifact:
        """Commits files by their paths in the artifact."""
        producer = Producer("score", Path(folder).name, task)
        with store.create(store.address(producer, kind), kind, producer) as writer:
            for path, source in files.items():
                (writer.path / path).parent.mkdir(parents=True, exist_ok=True)
                (writer.path / path).hardlink_to(source)
            (writer.path / "task.txt").write_text(task)  # so that no two artifacts are the same
            return writer.commit(**facts)

    files = {f"onnx/{each.name}": each for each in (shared / "onnx").iterdir()}
    models = [artifact("model", task, files, properties={"format": "onnx"}) for task in ("train", "retrain")]
    share = int(canary or 0)
    versions = [ServedVersion.of(models[0], 1, "/1", 100 - share), ServedVersion.of(models[1], 2, "/2", share)]
    write_record(store, "churn", ModelRecord(champion=versions[0], challenger=versions[1] if share else None))
    services = {"serving_kind": "batch", "serving_capture_path": f"{folder}/captured"}

    def run(count: int) -> dict[str, Any]:
        part = Path(folder) / f"rows-{count}.parquet"
        if count == int(rows):
            part.hardlink_to(shared / "rows.parquet")
        else:
            duckdb.execute(f"COPY (FROM '{shared}/rows.parquet' LIMIT {count}) TO '{part}'")
        properties = {"splits": ["rows"], "key": "id", "window": ["2026-11-01", f"2026-11-02+{count}"]}
        rows_of = {"rows": RowCounts(count, count)}
        files = {"rows/part-00000.parquet": part}
        examples = artifact("examples", f"prepare-{count}", files, properties=properties, rows=rows_of)
        producer = Producer("score", f"{count}", "score")
        output = Output(store.address(producer, "predictions"), "predictions")
        inputs = {"examples": (examples,), **({} if capture else {"model": (models[0],)})}
        spec = StepSpec("score", "", {}, inputs, output, store.root, producer=producer, services=services)
        scratch = Path(folder) / f"scratch-{count}"
        scratch.mkdir()
        options = {"model_name": "churn"} if capture else {}
        return {"rows": stage.run(StepContext(spec, scratch), **options).rows["rows"].rows_out}

    run(1000)
    return lambda: run(int(rows))


def copy(folder: str, rows: str) -> Work:
    """The rows of the table, written to one file by DuckDB itself."""
    import duckdb

    source = Path(folder).parent / "rows.parquet"
    return lambda: {"rows": duckdb.execute(f"COPY (FROM '{source}') TO '{folder}/copy.parquet'").fetchall()[0][0]}


def loop(folder: str, rows: str) -> Work:
    """A script: frames of pandas, one session of onnxruntime with all cores, and the predictions in one file."""
    import onnxruntime
    import pyarrow as pa
    import pyarrow.parquet as pq

    shared = Path(folder).parent
    (path,) = (shared / "onnx").glob("*.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [each.name for each in session.get_outputs()]
    output = next(name for name in outputs if "prob" in name)
    (matrix,) = [each.name for each in session.get_inputs()]

    def run() -> dict[str, Any]:
        count, writer = 0, None
        for batch in pq.ParquetFile(shared / "rows.parquet").iter_batches(CHUNK_ROWS):
            frame = batch.to_pandas()
            (probabilities,) = session.run([output], {matrix: frame[NAMES].to_numpy("float32")})
            table = pa.table({"id": frame["id"], "probability": probabilities[:, 1]})
            writer = writer or pq.ParquetWriter(f"{folder}/scores.parquet", table.schema)
            writer.write_table(table)
            count += len(frame)
        assert writer is not None
        writer.close()
        return {"rows": count}

    return run


def uncaptured(folder: str, rows: str) -> Work:
    """The stage with a model that was never deployed: nothing is captured, as in the loop."""
    return ours(folder, rows, capture="")


def canary(folder: str, rows: str) -> Work:
    """The stage with a canary that scores 20% of the keys."""
    return ours(folder, rows, canary="20")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
        print(json.dumps({}))
    else:
        perform({"ours": ours, "uncaptured": uncaptured, "canary": canary, "copy": copy, "loop": loop})
