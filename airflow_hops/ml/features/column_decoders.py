"""Decodes columns of encoded values, such as images, when a training reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import COLUMN_DECODERS, load_class
from airflow_hops.ml.features.feature_specs import Encoding

if TYPE_CHECKING:
    import pyarrow as pa
    import tensorflow as tf


class ColumnDecoder(ABC):
    """Makes tensors of a column's encoded values.

    A subclass is registered as an entry point of the group ``airflow_hops.column_decoders``. ``features.json`` names
    it, and the arguments of its constructor are the options there.
    """

    @abstractmethod
    def decode(self, encoded: tf.Tensor) -> tf.Tensor:
        """Decodes a batch; traced once, as a part of the training's ``tf.data`` pipeline.

        Args:
            encoded: String tensor ``[batch]``.

        Returns:
            Tensor ``[batch, *shape]``, of the dtype and shape in ``features.json``. Rows do not depend on each other.
        """

    def damage(self, value: memoryview) -> str | None:
        """Returns the fault of an encoded value, if it can be found without decoding."""
        return None


def column_decoder(encoding: Encoding) -> ColumnDecoder:
    """Returns the decoder of a column.

    Raises:
        BadInput: The name is unknown, or the decoder does not take the options.
    """
    decoder = load_class(COLUMN_DECODERS, encoding.decoder, ColumnDecoder)  # type: ignore[type-abstract]
    try:
        return decoder(**encoding.options)
    except TypeError as error:
        raise BadInput(f"column decoder {encoding.decoder!r}: {error}; prepare the examples again") from error


def check_values(decoder: ColumnDecoder, column: pa.Array, where: str) -> None:
    """Checks the encoded values of a ``pyarrow.ChunkedArray``.

    Raises:
        BadInput: A value is damaged; the message names the row.
    """
    row = 0
    for chunk in column.chunks:
        for value in chunk:
            data = value.as_buffer()
            if data is not None and (damage := decoder.damage(memoryview(data))):
                raise BadInput(f"{where}, row {row}: {damage}; prepare the examples again")
            row += 1
