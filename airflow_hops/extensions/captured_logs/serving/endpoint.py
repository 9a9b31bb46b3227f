"""Answers requests for an adopted model by its endpoint, which is asked as in the log of its requests."""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.captured_logs.core.source import ENDPOINT_FILE
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.described import DescribedServable, request_definitions
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, SignatureFileError, read_signature
from airflow_hops.serving.models.servable import Signature

V2, INVOCATIONS = "v2", "invocations"
_TIMEOUT_S = 60.0
_SHOWN = 300
_TYPES = {"fp": "float", "float": "float", "double": "float", "int": "int64", "uint": "int64", "bool": "int64",
          "bytes": "string", "string": "string"}  # fmt: skip
"""Types that models are trained with, by the Open Inference Protocol's and Arrow's names without bits."""


def form_of(request: Any, response: Any) -> dict[str, Any] | None:
    """Returns how an endpoint is asked, from the values of the bodies of a logged request and its response.

    Returns:
        ``protocol`` and what requests of it have in common; None for bodies of other protocols than the Open Inference
        Protocol and MLflow's ``/invocations``.
    """
    if not isinstance(request, Mapping) or not isinstance(response, Mapping):
        return None
    if "predictions" in response and request.keys() & {"dataframe_split", "dataframe_records", "inputs"}:
        return {"protocol": INVOCATIONS}
    parts, model = request.get("inputs"), response.get("model_name")
    kinds = {"name": str, "datatype": str, "shape": list}
    if not isinstance(parts, list) or not isinstance(model, str):
        return None
    if not all(
        isinstance(part, Mapping) and all(isinstance(part.get(k), t) for k, t in kinds.items()) for part in parts
    ):
        return None
    names = ("name", "datatype", "shape", "parameters")
    inputs = [{name: part[name] for name in names if name in part} for part in parts]
    for part in inputs:
        part["parameters"] = {k: v for k, v in (part.get("parameters") or {}).items() if k != "binary_data_size"}
    version = str(response.get("model_version") or "")
    common = {name: request[name] for name in ("parameters", "outputs") if name in request}
    return {"protocol": V2, "model": model, "version": version, "inputs": inputs, **common}


def input_types(form: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, tensors.TensorType]:
    """Returns the types of the features, of those that successors can be trained with: float, int64 and string.

    Args:
        form: As :func:`form_of` returns it.
        columns: Arrow types of the features by name, which count if requests do not say theirs.
    """
    datatypes = {part["name"]: part["datatype"] for part in form.get("inputs", ())}
    whole = next(iter(datatypes.values())) if len(datatypes) == 1 < len(columns) else None
    kinds = {name: (datatypes.get(name) or whole or columns[name]).lower().rstrip("0123456789") for name in columns}
    return {name: tensors.BY_NAME[_TYPES[kind]] for name, kind in kinds.items()}


