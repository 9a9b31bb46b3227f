"""Inputs of SavedModels by the names of columns, whatever these are.

TensorFlow makes of an input's name a parameter of a Python function and an operation of the graph, so that ``mean
radius``, ``class``, or ``Name`` beside ``name`` is refused, or comes out as another. Such a column has an argument of
our own within the graph; the signature, by which clients ask, has the column's name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_SAVED_MODEL = "saved_model.pb"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def argument_names(columns: Iterable[str]) -> dict[str, str]:
    """Returns names of columns that TensorFlow accepts as arguments of a function: their own where possible.

    Returns:
        By column, names that differ in more than case.
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


def name_inputs(path: Path, signature: str, arguments: Mapping[str, str]) -> None:
    """Gives the inputs of a SavedModel's signature the columns' names.

    Args:
        path: The SavedModel's folder.
        signature: The signature's name.
        arguments: As :func:`argument_names` gave them, by which the signature calls its inputs so far.
    """
    renamed = {argument: column for column, argument in arguments.items() if argument != column}
    if not renamed:
        return
    from tensorflow.python.saved_model import fingerprinting_utils

    saved = _read(path)
    for meta_graph in saved.meta_graphs:
        inputs = meta_graph.signature_def[signature].inputs
        for argument in renamed.keys() & inputs.keys():
            inputs[renamed[argument]].CopyFrom(inputs[argument])
            del inputs[argument]
    (path / _SAVED_MODEL).write_bytes(saved.SerializeToString(deterministic=True))
    fingerprinting_utils.write_fingerprint(str(path))


class LoadedSignature:
    """A signature of a loaded SavedModel, called by its inputs' names.

    Args:
        path: The SavedModel's folder.
        loaded: What ``tf.saved_model.load`` made of it.
        signature: The signature's name; it is there.

    Attributes:
        inputs: ``tf.TensorSpec`` by input.
        outputs: ``tf.TensorSpec`` by output.
    """

    def __init__(self, path: Path, loaded: Any, signature: str) -> None:
        self._function = loaded.signatures[signature]
        specs = dict(self._function.structured_input_signature[1])
        self._arguments = {name: name for name in specs}
        definition = _read(path).meta_graphs[0].signature_def[signature]
        for name, info in definition.inputs.items():
            argument = info.name.removeprefix(f"{signature}_").partition(":")[0]
            if name not in specs and argument in specs:
                del self._arguments[argument]
                self._arguments[name] = argument
        self.inputs: dict[str, Any] = {name: specs[argument] for name, argument in self._arguments.items()}
        self.outputs: dict[str, Any] = dict(self._function.structured_outputs)

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of tensors by input."""
        result: dict[str, Any] = self._function(**{self._arguments[name]: value for name, value in tensors.items()})
        return result


def _is_plain(name: str) -> bool:
    return bool(_PLAIN.fullmatch(name)) and not keyword.iskeyword(name) and name != "self"


def _read(path: Path) -> Any:
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString((path / _SAVED_MODEL).read_bytes())
