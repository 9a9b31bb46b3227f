"""Linear models of a fleet: how columns become a matrix, and how weights answer it, in training and in serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import CheckedFields, JsonFields


@dataclass(frozen=True)
class NumberEncoding(CheckedFields):
    """Standardises a column: ``(value - mean) / scale``, and 0 for a missing value.

    Attributes:
        name: The column.
        mean: Mean of its values in the pooled training rows.
        scale: Their standard deviation; 1 for a constant.
        marks_missing: Whether a further column of the matrix is 1 where the value is missing.
    """

    name: str
    mean: float
    scale: float
    marks_missing: bool = False


@dataclass(frozen=True)
class CategoryEncoding(CheckedFields):
    """One column of the matrix for each known value, 1 where the row has it; other values are 0 in all of them.

    Attributes:
        name: The column; integers are known by their decimal text.
        values: The known values, from the pooled training rows.
    """

    name: str
    values: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))

    @cached_property
    def known(self) -> pa.Array:
        """The known values as Arrow's binary."""
        return pa.array([value.encode() for value in self.values], pa.binary())


@dataclass(frozen=True)
class Encoding(JsonFields):
    """The matrix that all models of a fleet take: numbers, then categories, in their order.

    >>> encoding = Encoding((NumberEncoding("price", 10.0, 2.0),), (CategoryEncoding("day", ("Mon", "Sun")),))
    >>> encoding.encode({"price": np.array([12.0, np.nan]), "day": np.array(["Sun", "Sat"], object)})
    array([[1., 0., 1.],
           [0., 0., 0.]])
    """

    numbers: tuple[NumberEncoding, ...] = ()
    categories: tuple[CategoryEncoding, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are encoded."""
        return (*(each.name for each in self.numbers), *(each.name for each in self.categories))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of the matrix."""
        names: list[str] = []
        for number in self.numbers:
            names += [number.name, f"{number.name} is missing"] if number.marks_missing else [number.name]
        for category in self.categories:
            names += [f"{category.name}={value}" for value in category.values]
        return tuple(names)

    @cached_property
    def width(self) -> int:
        """Number of columns of the matrix."""
        return len(self.names)

    def encode(self, columns: Mapping[str, np.ndarray | pa.Array | pa.ChunkedArray]) -> np.ndarray:
        """Returns the matrix, float64 ``[rows, width]``.

        Args:
            columns: Name to values, ``[rows]``: numbers with NaN or null for missing ones, and texts (``str`` or UTF-8
                ``bytes``) or integers for categories.

        Raises:
            BadInput: a column is missing, has values of another kind, or a number is infinite; the message names it.
        """
        if absent := [name for name in self.columns if name not in columns]:
            raise BadInput(f"column {absent[0]!r} is missing; expected {', '.join(self.columns)}")
        rows = len(columns[self.columns[0]]) if self.columns else 0
        matrix: np.ndarray = np.zeros((rows, self.width))
        position = 0
        for number in self.numbers:
            values = _as_floats(number.name, columns[number.name])
            missing = np.isnan(values)
            if (infinite := np.isinf(values)).any():
                row = int(infinite.argmax())
                raise BadInput(
                    f"column {number.name!r} is {values[row]} in row {row}; expected a finite number, or NaN"
                )
            matrix[:, position] = np.where(missing, 0.0, (values - number.mean) / number.scale)
            position += 1
            if number.marks_missing:
                matrix[:, position] = missing
                position += 1
        for category in self.categories:
            codes = pc.fill_null(pc.index_in(_as_binary(category.name, columns[category.name]), category.known), -1)
            codes = codes.to_numpy(zero_copy_only=False)
            known = np.flatnonzero(codes >= 0)
            matrix[known, position + codes[known]] = 1.0
            position += len(category.values)
        return matrix


def _as_floats(name: str, column: np.ndarray | pa.Array | pa.ChunkedArray) -> np.ndarray:
    values = np.asarray(column)
    if values.dtype.kind not in "fiub":
        raise BadInput(f"column {name!r} is of the type {values.dtype}; expected numbers")
    floats: np.ndarray = values.astype(np.float64, copy=False)
    return floats


def _as_binary(name: str, column: np.ndarray | pa.Array | pa.ChunkedArray) -> pa.Array:
    try:
        array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        array = array if isinstance(array, pa.Array) else pa.array(array)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_integer(array.type):
            array = array.cast(pa.string())
        if not pa.types.is_floating(array.type) and not pa.types.is_boolean(array.type):
            return array.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise BadInput(f"column {name!r}: {error}; expected texts or integers") from error
    raise BadInput(f"column {name!r} is of the type {array.type}; expected texts or integers")


def weights_to_bytes(weights: np.ndarray) -> bytes:
    """Returns the payload of a linear model: little-endian float64 ``[outputs, 1 + width]``, the intercept first."""
    return np.ascontiguousarray(weights, "<f8").tobytes()


def weights_from_bytes(payload: bytes, outputs: int, width: int) -> np.ndarray:
    """Inverse of :func:`weights_to_bytes`. Raises BadInput if the payload has another length, or is not finite."""
    if len(payload) != 8 * outputs * (1 + width):
        raise BadInput(
            f"the weights are {len(payload)} bytes; expected {8 * outputs * (1 + width)}, for {outputs} outputs of "
            f"{1 + width} numbers"
        )
    weights: np.ndarray = np.frombuffer(payload, "<f8").reshape(outputs, 1 + width)
    if not np.isfinite(weights).all():
        raise BadInput("the weights are not all finite")
    return weights


def linear_answers(weights: np.ndarray, matrix: np.ndarray, problem: str) -> np.ndarray:
    """Returns the answers of linear models: a number, the probability of the second class, or those of all classes.

    A row's answer does not depend on the other rows, to the last bit.

    Args:
        weights: Of one model, ``[outputs, 1 + width]``, or of a model for each row, ``[rows, outputs, 1 + width]``.
        matrix: Rows, as :meth:`Encoding.encode` returns them.
        problem: ``regression``, ``binary`` (both of one output), or ``multiclass`` (an output for each class).

    Returns:
        ``[rows]``, or for several classes ``[rows, classes]``.
    """
    by_row = np.broadcast_to(weights, (len(matrix), *weights.shape[-2:]))
    # Not BLAS: its order of addition depends on the number of rows.
    scores = np.einsum("row,rw->ro", by_row[:, :, 1:], matrix, optimize=False) + by_row[:, :, 0]
    if problem == "multiclass":
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: np.ndarray = exponents / exponents.sum(axis=1, keepdims=True)
        return shares
    numbers: np.ndarray = scores[:, 0]
    return numbers if problem == "regression" else 0.5 * (1.0 + np.tanh(0.5 * numbers))
