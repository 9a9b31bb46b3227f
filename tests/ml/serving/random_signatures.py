"""Models with random signatures, requests for them, and the answers to expect, row by row in plain NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from onnx import TensorProto, helper

from airflow_hops.core.serving_api import tensors

KINDS = ("float", "double", "int64", "int32", "bool", "string")
ONNX_TYPES = {
    "float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL, "string": TensorProto.STRING,
}  # fmt: skip
WORDS = {b"": 0.5, b"a": 1.0, b"\xc3\xa9": 2.0}
FORMATS = ("saved_model", "onnx")


@dataclass(frozen=True)
class Input:
    """An input of a model.

    Attributes:
        shape: Its declared shape, None for an unknown rank; a size of None is open.
        has_rows: Whether its first dimension is the batch; other inputs are one value for all rows.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...] | None
    has_rows: bool

    @property
    def numpy(self) -> np.dtype[Any]:
        return tensors.BY_NAME[self.kind].numpy

    @property
    def spec(self) -> tf.TensorSpec:
        return tf.TensorSpec(self.shape, tf.string if self.kind == "string" else self.numpy, self.name)

    def inner_axes(self, widest: int) -> list[int]:
        """Axes to insert, so that an input broadcasts within a row against another of the widest rank."""
        return list(range(1, 1 + widest - len(self.shape))) if self.has_rows and self.shape is not None else []


@dataclass(frozen=True)
class Model:
    """A model: the product of all inputs, each broadcast within a row; ``sums`` for the sum over each row."""

    form: str
    inputs: tuple[Input, ...]
    sums: bool
    output: str = "y"

    def row(self, values: Mapping[str, Any]) -> Any:
        """Returns the answer for one row, float32."""
        product = np.float32(1)
        for each in self.inputs:
            product = product * as_numbers(np.asarray(values[each.name], each.numpy))
        return np.float32(product.sum()) if self.sums else product

    def write(self, folder: Path) -> None:
        """Writes version 1."""
        folder = folder / "1"
        folder.mkdir(parents=True)
        {"saved_model": self._write_saved, "onnx": self._write_onnx}[self.form](folder)

    @property
    def widest(self) -> int:
        return max(len(each.shape or ()) for each in self.inputs)

    def _module(self) -> Any:
        def serve(*values: Any) -> Any:
            product = tf.constant(1.0)
            for each, value in zip(self.inputs, values, strict=True):
                if each.kind == "string":
                    number = tf.zeros_like(value, tf.float32)
                    for word, of_word in WORDS.items():
                        number = tf.where(tf.equal(value, word), of_word, number)
                else:
                    number = tf.cast(value, tf.float32)
                for _ in each.inner_axes(self.widest):
                    number = tf.expand_dims(number, 1)
                product *= number
            return {self.output: tf.reduce_sum(product, axis=tf.range(1, tf.rank(product))) if self.sums else product}

        module = tf.Module()
        module.serve = tf.function(serve, input_signature=[each.spec for each in self.inputs])
        return module

    def _write_saved(self, folder: Path) -> None:
        module = self._module()
        tf.saved_model.save(module, str(folder), {"serving_default": module.serve})

    def _write_onnx(self, folder: Path) -> None:
        product, nodes = "one", [helper.make_node("Constant", [], ["one"], value_float=1.0)]
        for index, each in enumerate(self.inputs):
            number, axes = f"number{index}", each.inner_axes(self.widest)
            if each.kind == "string":
                words = {"keys_strings": list(WORDS), "values_floats": list(WORDS.values()), "default_float": 0.0}
                nodes.append(helper.make_node("LabelEncoder", [each.name], [number], domain="ai.onnx.ml", **words))
            else:
                nodes.append(helper.make_node("Cast", [each.name], [number], to=TensorProto.FLOAT))
            if axes:
                nodes.append(helper.make_node("Constant", [], [f"axes{index}"], value_ints=axes))
                nodes.append(helper.make_node("Unsqueeze", [number, f"axes{index}"], [f"wide{index}"]))
                number = f"wide{index}"
            nodes.append(helper.make_node("Mul", [product, number], [f"product{index}"]))
            product = f"product{index}"
        if self.sums and self.widest > 1:
            nodes.append(helper.make_node("Constant", [], ["axes"], value_ints=list(range(1, self.widest))))
            nodes.append(helper.make_node("ReduceSum", [product, "axes"], ["sum"], keepdims=0))
            product = "sum"
        nodes.append(helper.make_node("Identity", [product], [self.output]))
        inputs = [helper.make_tensor_value_info(each.name, ONNX_TYPES[each.kind], each.shape) for each in self.inputs]
        graph = helper.make_graph(
            nodes, "g", inputs, [helper.make_tensor_value_info(self.output, TensorProto.FLOAT, None)]
        )
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 4)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")


