"""Inputs of models' requests, read from their files: types and shapes, and which differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from airflow_hops.ml.model_server.request_inputs import other_types, request_inputs


def saved_model(folder: Path, **inputs: Any) -> Path:
    module = tf.Module()
    specs = [tf.TensorSpec(shape, kind, name) for name, (kind, shape) in inputs.items()]
    module.serve = tf.function(lambda *columns: {"probability": tf.zeros(3)}, input_signature=specs)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return folder


def described(folder: Path, *columns: dict[str, Any]) -> Path:
    """A folder of a graph, of which only the signature file is read."""
    folder.mkdir()
    (folder / "signature.json").write_text(json.dumps({"columns": columns}))
    return folder


@pytest.mark.parametrize(
    ("champion", "candidate", "words"),
    [
        ((tf.float32, [None]), (tf.float32, [None]), ""),
        ((tf.float32, [None, 4]), (tf.float32, [None, None]), ""),
        ((tf.float32, [None]), (tf.float32, None), ""),
        ((tf.float32, [None]), (tf.float64, [None]), "takes 'a' as double [?] and not float [?]"),
        ((tf.int64, [None]), (tf.int32, [None]), "takes 'a' as int32 [?] and not int64 [?]"),
        ((tf.string, [None]), (tf.int64, [None]), "takes 'a' as int64 [?] and not string [?]"),
        ((tf.float32, [None, 4]), (tf.float32, [None, 5]), "takes 'a' as float [?, 5] and not float [?, 4]"),
        ((tf.float32, [None, None]), (tf.float32, [None, 5]), "takes 'a' as float [?, 5] and not float [?, ?]"),
        ((tf.float32, [None, 1]), (tf.float32, [None]), "takes 'a' as float [?] and not float [?, 1]"),
    ],
)
def test_input_of_another_type_or_width_differs(champion: Any, candidate: Any, words: str, tmp_path: Path) -> None:
    folders = (saved_model(tmp_path / "champion", a=champion), saved_model(tmp_path / "candidate", a=candidate))
    assert other_types(*map(request_inputs, folders)) == ([words] if words else [])


def test_formats_are_compared_with_each_other(tmp_path: Path) -> None:
    before = saved_model(tmp_path / "before", size=(tf.float32, [None, 1]), place=(tf.float32, [None, 2]))
    place = {"name": "place", "type": "float", "width": 2}
    same = described(tmp_path / "same", {"name": "size", "type": "float"}, place)
    assert other_types(request_inputs(before), request_inputs(same)) == []
    wider = described(tmp_path / "wider", {"name": "size", "type": "string"}, {**place, "width": 3})
    assert other_types(request_inputs(before), request_inputs(wider)) == [
        "takes 'place' as float [?, 3] and not float [?, 2]",
        "takes 'size' as string [?] and not float [?, 1]",
    ]


def test_model_whose_inputs_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    before = saved_model(tmp_path / "before", a=(tf.float32, [None]))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    assert request_inputs(damaged) is None
    (damaged / "saved_model.pb").write_bytes(b"no protocol buffer")
    assert request_inputs(damaged) is None
    assert other_types(request_inputs(before), request_inputs(damaged)) == []
