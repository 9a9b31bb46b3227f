"""The transform stage: its graph over all rows, and what is said of functions and of data at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import preprocess_functions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.preprocessing import z_score
from airflow_hops.ml.features.raw_features import read_rows
from airflow_hops.ml.features.transform_graph import load_transform, trace_transform
from airflow_hops.ml.readers.artifact_files import OutputFolder, example_files
from airflow_hops.ml.spark import pools
from airflow_hops.ml.spark.pools import Pool, SplitSummary
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.transform import batches, stage
from airflow_hops.ml.transform.batches import TransformPlan, plan_parts, transform_part
from tests import flights_examples
from tests.ml.world import Flights

Transform = Callable[..., Artifact]


@pytest.fixture(scope="module")
def transform(spark: Any, flights: Flights) -> Transform:
    inputs = {"statistics": flights.statistics, "schema": flights.schema}
    return lambda examples, preprocess, **params: flights.run(
        stage, examples=examples, preprocess=preprocess, **inputs, **params
    )


@pytest.fixture(scope="module")
def transformed(transform: Transform, flights: Flights) -> Artifact:
    transformed = transform(flights.prepared, "flights.features:preprocess")
    assert transformed.rows == {
        split: RowCounts(counts.rows_out, counts.rows_out) for split, counts in flights.prepared.rows.items()
    }
    return transformed


@pytest.mark.parametrize("split", ["train", "newest"])
def test_both_formats_match_the_saved_graph_on_raw_rows(flights: Flights, transformed: Artifact, split: str) -> None:
    folder = flights.store.local(transformed)
    specs = FeatureSpecs.read(folder / "features.json")
    transform = load_transform(folder / "transform_graph")
    files = example_files(flights.store.local(flights.prepared), split)
    raw = list(read_rows(files, specs.inputs, others=["late"], batch_rows=500))
    made = [transform(**arrays) for arrays, _ in raw]
    table = flights.rows(transformed, split)
    assert table.column_names == [*specs.outputs, "late"]
    assert table["late"].to_pylist() == [label for _, batch in raw for label in batch.column("late").to_pylist()]

    records = sorted(str(path) for path in (folder / split).glob("*.tfrecord.gz"))
    description = {
        name: tf.io.FixedLenFeature([spec.width or 1], tf.int64 if spec.dtype == "int64" else tf.float32)
        for name, spec in specs.outputs.items()
    }
    description["late"] = tf.io.FixedLenFeature([1], tf.int64)
    dataset = tf.data.TFRecordDataset(records, compression_type="GZIP").batch(100_000)
    (parsed,) = [tf.io.parse_example(batch, description) for batch in dataset]
    assert parsed["late"].numpy()[:, 0].tolist() == table["late"].to_pylist()
    for name, spec in specs.outputs.items():
        column = table[name].combine_chunks()
        rows = column.to_numpy() if spec.width is None else column.flatten().to_numpy().reshape(len(column), -1)
        np.testing.assert_allclose(rows, np.concatenate([outputs[name] for outputs in made]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(parsed[name].numpy().reshape(rows.shape), rows)


def test_features_json_names_dtypes_widths_and_vocabulary_sizes(flights: Flights, transformed: Artifact) -> None:
    features = flights.read(transformed, "features.json")
    assert list(features["features"]) == transformed.properties["features"]
    assert sorted(features["features"]) == sorted(flights_examples.FEATURES)
    assert (features["label"], features["key"], features["time"]) == ("late", "flight_id", "scheduled_at")
    numeric = features["outputs"]["numeric"]
    words = ("carrier", "origin", "dest", "plane_manufacturer")
    assert (numeric["dtype"], numeric["width"]) == ("float32", 34)
    assert sorted(numeric["inputs"]) == sorted(set(flights_examples.FEATURES) - set(words))
    origin = {"dtype": "int64", "width": None, "vocabulary_size": 4, "inputs": ["origin"]}
    assert features["outputs"]["origin_id"] == origin
    constants = flights.read(transformed, "constants.json")
    assert sorted(constants["origin"]["vocabulary"]) == ["EWR", "JFK", "LGA"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", ["'raises' raised NameError at", "preprocess_functions.py, line ", "/ undefined_name"]),
        ("asks_for_an_unknown_feature", ["there is no raw feature 'arr_delay'; there are carrier, "]),
        ("asks_for_an_unknown_constant", ["there is no feature 'arr_delay'", "preprocess_functions.py, line "]),
        ("returns_no_dict", ["returned SymbolicTensor, expected a dict of tensors"]),
        ("returns_a_number", ["output 'x' is a float, expected a dense tensor"]),
        ("returns_a_boolean", ["output 'x' is bool, expected one of float32", "tf.cast"]),
        ("returns_a_scalar", ["output 'x' has shape ()", "expected [batch] or [batch, width]"]),
        ("returns_one_row", ["output 'x' has shape (1,)", "its first dimension is 1, not the batch"]),
        ("returns_a_cube", ["output 'x' has shape (None, 1, 1)", "expected [batch] or [batch, width]"]),
    ],
)
def test_faulty_function_is_refused_during_tracing(
    specs: FeatureSpecs, constants: Constants, function: str, words: list[str]
) -> None:
    with pytest.raises(BadInput) as refused:
        trace_transform(getattr(preprocess_functions, function), specs.inputs, constants, name=function)
    for word in words:
        assert word in str(refused.value)


@pytest.fixture(scope="module")
def rows(flights: Flights) -> pa.Table:
    """The split eval."""
    return flights.rows(flights.prepared, "eval")


Task = Callable[..., SplitSummary]


@pytest.fixture
def run_task(specs: FeatureSpecs, constants: Constants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Does what a Spark task does, with a file of which each table is a batch."""

    def run(function: str, *tables: pa.Table, damage: Callable[[Path], None] = lambda path: None) -> SplitSummary:
        path = tmp_path / "data" / "part-00000.parquet"
        path.parent.mkdir()
        with pq.ParquetWriter(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
        damage(path)
        traced = trace_transform(getattr(preprocess_functions, function), specs.inputs, constants)
        traced.save(tmp_path / "graph")
        graph, output = tmp_path / "graph", OutputFolder(str(tmp_path / "out"))
        plan = TransformPlan(graph, output, specs.inputs, traced.outputs, Target("late"))
        monkeypatch.setattr(batches, "BATCH_ROWS", tables[0].num_rows)
        (part,) = plan_parts([("data", path)])
        return SplitSummary(**json.loads(transform_part(plan, part)))

    return run


def written(folder: Path) -> list[str]:
    """Names of what a task has written."""
    return sorted(path.name for path in (folder / "out").rglob("*") if path.is_file())


def of_weekday(rows: pa.Table, *weekdays: int) -> list[pa.Table]:
    return [rows.filter(pa.array(rows["weekday"].to_numpy() == weekday)) for weekday in weekdays]


def without_a_weekday(rows: pa.Table) -> list[pa.Table]:
    weekdays = pa.array([None, *rows["weekday"].to_pylist()[1:]])
    return [rows.set_column(rows.schema.get_field_index("weekday"), "weekday", weekdays)]


@pytest.mark.parametrize(
    ("function", "tables", "words"),
    [
        ("other_rows", lambda rows: [rows], ["output 'x' has shape [7] for a batch of", "expected ["]),
        (
            "width_of_the_data",
            lambda rows: [rows.sort_by("weekday")],
            ["output 'x' has shape [", ", 7]", "its width must not depend on the batch"],
        ),
        (
            "width_of_the_data",
            lambda rows: of_weekday(rows, 0, 3),
            ["output 'x' has shape [batch, 1] in one batch and [batch, 4] in another"],
        ),
        (
            "mean_of_the_batch",
            lambda rows: [rows],
            ["output 'x' of a row depends on the other rows of its batch", "constants"],
        ),
        ("fails_on_values", lambda rows: [rows], ["the transform graph fails on a batch of", "too far"]),
        ("identity", without_a_weekday, ["column 'weekday' is an integer and missing in 1 of", "to double in prepare"]),
    ],
)
def test_faulty_function_or_row_is_named(
    run_task: Any, rows: pa.Table, tmp_path: Path, function: str, tables: Any, words: list[str]
) -> None:
    error = run_task(function, *tables(rows)).error
    assert [word for word in words if word not in str(error)] == []
    assert written(tmp_path) == []


def test_a_damaged_file_is_named(run_task: Any, rows: pa.Table, tmp_path: Path) -> None:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        half = len(content) // 2
        content[4:half] = bytes(half - 4)  # the footer stays whole
        path.write_bytes(content)

    assert "part-00000.parquet: " in str(run_task("identity", rows, damage=damage).error)
    assert written(tmp_path) == []


def test_a_task_writes_both_formats_and_counts_nan(run_task: Any, rows: pa.Table, tmp_path: Path) -> None:
    result = run_task("right", rows)
    missing = rows["temp"].null_count
    assert result.error is None and missing > 0
    assert written(tmp_path) == ["part-00000.parquet", "part-00000.tfrecord.gz"]
    assert result.widths == {"numeric": 5, "origin_id": None, "when": None, "x": None}
    assert result.not_finite == {"x": missing}


def test_splits_of_other_widths_and_missing_inputs_are_refused(transform: Transform, flights: Flights) -> None:
    january = flights.months(1, 1).head(50)
    splits = {"train": january.assign(weekday=2), "eval": january.assign(weekday=4)}
    examples = flights.examples(splits)
    with pytest.raises(BadInput, match="extra_inputs names 'arr_delay', which is neither a raw feature nor the time"):
        transform(examples, "flights.features:preprocess", extra_inputs=["arr_delay"])
    with pytest.raises(BadInput, match=r"output 'x' has shape \[batch, 3\] in one batch and \[batch, 5\] in another"):
        transform(examples, "preprocess_functions:width_of_the_data", run_id="widths")
    uri = flights.store.address(Producer("tests", "widths", "transformed_examples"), "transformed_examples")
    assert not list(Path(uri.removeprefix("file://")).parent.glob("*staging*"))


def test_small_batches_make_large_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "ROW_GROUP_ROWS", 100)
    with batches.ExampleWriter(tmp_path, 0) as writer:
        for number in range(5):
            writer.write({"id": np.arange(50) + 50 * number})
    file = pq.ParquetFile(tmp_path / "part-00000.parquet")
    assert [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)] == [100, 100, 50]
    assert file.read()["id"].to_pylist() == list(range(250))


