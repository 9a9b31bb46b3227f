"""Looks at transforms with TensorFlow, inside a step, and returns what it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import preprocess_functions
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.artifacts import Artifact, BadInput
from airflow_hops.data.constants import Constants
from airflow_hops.data.feature_specs import FeatureSpecs, read_raw_features
from airflow_hops.data.raw_features import example_files, read_rows
from airflow_hops.processes.tensorflow_graphs import import_tensorflow
from airflow_hops.runtime.step.context import StepContext
from airflow_hops.runtime.transform import batches as transform_batches
from airflow_hops.runtime.transform.batches import TransformPlan, plan_tasks, transform_task
from airflow_hops.runtime.transform.graph import export_serving_model, load_transform, trace_transform
from airflow_hops.runtime.transform.stage import transform_examples


def trace_errors(context: StepContext) -> dict[str, str]:
    """What is said of each function that cannot be traced."""
    found = {}
    for function in preprocess_functions.TRACE_ERRORS:
        try:
            trace_transform(function, _inputs(context), _constants(context), name=function.__name__)
            found[function.__name__] = "no error"
        except BadInput as error:
            found[function.__name__] = str(error)
    return found


def task_summaries(context: StepContext) -> dict[str, Any]:
    """What a Spark task says of functions that go wrong on data, and of data that goes wrong."""
    rows = pq.read_table(example_files(context.local("examples"), "eval")[0])
    weekdays = rows.column("weekday").to_numpy()
    by_weekday = rows.take(pa.array(np.argsort(weekdays, kind="stable")))
    mondays = pa.array(weekdays == 0)
    with_null = rows.set_column(rows.schema.get_field_index("weekday"), "weekday", pa.array([None, *weekdays[1:]]))
    cases = {
        "other_rows": ("other_rows", [rows]),
        "width_of_the_data": ("width_of_the_data", [by_weekday]),
        "width_in_another_batch": ("width_of_the_data", [rows.filter(mondays), rows.filter(pa.array(weekdays == 3))]),
        "mean_of_the_batch": ("mean_of_the_batch", [rows]),
        "fails_on_values": ("fails_on_values", [rows]),
        "keeps_nan": ("keeps_nan", [rows]),
        "null_integer": ("identity", [with_null]),
        "corrupt": ("identity", [rows]),
        "right": ("right", [rows]),
    }
    found = {}
    for name, (function, tables) in cases.items():
        folder = context.scratch / name
        (folder / "data").mkdir(parents=True)
        path = folder / "data" / "part-00000.parquet"
        with pq.ParquetWriter(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
        if name == "corrupt":
            content = bytearray(path.read_bytes())
            half = len(content) // 2
            content[4:half] = bytes(half - 4)  # the footer stays whole
            path.write_bytes(content)
        traced = trace_transform(getattr(preprocess_functions, function), _inputs(context), _constants(context))
        traced.save(folder / "graph")
        plan = TransformPlan(str(folder / "graph"), str(folder / "out"), _inputs(context), traced.outputs, "late")
        transform_batches.BATCH_ROWS = tables[0].num_rows  # so that each table is a batch of its own
        summaries = [json.loads(transform_task(plan, task)) for task in plan_tasks([("data", path)])]
        written = sorted(p.name for p in (folder / "out").rglob("*") if p.is_file())
        found[name] = {**summaries[0], "written": written, "nan_temp": rows.column("temp").null_count}
    return found


def input_errors(context: StepContext) -> dict[str, str]:
    """What is said of examples that do not fit the schema, before Spark has anything to do."""
    rows = pq.read_table(example_files(context.local("examples"), "eval")[0]).slice(0, 40)
    weekday = rows.schema.get_field_index("weekday")
    cases = {
        "column": ("identity", rows.drop(["visib"])),
        "type": ("identity", rows.set_column(weekday, "weekday", pa.array(["Monday"] * len(rows)))),
        "label": ("identity", rows.drop(["late"])),
        "damaged": ("identity", rows),
        "name": ("returns_the_label", rows),
    }
    found = {}
    for name, (function, table) in cases.items():
        path = context.scratch / f"{name}.parquet"
        pq.write_table(table, path)
        if name == "damaged":
            path.write_bytes(path.read_bytes()[:-100])
        target = context.scratch / f"{name}-out"
        target.mkdir()
        specs = FeatureSpecs(_raw_features(context), "late", "flight_id", "scheduled_at", {})
        try:
            preprocess = getattr(preprocess_functions, function)
            transform_examples(preprocess, {"train": [path]}, target, specs, _constants(context), None)
        except BadInput as error:
            found[name] = str(error)
    return found


def constants(context: StepContext) -> dict[str, Any]:
    """Figures, and what is said of those that cannot be had."""
    figures = _constants(context)
    errors = {}
    for name, ask in {
        "unknown": lambda: figures.mean("arr_delay"),
        "string": lambda: figures.mean("carrier"),
        "number": lambda: figures.vocabulary("distance"),
        "quantiles": lambda: figures.quantiles("distance", 1),
    }.items():
        try:
            ask()
        except BadInput as error:
            errors[name] = str(error)
    return {
        "rows": figures.row_count(),
        "mean": figures.mean("distance"),
        "std_dev": figures.std_dev("distance"),
        "minimum": figures.minimum("distance"),
        "maximum": figures.maximum("distance"),
        "median": figures.median("distance"),
        "missing": figures.missing_fraction("temp"),
        "quartiles": figures.quantiles("distance", 4),
        "origin": figures.vocabulary("origin").values,
        "carrier": figures.vocabulary("carrier", top_k=2).values,
        "frequent": figures.vocabulary("carrier", min_frequency=1000).values,
        "errors": errors,
        "used": figures.used,
    }


def compare(context: StepContext) -> dict[str, Any]:
    """Reads transformed examples in both formats and runs the saved graph over the raw rows again."""
    tf = import_tensorflow()
    folder = context.local("transformed")
    specs = FeatureSpecs.read(folder / "features.json")
    transform = load_transform(folder / "transform_graph")
    found: dict[str, Any] = {"outputs": {name: spec.to_dict() for name, spec in specs.outputs.items()}}
    for split in ("train", "eval", "newest"):
        table = pa.concat_tables([pq.read_table(path) for path in sorted((folder / split).glob("*.parquet"))])
        raw = [(arrays, batch) for arrays, batch in read_rows(
            example_files(context.local("examples"), split), specs.inputs, others=["late"], batch_rows=500
        )]  # fmt: skip
        expected = [transform(**{name: tf.constant(v) for name, v in arrays.items()}) for arrays, _ in raw]
        same = {}
        for name, spec in specs.outputs.items():
            values = np.concatenate([outputs[name].numpy() for outputs in expected])
            same[name] = bool(np.allclose(_column(table, name, spec.width), values, rtol=1e-5, atol=1e-6))
        same["late"] = table.column("late").to_pylist() == [
            label for _, batch in raw for label in batch.column(batch.schema.get_field_index("late")).to_pylist()
        ]
        files = sorted(str(path) for path in (folder / split).glob("*.tfrecord.gz"))
        description = {
            name: tf.io.FixedLenFeature([spec.width or 1], tf.int64 if spec.dtype == "int64" else tf.float32)
            for name, spec in specs.outputs.items()
        }
        description["late"] = tf.io.FixedLenFeature([1], tf.int64)
        records = [r.numpy() for r in tf.data.TFRecordDataset(files, compression_type="GZIP")]
        parsed = tf.io.parse_example(records, description)
        for name, spec in specs.outputs.items():
            values = parsed[name].numpy() if spec.width else parsed[name].numpy()[:, 0]
            same[f"tfrecord {name}"] = bool(np.array_equal(values, _column(table, name, spec.width)))
        found[split] = {"rows": table.num_rows, "records": len(records), "same": same, "columns": table.column_names}
    return found


def serve_like_the_parts(context: StepContext) -> dict[str, Any]:
    """Exports a Keras model with the graph, and compares it with transform and model applied one after the other."""
    tf = import_tensorflow()
    import keras

    folder = context.local("transformed")
    specs = FeatureSpecs.read(folder / "features.json")
    inputs = {n: keras.Input((s.width,) if s.width else (), dtype=s.dtype, name=n) for n, s in specs.outputs.items()}
    embedded = [
        keras.layers.Embedding(s.vocabulary_size, 3)(inputs[n]) for n, s in specs.outputs.items() if s.vocabulary_size
    ]
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([inputs["numeric"], *embedded]))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    path = context.scratch / "saved_model"
    export_serving_model(path, folder / "transform_graph", model, folder / "features.json")
    transform = load_transform(folder / "transform_graph")
    arrays, _ = next(read_rows(example_files(context.local("examples"), "eval"), specs.inputs, batch_rows=400))
    tensors = {name: tf.constant(values) for name, values in arrays.items()}
    loaded = tf.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]
    taken = {n: s.dtype.name for n, s in signature.structured_input_signature[1].items()}
    served = signature(**{name: tensors[name] for name in taken})["probability"].numpy()
    records = tf.constant([_example(arrays, row) for row in range(len(served))])
    of_examples = loaded.signatures["serving_examples"](examples=records)["probability"].numpy()
    without = {name: values for name, values in arrays.items() if name != "weekday"}
    try:
        loaded.signatures["serving_examples"](examples=tf.constant([_example(without, 0)]))
        missing_integer = ""
    except tf.errors.InvalidArgumentError as problem:
        missing_integer = str(problem)
    apart = model(transform(**tensors)).numpy()[:, 0]
    try:
        other = keras.Model({"unheard_of": (x := keras.Input((), name="unheard_of"))}, x)
        export_serving_model(context.scratch / "other", folder / "transform_graph", other, folder / "features.json")
        error = ""
    except BadInput as problem:
        error = str(problem)
    return {
        "difference": float(np.abs(served - apart).max()),
        "spread": float(served.std()),
        "shape": list(served.shape),
        "inputs": taken,
        **_inputs_of_one_output(context, folder, tensors),
        "error": error,
        "examples_equal": bool(np.array_equal(served, of_examples)),
        "missing_values": sum(int(np.isnan(v).sum()) if v.dtype.kind == "f" else 0 for v in arrays.values()),
        "missing_integer": missing_integer,
    }


def _inputs_of_one_output(context: StepContext, folder: Path, tensors: dict[str, Any]) -> dict[str, Any]:
    """What a model of the airport's id alone takes: as it is, with an extra input, and of a transform of long ago."""
    import keras

    tf = import_tensorflow()
    text = (folder / "features.json").read_text()
    extra, old = json.loads(text), json.loads(text)
    extra["extra_inputs"] = ["scheduled_at"]
    for output in old["outputs"].values():
        del output["inputs"]
    airport = keras.Input((), dtype="int64", name="origin_id")
    size = FeatureSpecs.read(folder / "features.json").outputs["origin_id"].vocabulary_size
    model = keras.Model(
        {"origin_id": airport}, keras.layers.Embedding(size, 1, embeddings_initializer="normal")(airport)
    )
    found, answers = {}, []
    for name, value in (("one", json.loads(text)), ("extra", extra), ("old", old)):
        features_json, path = context.scratch / f"{name}.json", context.scratch / name
        features_json.write_text(json.dumps(value))
        found[name] = list(export_serving_model(path, folder / "transform_graph", model, features_json))
        signature = tf.saved_model.load(str(path)).signatures["serving_default"]
        assert sorted(found[name]) == sorted(signature.structured_input_signature[1])
        answers.append(signature(**{n: tensors[n] for n in found[name]})["probability"].numpy())
    return {**found, "same answers": all(np.array_equal(answers[0], other) for other in answers)}


