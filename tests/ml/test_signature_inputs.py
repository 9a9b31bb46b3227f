"""Inputs of served models by the names of columns, whatever these are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from echo_models import write_function

from airflow_hops.ml.features.signature_inputs import argument_names, load_signature, name_inputs
from airflow_hops.ml.model_server.request_inputs import other_types, request_inputs

SIGNATURE = "serving_default"

AWKWARD = [
    "mean radius", "a", "a.b", "a/b", "a_b", "a b", "Größe", "日本", "q\"uote's", "`", "1st", "x,y", "$", "^x", "x:0",
    "Name", "name", "NAME", "class", "self", "_u", "args", "inputs", "signature", "column_3", " lead", "trail ",
    "tab\t", "new\nline", "a\\b", "{}",
]  # fmt: skip


def test_model_inputs_have_column_names_in_server_and_python(tmp_path: Path) -> None:
    """Each input has its own number added: by TensorFlow Serving's loader, and by ours."""
    import tensorflow as tf

    arguments = argument_names(AWKWARD)
    module, path = tf.Module(), tmp_path / "saved_model"

    def add(**tensors: Any) -> dict[str, Any]:
        return {name: tensors[arguments[name]] + number for number, name in enumerate(AWKWARD)}

    module.add = tf.function(add, autograph=False).get_concrete_function(
        **{argument: tf.TensorSpec([None], "float32", name=argument) for argument in arguments.values()}
    )
    tf.saved_model.save(module, str(path), signatures={SIGNATURE: module.add})
    name_inputs(path, SIGNATURE, arguments)
    ours = load_signature(path, tf.saved_model.load(str(path)), SIGNATURE)({name: tf.zeros(1) for name in AWKWARD})
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definition = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(path)).signature_def[SIGNATURE]
        feeds = {info.name: [0.0] for info in definition.inputs.values()}
        served = session.run({name: info.name for name, info in definition.outputs.items()}, feeds)
    assert sorted(definition.inputs) == sorted(AWKWARD)
    for result in (ours, served):
        assert {name: float(values[0]) for name, values in result.items()} == {
            n: float(i) for i, n in enumerate(AWKWARD)
        }
    plain = ["a", "a_b", "Name", "args", "inputs", "signature", "column_3"]
    assert {name for name, argument in arguments.items() if name == argument} == set(plain)
    assert len({argument.lower() for argument in arguments.values()}) == len(AWKWARD)


def saved_model(folder: Path, **inputs: Any) -> Path:
    return write_function(folder, lambda *columns: {"probability": tf.zeros(3)}, **inputs)


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
    base = saved_model(tmp_path / "before", size=(tf.float32, [None, 1]), place=(tf.float32, [None, 2]))
    place = {"name": "place", "type": "float", "width": 2}
    same = described(tmp_path / "same", {"name": "size", "type": "float"}, place)
    assert other_types(request_inputs(base), request_inputs(same)) == []
    wider = described(tmp_path / "wider", {"name": "size", "type": "string"}, {**place, "width": 3})
    assert other_types(request_inputs(base), request_inputs(wider)) == [
        "takes 'place' as float [?, 3] and not float [?, 2]",
        "takes 'size' as string [?] and not float [?, 1]",
    ]


def test_model_whose_inputs_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    base = saved_model(tmp_path / "before", a=(tf.float32, [None]))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    assert request_inputs(damaged) is None
    (damaged / "saved_model.pb").write_bytes(b"no protocol buffer")
    assert request_inputs(damaged) is None
    assert other_types(request_inputs(base), request_inputs(damaged)) == []
