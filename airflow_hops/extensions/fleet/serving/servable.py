"""Serves a fleet: the model of its segment answers a row, and the pooled one that of an unknown segment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.core.linear import linear_answers, weights_from_bytes
from airflow_hops.extensions.fleet.core.packs import LINEAR, Fleet, Place, segment_keys, shown
from airflow_hops.extensions.fleet.serving.loaded import MODELS
from airflow_hops.extensions.fleet.serving.sessions import GraphModel
from airflow_hops.serving.errors import check_deadline, invalid_argument
from airflow_hops.serving.models.described import DescribedServable, request_definitions
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.model_signature import (
    TRANSFORM_GRAPH,
    ModelSignature,
    SignatureFileError,
    read_signature,
)
from airflow_hops.serving.models.servable import Signature
from airflow_hops.serving.models.signature_defs import MULTICLASS

UNKNOWN = "unknown"
"""State, in the counts of answered rows, of a segment that the index does not have."""
_ROWS_AT_ONCE = 4096
"""Rows whose weights are copied for one computation."""


class FleetServable(DescribedServable):
    """The fleet of a version folder (:mod:`airflow_hops.extensions.fleet.core.packs`).

    Rows of a request are grouped by segment, and the answers come in the order of the rows. Linear models of all
    segments of a request are computed at once.

    Raises:
        ServingError: A file is missing or damaged, or they contradict each other; the message names file and field.
    """

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        try:
            signature = read_signature(folder)
            self._fleet = Fleet(folder)
        except (SignatureFileError, BadInput) as error:
            raise invalid_argument(str(error)) from error
        try:
            _check_signature(signature, self._fleet, folder)
            assert signature.outputs is not None
            self._outputs = signature.outputs
            self._classes = len(signature.outputs.classes or ()) if self._outputs.problem == MULTICLASS else 1
            self._pooled = self._load(None, self._fleet.description.pooled)[0]
            definitions = request_definitions(signature)
            signature.outputs.fill(definitions)
            super().__init__(model, version, folder, options, signature, definitions)
        except BadInput as error:
            self._fleet.close()
            raise invalid_argument(str(error)) from error
        except BaseException:
            self._fleet.close()
            raise

    def _free(self) -> None:
        super()._free()
        MODELS.drop(self)
        self._fleet.close()

    def _load(self, segment: str | None, place: Place) -> tuple[Any, int]:
        """Loads a model and returns its bytes in memory."""
        width = self._fleet.description.encoding.width
        try:
            payload = self._fleet.payload(place)
            if place.format == LINEAR:
                weights = weights_from_bytes(payload, self._classes, width)
                return weights, len(payload) + 500  # and what Python needs for the array, its bytes and their names
            graph = GraphModel(payload, width)
            return graph, graph.size_bytes
        except BadInput as error:
            name = "the pooled model" if segment is None else f"the model of segment {shown(segment)}"
            raise BadInput(f"{name}: {error}") from error

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        check_deadline(deadline_s)
        description = self._fleet.description
        try:
            columns = self._arranged(signature, feeds, deadline_s)
            keys = segment_keys(description.segment, columns[description.segment])
            matrix = description.encoding.encode(columns)
            scores = self._outputs.scores(self._answers_of(keys, matrix, deadline_s), len(keys))
        except (BadInput, ValueError) as error:
            raise invalid_argument(str(error)) from error
        return [self._outputs.array(signature.outputs[alias], scores) for alias in aliases]

    def _answers_of(self, keys: Sequence[str], matrix: np.ndarray, deadline_s: float) -> np.ndarray:
        """Returns a number for each row, or those of all classes."""
        rows_by_key: dict[str, list[int]] = {}
        for row, key in enumerate(keys):
            rows_by_key.setdefault(key, []).append(row)
        rows_of_pooled: list[int] = []
        groups: list[tuple[Any, list[int]]] = [(self._pooled, rows_of_pooled)]
        states: Counter[str] = Counter()
        for key, rows in rows_by_key.items():
            states[self._fleet.state(key) or UNKNOWN] += len(rows)
            if (place := self._fleet.place(key)) is None:
                rows_of_pooled += rows
                continue
            check_deadline(deadline_s)
            groups.append((MODELS.get(self, key, partial(self._load, key, place)), rows))
        result: np.ndarray = np.empty((len(keys), self._classes) if self._classes > 1 else len(keys))
        for model, rows in groups:
            if rows and isinstance(model, GraphModel):
                check_deadline(deadline_s)
                result[rows] = self._outputs.scores(model.answers(matrix[rows]), len(rows))
        weights = [(model, row) for model, rows in groups if not isinstance(model, GraphModel) for row in rows]
        for start in range(0, len(weights), _ROWS_AT_ONCE):
            some = weights[start : start + _ROWS_AT_ONCE]
            rows = [row for _, row in some]
            by_row = np.stack([model for model, _ in some])
            result[rows] = linear_answers(by_row, matrix[rows], self._outputs.problem)
        MODELS.count_rows(self.model, states)
        return result


def _check_signature(signature: ModelSignature, fleet: Fleet, folder: Path) -> None:
    """Raises BadInput if the signature is not that of one label, or has other inputs than the fleet."""
    requests, description = signature.requests, fleet.description
    expected = {description.segment, *description.encoding.columns}
    if signature.outputs is None or signature.heads or signature.passed or (folder / TRANSFORM_GRAPH).exists():
        raise BadInput(f"{folder}: expected a signature.json with one problem, and no {TRANSFORM_GRAPH}")
    if requests.columns.keys() != expected or requests.width is not None or requests.vectors:
        raise BadInput(
            f"{folder}: signature.json has the inputs {', '.join(sorted(requests.columns))}; expected columns, the "
            f"segment and those of the encoding: {', '.join(sorted(expected))}"
        )