def _example(arrays: dict[str, Any], row: int) -> bytes:
    """A row as a serialized tf.Example, without what is missing."""
    tf = import_tensorflow()
    example = tf.train.Example()
    for name, values in arrays.items():
        value, feature = values[row], example.features.feature
        if values.dtype.kind == "i":
            feature[name].int64_list.value.append(int(value))
        elif values.dtype.kind == "f":
            if not np.isnan(value):
                feature[name].float_list.value.append(float(value))
        elif value:
            feature[name].bytes_list.value.append(value)
    return bytes(example.SerializeToString())


def write_model(context: StepContext, *, steps: int, flaw: str = "") -> Artifact:
    """A logistic regression on the transformed train split, exported for serving.

    Args:
        context: The step's context; input ``transformed``.
        steps: Steps of gradient descent; 0 leaves the model at chance.
        flaw: "nan" for a model that answers NaN, "range" for one that answers 2.
    """
    tf = import_tensorflow()
    folder = context.local("transformed")
    table = pa.concat_tables([pq.read_table(path) for path in sorted((folder / "train").glob("*.parquet"))])
    x = tf.constant(_column(table, "numeric", 1), tf.float32)
    y = tf.constant(table.column("late").to_numpy()[:, None], tf.float32)
    model = Logistic(x.shape[1], flaw)
    for _ in range(steps):
        error = model({"numeric": x}) - y
        model.weights.assign_sub(2.0 * tf.matmul(x, error, transpose_a=True) / len(x))
        model.bias.assign_sub(2.0 * tf.reduce_mean(error, axis=0))
    with context.output() as writer:
        export_serving_model(writer.path / "saved_model", folder / "transform_graph", model, folder / "features.json")
        return writer.commit(properties={"statistics": None, "schema": None, "synchronized": True})


