"""Predict requests that look like earlier ones, read by the places of their values.

A client that asks again and again sends messages that differ in their values alone. Reading such a one takes one
``struct.unpack`` and an array for each input: a third of what parsing it and looking at each tensor takes.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.serving.layouts import REQUEST_TENSORS, NoLayout, find_tensors
from airflow_hops.serving.models.servable import Signature

# Beyond, copying is most of the work either way.
_LONGEST_BYTES = 16_384
_MOST_LAYOUTS = 64
# Learning a layout costs as much as so many requests read by it gain.
_COST = 20
_MOST_CREDIT = 100


class Known(NamedTuple):
    """A request, read.

    Attributes:
        signature: The signature that it asks.
        aliases: Outputs wanted.
        feeds: An array for each of the signature's inputs, in that order.
        rows: Rows.
    """

    signature: Signature
    aliases: tuple[str, ...]
    feeds: list[np.ndarray]
    rows: int


@dataclass(frozen=True)
class _Input:
    parts: tuple[int, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, parts: tuple[bytes, ...]) -> np.ndarray:
        array: np.ndarray
        if self.dtype != STRING.numpy:
            array = np.frombuffer(parts[self.parts[0]], self.dtype)
        else:
            array = np.empty(len(self.parts), object)
            for index, part in enumerate(self.parts):
                array[index] = parts[part]
        return array if len(self.shape) == 1 else array.reshape(self.shape)


@dataclass(frozen=True)
class _Layout:
    parts: struct.Struct
    between: tuple[bytes, ...]
    inputs: tuple[_Input, ...]
    signature: Signature
    aliases: tuple[str, ...]
    rows: int


class KnownRequests:
    """The layouts of a version's requests; safe to use from every request thread."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}
        self._credit = _MOST_CREDIT
        self._lock = threading.Lock()

    def read(self, message: bytes) -> Known | None:
        """Returns a request that looks like one that was learnt, else None."""
        layout = self._layouts.get(len(message))
        if layout is None:
            return None
        parts = layout.parts.unpack(message)
        if parts[::2] != layout.between:
            return None
        if self._credit < _MOST_CREDIT:
            self._credit += 1
        return Known(layout.signature, layout.aliases, [each.read(parts) for each in layout.inputs], layout.rows)

    def learn(self, message: bytes, inputs: Mapping[str, np.ndarray], known: Known) -> None:
        """Learns what a request looks like that was parsed.

        Args:
            message: The request.
            inputs: Its arrays, by alias.
            known: What it says.
        """
        if len(message) > _LONGEST_BYTES or self._credit < _COST or inputs.keys() != known.signature.inputs.keys():
            return
        self._credit -= _COST
        try:
            layout = _find(message, inputs, known)
        except NoLayout:
            return
        with self._lock:
            if len(self._layouts) >= _MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[len(message)] = layout


def _find(message: bytes, inputs: Mapping[str, np.ndarray], known: Known) -> _Layout:
    types = {alias: (tensors.type_of(array), math.prod(array.shape)) for alias, array in inputs.items()}
    places = find_tensors(message, REQUEST_TENSORS, types)
    if any(place.varints for place in places.values()):
        raise NoLayout
    spans = sorted(((span, alias) for alias, place in places.items() for span in place.spans), key=lambda s: s[0].start)
    widths: list[int] = []
    between: list[bytes] = []
    at = 0
    parts: dict[str, list[int]] = {alias: [] for alias in inputs}
    for span, alias in spans:
        between.append(message[at : span.start])
        parts[alias].append(len(widths) + 1)
        widths += [span.start - at, span.end - span.start]
        at = span.end
    between.append(message[at:])
    widths.append(len(message) - at)
    found = (_Input(tuple(parts[alias]), inputs[alias].dtype, inputs[alias].shape) for alias in known.signature.inputs)
    pattern = struct.Struct("".join(f"{width}s" for width in widths))
    return _Layout(pattern, tuple(between), tuple(found), known.signature, known.aliases, known.rows)
