"""Inputs of served models by the names of columns, whatever these are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_hops.ml.features.signature_inputs import LoadedSignature, argument_names, name_inputs

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
    loaded = LoadedSignature(path, tf.saved_model.load(str(path)), SIGNATURE)
    ours = loaded({name: tf.zeros(1) for name in loaded.inputs})
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definition = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(path)).signature_def[SIGNATURE]
        feeds = {info.name: [0.0] for info in definition.inputs.values()}
        served = session.run({name: info.name for name, info in definition.outputs.items()}, feeds)
    assert sorted(loaded.inputs) == sorted(definition.inputs) == sorted(AWKWARD)
    for result in (ours, served):
        assert {name: float(values[0]) for name, values in result.items()} == {
            n: float(i) for i, n in enumerate(AWKWARD)
        }
    plain = ["a", "a_b", "Name", "args", "inputs", "signature", "column_3"]
    assert {name for name, argument in arguments.items() if name == argument} == set(plain)
    assert len({argument.lower() for argument in arguments.values()}) == len(AWKWARD)
