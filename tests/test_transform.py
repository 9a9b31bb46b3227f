"""The transform stage: one graph for training and serving, and what is said of preprocessing functions at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flights_examples
import pyarrow as pa
import pytest
from flights_models import FLIGHTS_CODE

from airflow_hops.contract.artifacts import RowCounts
from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.launchers.spark import SparkLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
ENTRY = "airflow_hops.runtime.transform.stage:run"


@pytest.fixture(scope="module")
def check(shared_run_step: Any, warm_launcher: Any, flights_prepared: Any, request: pytest.FixtureRequest) -> Any:
    def run(entry: str, *more: str) -> Any:
        inputs = {name.removeprefix("flights_"): request.getfixturevalue(name) for name in more}
        return shared_run_step(
            f"transform_checks:{entry}",
            inputs={"examples": flights_prepared, **inputs},
            code_paths=FLIGHTS_CODE,
            launcher=warm_launcher,
        )

    return run


@pytest.fixture(scope="module")
def trace_errors(check: Any) -> Any:
    return check("trace_errors", "flights_statistics", "flights_schema")


@pytest.fixture(scope="module")
def tasks(check: Any) -> Any:
    return check("task_summaries", "flights_statistics", "flights_schema")


@pytest.fixture(scope="module")
def input_errors(check: Any) -> Any:
    return check("input_errors", "flights_statistics", "flights_schema")


def test_transformed_examples_hold_every_row_of_every_split(flights_transformed: Any, flights_prepared: Any) -> None:
    assert flights_transformed.rows == {
        split: RowCounts(counts.rows_out, counts.rows_out) for split, counts in flights_prepared.rows.items()
    }


def test_both_formats_hold_what_the_saved_graph_makes_of_the_raw_rows(check: Any, flights_transformed: Any) -> None:
    found = check("compare", "flights_transformed")
    for split, counts in flights_transformed.rows.items():
        assert found[split]["rows"] == found[split]["records"] == counts.rows_out
        assert all(found[split]["same"].values()), (split, found[split]["same"])
        assert found[split]["columns"] == [*found["outputs"], "late"]


def test_features_json_names_dtypes_widths_and_vocabulary_sizes(shared_run_step: Any, flights_transformed: Any) -> None:
    folder = shared_run_step.store.local(flights_transformed)
    features = json.loads((folder / "features.json").read_text())
    assert list(features["features"]) == flights_transformed.properties["features"]
    assert sorted(features["features"]) == sorted(flights_examples.FEATURES)
    assert (features["label"], features["key"], features["time"]) == ("late", "flight_id", "scheduled_at")
    numeric = features["outputs"]["numeric"]
    words = ("carrier", "origin", "dest", "plane_manufacturer")
    assert (numeric["dtype"], numeric["width"]) == ("float32", 34)
    assert sorted(numeric["inputs"]) == sorted(set(flights_examples.FEATURES) - set(words))
    origin = {"dtype": "int64", "width": None, "vocabulary_size": 4, "inputs": ["origin"]}
    assert features["outputs"]["origin_id"] == origin
    constants = json.loads((folder / "constants.json").read_text())
    assert sorted(constants["origin"]["vocabulary"]) == ["EWR", "JFK", "LGA"]


def test_served_model_equals_transform_and_model_one_after_the_other(check: Any) -> None:
    found = check("serve_like_the_parts", "flights_transformed")
    assert found["difference"] < 1e-6 and found["spread"] > 1e-3
    assert found["shape"] == [400]
    assert found["inputs"]["carrier"] == "string" and found["inputs"]["weekday"] == "int64"
    assert "the model wants the inputs 'unheard_of', which are not among the transform's outputs" in found["error"]
    assert found["missing_values"] > 0 and found["examples_equal"]
    assert "weekday" in found["missing_integer"] and "required but could not be found" in found["missing_integer"]


def test_a_served_model_takes_what_it_uses_and_what_it_is_told_to_take(check: Any) -> None:
    found = check("serve_like_the_parts", "flights_transformed")
    # The flights' time is no input of what is computed of them.
    assert sorted(found["inputs"]) == sorted(flights_examples.FEATURES)
    assert found["one"] == ["origin"] and found["extra"] == ["origin", "scheduled_at"]
    assert sorted(found["old"]) == sorted([*flights_examples.FEATURES, "scheduled_at"])
    assert found["same answers"]


def test_constants_are_those_of_the_training_split(check: Any, flights_raw: Path) -> None:
    found = check("constants", "flights_statistics")
    winter = flights_examples.months(flights_raw, 1, 3)
    train = winter[winter.index % 4 == 0]
    distance = train["distance"]
    assert found["rows"] == len(train)
    assert found["mean"] == pytest.approx(distance.mean()) and found["std_dev"] == pytest.approx(distance.std(ddof=0))
    assert (found["minimum"], found["maximum"]) == (distance.min(), distance.max())
    assert found["missing"] == pytest.approx(train["temp"].isna().mean())
    below = [float((distance <= boundary).mean()) for boundary in found["quartiles"]]
    assert below == pytest.approx([0.25, 0.5, 0.75], abs=0.06)
    counts = train["carrier"].value_counts()
    assert found["carrier"] == list(counts.index[:2])
    assert found["frequent"] == list(counts.index[counts >= 1000])
    assert found["origin"] == list(train["origin"].value_counts().index)
    assert found["used"]["distance"]["mean"] == found["mean"]


def test_an_unknown_feature_or_figure_is_named_with_what_there_is(check: Any) -> None:
    errors = check("constants", "flights_statistics")["errors"]
    assert "there is no feature 'arr_delay'" in errors["unknown"] and "there are carrier, dest" in errors["unknown"]
    assert "feature 'carrier' is not numeric" in errors["string"] and "vocabulary()" in errors["string"]
    assert "vocabulary('distance')" in errors["number"] and "FLOAT" in errors["number"]
    assert errors["quantiles"] == "quantiles('distance', 1): expected at least 2 parts"


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
)  # fmt: skip
def test_a_function_at_fault_is_refused_when_it_is_traced(trace_errors: Any, function: str, words: list[str]) -> None:
    for word in words:
        assert word in trace_errors[function]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("other_rows", ["output 'x' has shape [7] for a batch of", "expected ["]),
        ("width_of_the_data", ["output 'x' has shape [", ", 7]", "its width must not depend on the batch"]),
        ("width_in_another_batch", ["output 'x' has shape [batch, 1] in one batch and [batch, 4] in another"]),
        ("mean_of_the_batch", ["output 'x' of a row depends on the other rows of its batch", "constants"]),
        ("fails_on_values", ["the transform graph fails on a batch of", "too far"]),
        ("null_integer", ["column 'weekday' is an integer and missing in 1 of", "cast it to double in prepare()"]),
        ("corrupt", ["part-00000.parquet: "]),
    ],
)
def test_a_function_or_a_row_at_fault_is_found_in_the_data(tasks: Any, case: str, words: list[str]) -> None:
    for word in words:
        assert word in tasks[case]["error"]
    assert tasks[case]["written"] == []


def test_nan_in_an_output_is_counted(tasks: Any) -> None:
    found = tasks["keeps_nan"]
    assert found["error"] is None and found["nan_temp"] > 0
    assert found["not_finite"] == {"x": found["nan_temp"]}


def test_a_task_writes_both_formats_under_their_names(tasks: Any) -> None:
    assert tasks["right"]["error"] is None
    assert tasks["right"]["written"] == ["part-00000.parquet", "part-00000.tfrecord.gz"]
    assert tasks["right"]["widths"] == {"numeric": 5, "origin_id": None, "when": None}


@pytest.fixture
def transform(shared_run_step: Any, runtime: Path, flights_statistics: Any, flights_schema: Any) -> Any:
    """Runs the stage on Spark; a failure must leave no artifact."""

    def run(examples: Any, preprocess: str, **params: Any) -> Any:
        try:
            return shared_run_step(
                ENTRY,
                params={"preprocess": preprocess, **params},
                inputs={"examples": examples, "statistics": flights_statistics, "schema": flights_schema},
                kind="transformed_examples",
                code_paths=FLIGHTS_CODE,
                launcher=SparkLauncher(runtime, "spark_local"),
            )
        except StepFailed:
            folder = Path(shared_run_step.last_uri.removeprefix("file://"))
            assert not folder.exists() and not list(folder.parent.glob("*staging*"))
            raise

    return run


@pytest.mark.parametrize(
    ("case", "preprocess", "expected"),
    [
        (
            "null integer",
            "flights.features:preprocess",
            r"split 'eval' .*column 'weekday' is an integer and missing in 3 of 50",
        ),
        (
            "one width in train, another in eval",
            "preprocess_functions:width_of_the_data",
            r"output 'x' has shape \[batch, 3\] in one batch and \[batch, 5\] in another",
        ),
    ],
)
def test_bad_data_fails_the_step_with_its_own_sentence_and_leaves_no_artifact(
    transform: Any, shared_run_step: Any, flights_raw: Path, case: str, preprocess: str, expected: str
) -> None:
    table = flights_examples.to_arrow(flights_examples.months(flights_raw, 1, 1).head(50))
    index = table.schema.get_field_index("weekday")

    def weekdays(values: list[int | None]) -> pa.Table:
        return table.set_column(index, "weekday", pa.array(values, pa.int64()))

    splits = {"train": weekdays([2] * 50), "eval": weekdays([4] * 50 if "width" in case else [None] * 3 + [1] * 47)}
    examples = flights_examples.write_examples(shared_run_step.store, splits, run_id=case.replace(" ", "-"))
    with pytest.raises(StepFailed, match=expected) as failed:
        transform(examples, preprocess)
    assert not failed.value.retryable


def test_an_extra_input_that_there_is_not_is_named(transform: Any, flights_prepared: Any) -> None:
    with pytest.raises(
        StepFailed, match=r"extra_inputs names 'arr_delay', which is neither a raw feature nor the time"
    ):
        transform(flights_prepared, "flights.features:preprocess", extra_inputs=["arr_delay"])


def test_a_function_that_raises_fails_the_step_with_its_file_and_line(transform: Any, flights_prepared: Any) -> None:
    with pytest.raises(StepFailed, match=r"raised NameError at .*preprocess_functions.py, line \d+") as failed:
        transform(flights_prepared, "preprocess_functions:raises")
    assert not failed.value.retryable


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("column", "column.parquet: there is no column 'visib', which the schema has as float32; the columns are "),
        ("type", "type.parquet: column 'weekday' is string, but int64 in the schema; cast it in prepare()"),
        ("label", "label.parquet: there is no column 'late'"),
        ("damaged", "damaged.parquet: cannot be read"),
        ("name", "output 'late' has the name of the label"),
    ],
)
def test_examples_that_do_not_fit_the_schema_are_named_before_spark_runs(
    input_errors: Any, case: str, words: str
) -> None:
    assert words in input_errors[case]