def as_numbers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns what a model makes of the values of an input, float32."""
    if values.dtype == object:
        return np.vectorize(lambda word: WORDS.get(word, 0.0), otypes=[np.float32])(values)
    return values.astype(np.float32)


def random_model(draw: random.Random, form: str) -> Model:
    has_unknown_rank = draw.random() < 0.15
    batch = draw.choice([None, None, None, 1, 2])
    inputs = []
    for index in range(draw.choice([1, 2, 2, 3])):
        kind = draw.choice(KINDS)
        if has_unknown_rank:
            inputs.append(Input(f"x{index}", kind, None, True))
            continue
        # Sizes of 1 and of 2 or an open one broadcast.
        shape = tuple(draw.choice([None, 1, 2, 2]) for _ in range(draw.choice([0, 1, 1, 2])))
        has_rows = index == 0 or draw.random() < 0.6
        if not has_rows:
            shape = tuple(size or 2 for size in shape)
        inputs.append(Input(f"x{index}", kind, (batch, *shape) if has_rows else shape, has_rows))
    widest = max(len(each.shape or ()) for each in inputs if each.has_rows)
    if any(len(each.shape or ()) >= widest > 0 for each in inputs if not each.has_rows):
        return random_model(draw, form)  # it would be broadcast against the batch
    if batch is not None and any(not each.has_rows and each.shape and each.shape[0] == batch for each in inputs):
        return random_model(draw, form)  # nothing in the signature says which of them are rows
    return Model(form, tuple(inputs), not has_unknown_rank and draw.random() < 0.5)


def random_models(draw: random.Random, number: int, folder: Path) -> dict[str, Model]:
    """Models of all formats in turn, by their names, which are those of their folders."""
    models = {f"m{each}": random_model(draw, FORMATS[each % len(FORMATS)]) for each in range(number)}
    for name, model in models.items():
        model.write(folder / name)
    return models


@dataclass(frozen=True)
class Request:
    form: str
    arrays: Mapping[str, np.ndarray[Any, Any]]

    @property
    def body(self) -> dict[str, Any]:
        """The request in JSON."""
        values = {name: as_json(array.tolist()) for name, array in self.arrays.items()}
        if self.form == "columns":
            return {"inputs": values}
        return {"instances": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}


def as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def random_values(draw: random.Random, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    choices: Sequence[Any] = list(WORDS) if kind == "string" else [False, True] if kind == "bool" else range(1, 8)
    numbers = [draw.choice(choices) for _ in range(int(np.prod(shape, dtype=int)))]
    flat = np.empty(len(numbers), tensors.BY_NAME[kind].numpy)
    flat[:] = numbers
    return flat.reshape(shape)


CHANGES: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "dropped": lambda values: values[..., 0],
    "trailing": lambda values: values[..., None],
    "inner": lambda values: values[:, None],
    "wider": lambda values: np.concatenate([values, values], axis=-1),
    "shorter": lambda values: values[:-1],
    "longer": lambda values: np.concatenate([values, values[:1]]),
    "scalar": lambda values: values.ravel()[:1].reshape(()),
    "leading": lambda values: values[None],
}
OF_ROWS = ("dropped", "trailing", "inner", "wider")


def random_request(draw: random.Random, model: Model) -> Request:
    """Returns a request that fits a model, or nearly."""
    form, rows = draw.choice(["row", "columns", "grpc"]), draw.choice([1, 1, 2, 2, 3, 4])
    arrays = {}
    for each in model.inputs:
        any_rank = [None] * draw.choice([0, 1, 2])
        sizes = any_rank if each.shape is None else each.shape[1:] if each.has_rows else each.shape
        shape = [size or draw.choice([1, 2]) for size in sizes]
        has_rows = each.has_rows or form == "row"
        arrays[each.name] = random_values(draw, each.kind, (rows, *shape) if has_rows else tuple(shape))
    if draw.random() < 0.5:
        name, change = draw.choice(list(arrays)), draw.choice(OF_ROWS if form == "row" else list(CHANGES))
        if arrays[name].ndim > (form == "row") or change in ("trailing", "leading"):
            changed = CHANGES[change](arrays[name])
            if changed.size or form == "grpc":  # lists in JSON show no sizes behind one of 0
                arrays[name] = changed
    return Request(form, arrays)


REFUSED = "refused"


def expected_answer(model: Model, request: Request) -> tuple[Any, bool]:
    """Returns the answer, a row after the other, or REFUSED; and whether the request may be refused, too."""
    is_row = request.form == "row"
    values = {each.name: in_shape(each, request.arrays[each.name], is_row) for each in model.inputs}
    if any(array is None for array in values.values()):
        return REFUSED, True
    has_any_rank = model.inputs[0].shape is None
    try:
        if has_any_rank and not is_row:  # nothing says what a row is
            return model.row(values), True
        of_rows = {each.name for each in model.inputs if each.has_rows or is_row}
        counts = {len(values[name]) for name in of_rows}
        if len(counts) > 1:
            return REFUSED, True
        (count,) = counts
        rows = [
            {name: array[index] if name in of_rows else array for name, array in values.items()}
            for index in range(count)
        ]
        size = None if has_any_rank else model.inputs[0].shape[0]  # type: ignore[index]
        has_values = any(not each.has_rows for each in model.inputs)
        may_be_refused = has_any_rank or (is_row and has_values) or (size and (not count or count % size or has_values))
        return [model.row(row) for row in rows], bool(may_be_refused)
    except ValueError:  # sizes that the model cannot broadcast
        return REFUSED, True


def in_shape(spec: Input, values: np.ndarray[Any, Any], is_row: bool) -> np.ndarray[Any, Any] | None:
    """Returns the values of an input in its declared shape, which instances have behind a first dimension."""
    if spec.shape is None:
        return values
    declared = (None, *spec.shape) if is_row and not spec.has_rows else spec.shape
    has_rows = spec.has_rows or is_row
    if fits(declared, values.shape, has_rows):
        return values
    if spec.has_rows and values.ndim == 1 and spec.shape[1:] == (1,):
        return values[:, None]
    if spec.has_rows and values.ndim == 2 and len(spec.shape) == 1 and values.shape[1] == 1:
        return values[:, 0]
    if values.shape == (1,) and spec.shape == ((1,) if is_row else ()):  # as one number
        return values[None] if is_row else values[0]
    return None


def fits(declared: tuple[int | None, ...], shape: tuple[int, ...], has_rows: bool) -> bool:
    """Returns whether values have a declared shape; a batch has any size."""
    if len(declared) != len(shape):
        return False
    return all(
        size in (None, sent) or (index == 0 and has_rows)
        for index, (size, sent) in enumerate(zip(declared, shape, strict=True))
    )


def fault(expected: Any, may_be_refused: bool, answer: Any) -> str | None:
    """Returns what is wrong with an answer: an array, or a code of gRPC or HTTP with a message."""
    if isinstance(answer, tuple):
        code, message = answer
        if code not in (400, "INVALID_ARGUMENT"):
            return f"code {code}: {message}"
        return None if may_be_refused or isinstance(expected, str) else f"refused: {message}"
    if isinstance(expected, str):
        return "answered"
    answer = np.asarray(answer, np.float32)
    if isinstance(expected, list):
        if answer.ndim == 0 or len(answer) != len(expected):
            return f"{len(expected)} rows, answered {answer.shape}"
        same = all(np.array_equal(np.ravel(one), np.ravel(other)) for one, other in zip(answer, expected, strict=True))
    else:
        same = np.array_equal(answer, expected)
    return None if same else "wrong"
