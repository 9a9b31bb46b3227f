"""Inputs of SavedModels with arbitrary column names.

TensorFlow turns an input's name into a parameter of a Python function and an operation of the graph. TensorFlow refuses
names such as ``mean radius``, ``class``, or ``Name`` beside ``name``, or changes them. Inside the graph, such columns
have generated argument names; the signature, which clients use, has the columns' names.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.ml.readers.vectors import row_shape, split_dtype

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

_SAVED_MODEL = "saved_model.pb"
_RANDOM = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def argument_names(columns: Iterable[str]) -> dict[str, str]:
    """Returns argument names that TensorFlow accepts, by column: the column's own name if possible.

    The names differ in more than case.
    """
    columns = list(columns)
    plain = {name.lower(): name for name in reversed(columns) if _is_plain(name)}
    taken = set(plain)
    arguments = {}
    for number, column in enumerate(columns):
        argument = column
        if plain.get(column.lower()) != column:
            argument = f"column_{number}"
            while argument in taken:
                argument += "_"
            taken.add(argument)
        arguments[column] = argument
    return arguments


def argument_specs(inputs: Mapping[str, str], arguments: Mapping[str, str]) -> dict[str, object]:
    """Returns the tensor specs of a function of raw features, by argument."""
    import tensorflow as tf

    return {
        arguments[name]: tf.TensorSpec([None, *row_shape(dtype)], split_dtype(dtype)[0], name=arguments[name])
        for name, dtype in inputs.items()
    }


def remove_randomness(path: Path) -> None:
    """Makes a SavedModel depend on its contents alone.

    TensorFlow puts a random number into ``fingerprint.pb``, which loaders do not need, and into the names under which
    the look-up tables of a process are shared. Tables are named after the model instead, so that only equal ones share.
    """
    _write(path, _read(path))


def name_inputs(path: Path, signature: str, arguments: Mapping[str, str]) -> None:
    """Renames the inputs of a SavedModel's signature from names of :func:`argument_names` to the columns' names."""
    saved = _read(path)
    for meta_graph in saved.meta_graphs:
        inputs = meta_graph.signature_def[signature].inputs
        for column, argument in arguments.items():
            if argument != column and argument in inputs:
                inputs[column].CopyFrom(inputs[argument])
                del inputs[argument]
    _write(path, saved)


def load_signature(path: Path, loaded: Any, signature: str) -> Callable[[Mapping[str, object]], dict[str, tf.Tensor]]:
    """Returns a signature of a loaded SavedModel as a function of tensors by the names of its inputs.

    Args:
        path: The SavedModel's folder.
        loaded: Result of ``tf.saved_model.load``.
        signature: The name of an existing signature.
    """
    function = loaded.signatures[signature]
    inputs = _read(path).meta_graphs[0].signature_def[signature].inputs
    arguments = {name: info.name.removeprefix(f"{signature}_").partition(":")[0] for name, info in inputs.items()}

    def call(tensors: Mapping[str, object]) -> dict[str, tf.Tensor]:
        result: dict[str, tf.Tensor] = function(**{arguments[name]: value for name, value in tensors.items()})
        return result

    return call


def _is_plain(name: str) -> bool:
    return bool(_PLAIN.fullmatch(name)) and not keyword.iskeyword(name) and name != "self"


def _read(path: Path) -> SavedModel:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    return SavedModel.FromString((path / _SAVED_MODEL).read_bytes())


def _write(path: Path, saved: SavedModel) -> None:
    (path / "fingerprint.pb").unlink(missing_ok=True)
    graphs = [meta.graph_def for meta in saved.meta_graphs]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for graph in graphs for function in graph.library.function for node in function.node_def]
    tables: dict[bytes, int] = {}
    numbered = []
    for node in nodes:
        if "shared_name" in node.attr and _RANDOM.search(name := node.attr["shared_name"].s):
            numbered.append((node.attr["shared_name"], tables.setdefault(name, len(tables))))
    digest = b""
    for _ in range(2):  # the second time with the digest of the first
        for attribute, number in numbered:
            attribute.s = b"table_%d_%s" % (number, digest)
        contents = saved.SerializeToString(deterministic=True)
        digest = hashlib.sha256(contents).hexdigest().encode()
    (path / _SAVED_MODEL).write_bytes(contents)