class Logistic(import_tensorflow().Module):  # type: ignore[misc]
    """A logistic regression on the output ``numeric``."""

    def __init__(self, width: int, flaw: str) -> None:
        super().__init__()
        tf = import_tensorflow()
        self.weights = tf.Variable(tf.random.stateless_normal([width, 1], [1, 2]) * 1e-3)
        self.bias = tf.Variable(tf.zeros([1]))
        self.flaw = flaw

    def __call__(self, inputs: dict[str, Any]) -> Any:
        tf = import_tensorflow()
        probability = tf.sigmoid(tf.matmul(inputs["numeric"], self.weights) + self.bias)
        return {"nan": probability * float("nan"), "range": probability + 2.0}.get(self.flaw, probability)


def _raw_features(context: StepContext) -> dict[str, str]:
    path = context.local("schema") / "schema.pbtxt"
    return read_raw_features(path, label="late", key="flight_id", time="scheduled_at")


def _inputs(context: StepContext) -> dict[str, str]:
    return FeatureSpecs(_raw_features(context), "late", "flight_id", "scheduled_at", {}).inputs


def _constants(context: StepContext) -> Constants:
    return Constants.read(Path(context.local("statistics")) / "train" / "FeatureStats.pb")


def _column(table: Any, name: str, width: int | None) -> Any:
    column = table.column(name).combine_chunks()
    if width is None:
        return column.to_numpy()
    return column.flatten().to_numpy().reshape(len(column), -1)
