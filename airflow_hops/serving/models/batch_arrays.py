"""Concatenates the arrays of several requests, and splits the outputs into views."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import numpy as np

from airflow_hops.serving.errors import ServingError, invalid_argument

# Limit of TensorFlow's Pad operation.
_MAX_PADDED_RANK = 6


def check_rows(feeds: Sequence[np.ndarray]) -> int:
    """Returns the number of rows of a request: the size of the first dimension, which all inputs share.

    Raises:
        ServingError: There is no input, an input is a scalar, or inputs differ in length.
    """
    if not feeds:
        raise invalid_argument("Batching Run() must have at least one input tensor")
    rows = -1
    for feed in feeds:
        if not feed.ndim:
            raise invalid_argument("Batching Run() input tensors must have at least one dimension")
        if rows not in (-1, len(feed)):
            raise invalid_argument("Batching Run() input tensors must have equal 0th-dimension size")
        rows = len(feed)
    return rows


def row_shapes(feeds: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    """Returns the shape of one row of each input; requests with equal shapes can be concatenated."""
    return tuple([feed.shape[1:] for feed in feeds])


def joined(arrays: Sequence[np.ndarray], filling: int) -> np.ndarray:
    """Concatenates the rows of several requests in a new array.

    Args:
        arrays: One input of each request; all have the same row shape.
        filling: Number of rows to append: copies of the first row of the last request, which are valid for the model.
    """
    rows: np.ndarray = np.concatenate([*arrays, np.repeat(arrays[-1][:1], filling, axis=0)] if filling else arrays)
    return rows


def padded(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Pads one input of several requests to the largest shape among them; each array is filled with its first value.

    Raises:
        ServingError: The ranks differ or are over 6, or an array that needs padding is empty.
    """
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) == 1:
        return arrays
    ranks = {len(shape) + 1 for shape in shapes}
    if len(ranks) > 1:
        raise invalid_argument(f"Tensors of one batch have ranks {sorted(ranks)}; expected one rank")
    if max(ranks) > _MAX_PADDED_RANK:
        raise invalid_argument("Only tensors with rank from 1 to 6 can be padded.")
    largest = np.max(list(shapes), axis=0)
    return [_padded_to(array, largest) for array in arrays]


def _padded_to(array: np.ndarray, shape: np.ndarray) -> np.ndarray:
    widths = [(0, 0), *((0, int(size)) for size in shape - array.shape[1:])]
    if not any(after for _, after in widths):
        return array
    if not array.size:
        raise invalid_argument("Got empty tensor in batch of non-empty tensors.")
    filled: np.ndarray = np.full([len(array), *shape], array.flat[0], array.dtype)
    filled[tuple(slice(size) for size in array.shape)] = array
    return filled


def split(values: Sequence[np.ndarray], rows: Sequence[int], total: int) -> list[list[np.ndarray]]:
    """Splits the outputs of a batch, ``[total, ...]`` each, into views for each request.

    Args:
        values: The outputs.
        rows: Number of rows of each request, in the order of the batch.
        total: Number of rows of the batch, including filling.

    Raises:
        ServingError: The number of rows of an output is not ``total``.
    """
    for value in values:
        if not value.ndim:
            raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, "Batched output tensor has 0 dimensions")
        if len(value) != total:
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                "tensors",
            )
    if len(rows) == 1 and rows[0] == total:
        return [list(values)]
    parts = []
    first = 0
    for count in rows:
        parts.append([value[first : first + count] for value in values])
        first += count
    return parts