def without(*names: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop(list(names))


def of_words(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("weekday")
    return table.set_column(index, "weekday", pa.array(["Monday"] * len(table)))


@pytest.mark.parametrize(
    ("function", "change", "words"),
    [
        ("identity", without("visib"), "some.parquet: there is no column 'visib', which the schema has as float32"),
        ("identity", of_words, "some.parquet: column 'weekday' is string, but int64 in the schema; cast it in prepare"),
        ("identity", without("late"), "some.parquet: there is no column 'late'"),
        ("identity", None, "some.parquet: cannot be read"),
        ("returns_the_label", lambda table: table, "output 'late' has the name of the label"),
    ],
)
def test_examples_violating_the_schema_are_named_before_spark_runs(
    specs: FeatureSpecs, constants: Constants, rows: pa.Table, tmp_path: Path, function: str, change: Any, words: str
) -> None:
    path = tmp_path / "some.parquet"
    table = rows.slice(0, 40)
    pq.write_table(change(table) if change else table, path)
    if change is None:
        path.write_bytes(path.read_bytes()[:-100])
    preprocess = getattr(preprocess_functions, function)
    pool, folder = Pool(lambda work, parts, report: pytest.fail("a part ran")), OutputFolder(str(tmp_path))
    with pytest.raises(BadInput) as refused:
        stage.transform_examples(preprocess, {"train": [path]}, tmp_path, specs, constants, pool, folder=folder)
    assert words in str(refused.value)


def test_floats_that_float32_rounds_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table({"at": [1.7e9, 1.7e9 + 60], "share": [0.1, 0.2], "late": [0, 1]})
    pq.write_table(table, tmp_path / "rows.parquet")
    constants = Constants(generate_statistics(table).datasets[0])
    specs = FeatureSpecs({"at": "float32", "share": "float32"}, "late", None, None, outputs={})
    with pytest.raises(BadInput, match="output 'late' has the name of the label"):
        stage.transform_examples(
            lambda features, constants: {"late": features["at"]},
            {"train": [tmp_path / "rows.parquet"]},
            tmp_path,
            specs,
            constants,
            Pool(lambda work, parts, report: pytest.fail("a part ran")),
            folder=OutputFolder(str(tmp_path)),
        )
    assert "feature 'at' is float32 here and in the served model, which rounds its largest values to" in caplog.text
    assert "multiples of 128; if smaller differences matter" in caplog.text and "'share'" not in caplog.text


def test_constants_come_from_the_training_split(constants: Constants, flights: Flights) -> None:
    winter = flights.months(1, 3)
    train = winter[winter.index % 4 == 0]
    distance = train["distance"]
    assert constants.row_count() == len(train)
    assert constants.mean("distance") == pytest.approx(distance.mean())
    assert constants.std_dev("distance") == pytest.approx(distance.std(ddof=0))
    assert (constants.minimum("distance"), constants.maximum("distance")) == (distance.min(), distance.max())
    assert constants.missing_fraction("temp") == pytest.approx(train["temp"].isna().mean())
    below = [float((distance <= boundary).mean()) for boundary in constants.quantiles("distance", 4)]
    assert below == pytest.approx([0.25, 0.5, 0.75], abs=0.06)
    assert float((distance <= constants.median("distance")).mean()) == pytest.approx(0.5, abs=0.06)
    counts = train["carrier"].value_counts()
    assert constants.vocabulary("carrier", top_k=2).values == tuple(counts.index[:2])
    assert constants.vocabulary("carrier", min_frequency=1000).values == tuple(counts.index[counts >= 1000])
    assert constants.vocabulary("origin").values == tuple(train["origin"].value_counts().index)
    assert constants.used["distance"]["mean"] == constants.mean("distance")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda c: c.mean("arr_delay"), "there is no feature 'arr_delay'.*there are carrier, dest"),
        (lambda c: c.mean("carrier"), r"feature 'carrier' is not numeric.*vocabulary\(\)"),
        (lambda c: c.vocabulary("distance"), r"vocabulary\('distance'\).*FLOAT"),
        (lambda c: c.quantiles("distance", 1), r"^quantiles\('distance', 1\): expected at least 2 parts$"),
    ],
)
def test_unknown_feature_or_statistic_is_named_with_existing_ones(
    constants: Constants, ask: Callable[[Constants], Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        ask(constants)


def test_statistics_placeholders_cannot_be_used_as_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["common"] * 5 + [f"{number}" * 2000 for number in range(3)] + ["rare", b"\xff\xfe", ""]
    table = pa.table({"text": pa.array([text.encode() if isinstance(text, str) else text for text in texts])})
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(generate_statistics(table).SerializeToString())
    vocabulary = Constants.read(path).vocabulary("text")
    assert vocabulary.values == ("common", "rare")
    assert vocabulary.size == 3
    assert "vocabulary('text'): 3 values are longer than 1,024 bytes and have no id" in caplog.text
    assert "vocabulary('text'): 1 values are not UTF-8 and have no id" in caplog.text
    assert Constants.read(path).vocabulary("text", top_k=2).values == ("common", "rare")
    assert Constants.read(path).vocabulary("text", min_frequency=2).values == ("common",)


def test_a_constant_has_no_deviation(tmp_path: Path) -> None:
    path = tmp_path / "FeatureStats.pb"
    path.write_bytes(generate_statistics(pa.table({"rate": [0.1] * 1000})).SerializeToString())
    constants = Constants.read(path)
    assert constants.std_dev("rate") == 0
    scores = z_score({"rate": tf.constant([0.1, np.nan, 0.2])}, "rate", constants)
    assert scores.numpy().tolist() == pytest.approx([0, 0, 0.1])
