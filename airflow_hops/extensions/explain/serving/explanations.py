"""Answers requests for explanations: Shapley values of the features of each row, against the model's background."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.target import BINARY, OUTPUTS
from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.extensions.explain.ml.shapley import Array, Explainer
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.skew.attribution import dense_rows
from airflow_hops.serving.api import rest_tensors
from airflow_hops.serving.api.rest import target_of_path
from airflow_hops.serving.errors import ServingError, check_deadline, invalid_argument
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving.routes import HttpRequest, HttpResponse, json_response

_SEED = 0
_PAIRS = 4
_BATCH_ROWS = 1000
"""Rows of a prediction, between which the deadline is checked: as many as TensorFlow Serving batches by default."""


class Explanations:
    """Explains the rows of one request at a time; others are refused, so that predictions keep their processors.

    Args:
        catalog: The models.
        backgrounds: Folder with the background of each model.
        background_rows: Rows of it that are used.
        max_predictions: Predictions that a request may need.
    """

    def __init__(self, catalog: Catalog, backgrounds: Path, background_rows: int, max_predictions: int) -> None:
        self._catalog, self._backgrounds = catalog, backgrounds
        self._background_rows, self._max_predictions = background_rows, max_predictions
        self._turn = threading.Lock()

    def answer(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        """Answers a request, whose body is that of a predict request.

        Raises:
            ServingError: There is no background, the rows do not fit the model, or they need too many predictions.
        """
        if not self._turn.acquire(blocking=False):
            raise ServingError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "Another request is being explained, only one can be at a time; try again",
            )
        try:
            servable = self._catalog.acquire(*target_of_path(match))
            try:
                return json_response(self._explain(request, servable))
            finally:
                servable.release()
        except BadInput as error:
            raise invalid_argument(str(error)) from None
        finally:
            self._turn.release()

    def _explain(self, request: HttpRequest, servable: Servable) -> dict[str, object]:
        body = rest_tensors.parse_body(request.body)
        signature = servable.signature(body.signature)
        rows = rest_tensors.read_tensors(body, signature.input_types, servable.keys)
        for name, values in rows.items():
            if values.ndim != 1 and values.shape[1:] != (1,):
                raise invalid_argument(
                    f"input {name!r} has shape {list(values.shape)}; expected one number or text a row, of which "
                    "contributions are features"
                )
        output = next((name for name in OUTPUTS.values() if name in signature.outputs), None)
        if output is None:
            raise invalid_argument(
                f"the outputs are {', '.join(signature.outputs)}; expected one of {', '.join(OUTPUTS.values())}"
            )

        size = signature.batch_size or 1
        limit = min(_BATCH_ROWS, servable.max_rows or _BATCH_ROWS)
        step = max(size, limit - limit % size)

        def predict(arrays: Mapping[str, Array]) -> Array:
            count = len(next(iter(arrays.values())))
            answers = []
            for begin in range(0, count, step):
                check_deadline(request.deadline_s)
                message = PredictRequest()
                message.model_spec.name, message.model_spec.signature_name = servable.model, body.signature
                for name, values in arrays.items():
                    part = values[begin : begin + step]
                    full = np.concatenate([part, part[-1:].repeat(-len(part) % size, axis=0)])
                    tensors.fill_proto(message.inputs[name], full)
                reply = servable.answer(Call(Method.PREDICT, message.SerializeToString(), request.deadline_s))
                answers.append(tensors.from_proto(PredictResponse.FromString(reply.message).outputs[output]))
            predicted: Array = np.concatenate(answers)[:count]
            if not np.isfinite(predicted).all():
                raise invalid_argument(
                    f"{output} is NaN or infinite for a row of the request or of the background, or for one with "
                    "values of both; contributions add up only if all predictions are finite"
                )
            return predicted

        explainer = Explainer(predict, self._background(servable, rows), _PAIRS, _SEED)
        count, each = len(next(iter(rows.values()))), explainer.predictions_per_row
        if count * each > self._max_predictions:
            raise invalid_argument(
                f"{count} rows need {count * each:,} predictions, and --explain_max_predictions allows "
                f"{self._max_predictions:,}; ask for {self._max_predictions // each} rows at once"
            )
        return {
            "model_spec": {"name": servable.model, "version": str(servable.version)},
            "exact": explainer.is_exact,
            "background_rows": explainer.background_rows,
            "explanations": [
                {
                    "output": 1 if output == OUTPUTS[BINARY] else contributions.output,
                    "prediction": contributions.prediction,
                    "base": contributions.base,
                    "contributions": dict(zip(explainer.features, contributions.values.tolist(), strict=True)),
                    "errors": dict(zip(explainer.features, contributions.errors.tolist(), strict=True)),
                }
                for contributions in explainer.explain(rows)
            ],
        }

    def _background(self, servable: Servable, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the background in the order, types and shapes of a request's rows."""
        path = self._backgrounds / f"{servable.model}.parquet"
        if not path.exists():
            raise _no_background(f"There is no background {path} on the server.")
        try:
            schema = pq.read_schema(path)
            if lacking := [name for name in rows if name not in schema.names]:
                raise _no_background(f"The background {path} has no column {lacking[0]!r}.")
            table = pq.read_table(path, columns=list(rows))
            chosen = np.random.default_rng(_SEED).permutation(table.num_rows)[: self._background_rows]
            table = table.take(pa.array(np.sort(chosen)))
            dtypes = {name: _column(column.dtype) for name, column in rows.items()}
            if any(is_list(schema.field(name).type) for name in rows):  # a sample of statistics has lists of one
                dense = dense_rows(table, dtypes, str(path))
            else:
                check_columns(path, dtypes, of="the request")
                dense = dense_arrays(table, dtypes, str(path))
        except (OSError, pa.ArrowException, ValueError, TypeError, BadInput) as error:
            raise _no_background(f"The background {path} cannot be used: {error}") from None
        if not table.num_rows:
            raise _no_background(f"The background {path} has no rows.")
        background = {
            name: dense[name].astype(column.dtype).reshape(-1, *column.shape[1:]) for name, column in rows.items()
        }
        for name, values in background.items():
            if values.dtype.kind in "iu" and (values.ravel() != dense[name].ravel()).any():
                raise _no_background(f"The background {path} has values of {name!r} that are no {values.dtype}.")
        return background


def _column(dtype: np.dtype) -> str:
    """Returns the dtype of the column for an input."""
    if dtype.kind == "f":
        return "float64" if dtype == np.float64 else "float32"
    return "string" if dtype.kind == "O" else "int64"


def _no_background(message: str) -> ServingError:
    return ServingError(grpc.StatusCode.FAILED_PRECONDITION, message)