class EndpointServable(DescribedServable):
    """The model of an adopted endpoint; each request is one to the endpoint.

    Raises:
        ServingError: Nothing says which output of the endpoint is the prediction, or a file is damaged.
    """

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        try:
            facts = json.loads((folder / ENDPOINT_FILE).read_text())
            self._endpoint, self._form, self._output = facts["endpoint"], facts["form"], facts["answer"]
            if self._output is None:
                raise ServingError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"{self._endpoint} was adopted without --answer, so that nothing says which of its outputs is the "
                    "prediction: successors can be neither compared with it nor served beside it. Adopt it under "
                    "another name, with --answer; or give the successor a model_name of its own",
                )
            signature = read_signature(folder)
            assert signature.outputs is not None
        except (ValueError, KeyError, TypeError, AssertionError, OSError, SignatureFileError) as error:
            raise invalid_argument(f"{folder}: {ENDPOINT_FILE} or {SIGNATURE_FILE} is damaged: {error!r}") from error
        definitions = request_definitions(signature)
        signature.outputs.fill(definitions)
        self._outputs = signature.outputs
        super().__init__(model, version, folder, options, signature, definitions)
        self.computes_here = False

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        try:
            columns = self._arranged(signature, feeds, deadline_s)
            rows = len(next(iter(columns.values())))
            path, body = _request(self._form, columns, rows)
            content = json.dumps(body, allow_nan=False).encode()
        except (ValueError, TypeError, KeyError) as error:
            raise invalid_argument(f"{self._endpoint}: {error}") from error
        try:
            answer = json.loads(self._post(path, content, deadline_s))
            scores = self._outputs.scores(_output(self._form, answer, self._output), rows)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            text = f"{self._endpoint}: the answer cannot be used: {error!r}"
            raise ServingError(grpc.StatusCode.UNAVAILABLE, text) from error
        return [self._outputs.array(signature.outputs[alias], scores) for alias in aliases]

    def _post(self, path: str, content: bytes, deadline_s: float) -> bytes:
        request = urllib.request.Request(
            f"{self._endpoint.rstrip('/')}{path}", content, {"Content-Type": "application/json"}
        )
        timeout_s = min(_TIMEOUT_S, deadline_s - time.monotonic())
        try:
            with http_opener().open(request, timeout=max(timeout_s, 0.001)) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            text = f"{self._endpoint}{path}: status {error.code}: {error.read()[:_SHOWN].decode(errors='replace')}"
            is_refused = 400 <= error.code < 500 and error.code not in (408, 429)
            code = grpc.StatusCode.INVALID_ARGUMENT if is_refused else grpc.StatusCode.UNAVAILABLE
            raise ServingError(code, text) from error
        except TimeoutError as error:
            raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, f"{self._endpoint} does not answer") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServingError(grpc.StatusCode.UNAVAILABLE, f"{self._endpoint}: {error!r}") from error


def http_opener() -> urllib.request.OpenerDirector:
    """Returns what sends requests by HTTP alone: it reads no files, and follows no redirections, which drop bodies."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _request(form: Mapping[str, Any], columns: Mapping[str, np.ndarray], rows: int) -> tuple[str, Any]:
    """Returns path and body of a request."""
    # By their decimals, so that 0.1 is the same in the endpoint's 64 bits.
    columns = {
        name: each.astype(str).astype(float) if each.dtype == np.float32 else each for name, each in columns.items()
    }
    if form["protocol"] == INVOCATIONS:
        values = [_values(column) for column in columns.values()]
        split = {"columns": list(columns), "data": [list(row) for row in zip(*values, strict=True)]}
        return "/invocations", {"dataframe_split": split}
    inputs, body = form["inputs"], {name: form[name] for name in ("parameters", "outputs") if name in form}
    by_name = columns
    if len(inputs) == 1 < len(columns):
        by_name = {inputs[0]["name"]: np.stack([column.reshape(rows) for column in columns.values()], axis=1)}
    body["inputs"] = []
    for part in inputs:
        flat = by_name[part["name"]].ravel()
        data = _values(flat.astype(bool) if part["datatype"] == "BOOL" else flat)
        body["inputs"].append({**part, "shape": [rows, *part["shape"][1:]], "data": data})
    version = f"/versions/{quote(form['version'], safe='')}" if form["version"] else ""
    return f"/v2/models/{quote(form['model'], safe='')}{version}/infer", body


def _values(column: np.ndarray) -> list[Any]:
    """Returns values for JSON, which has neither bytes nor NaN."""

    def value(each: Any) -> Any:
        if isinstance(each, list):
            return [value(item) for item in each]
        if isinstance(each, bytes):
            return each.decode()
        return None if isinstance(each, float) and math.isnan(each) else each

    return [value(each) for each in column.tolist()]


def _output(form: Mapping[str, Any], answer: Any, name: str) -> np.ndarray:
    """Returns an output of an answer. Raises ValueError or KeyError if it has none of the name."""
    if form["protocol"] == INVOCATIONS:
        predictions = answer["predictions"]
        if predictions and isinstance(predictions[0], Mapping):
            predictions = [row[name] for row in predictions]
        return np.asarray(predictions, float)
    outputs = {output["name"]: output for output in answer["outputs"]}
    if name not in outputs:
        raise ValueError(f"the answer has no output {name!r}; it has {', '.join(outputs)}")
    return np.asarray(outputs[name]["data"], float).reshape(outputs[name]["shape"])
