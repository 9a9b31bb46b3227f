"""Batch predictions: types and widths of inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from echo_models import write_function

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.scoring.ml.batches import SignatureModel, key_texts
from airflow_hops.ml.performance.labels import key_of


def echo(folder: Path, dtype: Any, shape: tuple[int | None, ...]) -> SignatureModel:
    write_function(folder, lambda x: {"same": tf.identity(x)}, x=(dtype, shape))
    return SignatureModel(folder, "serving_default")


def answer(model: SignatureModel, batch: pa.RecordBatch) -> dict[str, Any]:
    return model.answer(model.arrays(batch, "file"), batch.num_rows, "file")


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1, -2], pa.int32()), pa.array(["a@b", "1"]), pa.array([b"x", b"1"]),
        pa.array(["a", "b"]).dictionary_encode(), pa.array([20_000, -1], pa.date32()),
        *(pa.array([10**9, -1], pa.timestamp(*unit)) for unit in (("s", "UTC"), ("ms",), ("ns", "Asia/Tokyo"))),
    ],
    ids=lambda keys: str(keys.type),
)  # fmt: skip
def test_labels_find_scored_rows_by_keys_of_any_type(keys: Any) -> None:
    texts = key_texts("key", pa.RecordBatch.from_arrays([keys], ["key"]), "file")
    assert key_of([texts], "rows").to_pylist() == key_of([keys], "labels").to_pylist()


@pytest.mark.parametrize("width", [2, None])
def test_integer_and_string_lists_reach_a_model_unchanged(tmp_path: Path, width: int | None) -> None:
    kinds = {"int64": pa.int64(), "string": pa.string(), "float32": pa.float32()}
    models = {name: echo(tmp_path / name, name, (None, width)) for name in kinds}

    def predict(name: str, values: list[Any], model: SignatureModel | None = None) -> Any:
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.list_(kinds[name]))], ["x"])
        return answer(model or models[name], batch)["same"].tolist()

    large = [[2**60 + 1, 2], [3, 4]]
    assert predict("int64", large) == large
    assert predict("string", [["a", None], ["b", "a"]]) == [[b"a", b""], [b"b", b"a"]]
    message = "file: column 'x' has 0 values in 1 of 2 rows, row 2 the first; expected 2 in"
    for name, value in (("int64", [1, 2]), ("string", ["a", "b"])):
        with pytest.raises(BadInput, match=message):
            predict(name, [value, None])
    with pytest.raises(BadInput, match="column 'x' is an integer and missing in 1 of 4"):
        predict("int64", [[1, 2], [None, 4]])
    if width is None:
        with pytest.raises(BadInput, match="file: column 'x' has no list in 2 rows, and the signature leaves"):
            predict("float32", [None, None])
        assert predict("float32", [[1.0], [2.0]], echo(tmp_path / "flat", "float32", (None,))) == [1, 2]
    else:
        assert np.isnan(predict("float32", [None, None])).tolist() == [[True] * 2] * 2


def test_half_float_outputs_become_columns(tmp_path: Path) -> None:
    def halves(x: Any) -> dict[str, Any]:
        two = tf.stack([x, -x], axis=1)
        return {
            f"{n}_{dtype}": tf.cast(v, dtype)
            for dtype in ("float16", "bfloat16")
            for n, v in (("one", x), ("two", two))
        }

    write_function(tmp_path / "m", halves, x=tf.float32)
    model = SignatureModel(tmp_path / "m", "serving_default")
    outputs = answer(model, pa.RecordBatch.from_arrays([pa.array([0.5, 1.25], pa.float32())], ["x"]))
    assert len(outputs) == 4 and {values.dtype for values in outputs.values()} == {np.dtype(np.float32)}
    assert outputs["two_float16"].tolist() == outputs["two_bfloat16"].tolist() == [[0.5, -0.5], [1.25, -1.25]]
    assert {np.dtype(kind) for kind, _ in model.outputs.values()} == {np.dtype(np.float32)}
