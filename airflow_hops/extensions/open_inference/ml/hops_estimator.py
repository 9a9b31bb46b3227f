"""Runs an estimator in MLServer, with the outputs that it has in the model server of airflow-hops.

A deployment copies this file to the model. MLServer imports it in its own environment, which needs scikit-learn, skops
and pandas, and not airflow-hops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import skops.io
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput
from mlserver.utils import get_model_uri
from sklearn.base import is_regressor

_DATATYPES = {"b": "BOOL", "i": "INT64", "u": "INT64", "f": "FP64"}


class Estimator(MLModel):
    """An estimator that skops stores, and the signature beside it."""

    async def load(self) -> bool:
        """Reads the estimator. Raises InferenceError if skops does not trust its types."""
        path = Path(await get_model_uri(self.settings))
        if untrusted := set(skops.io.get_untrusted_types(file=path)) - {"numpy.dtype"}:
            raise InferenceError(f"{path} holds types that skops does not trust: {', '.join(sorted(untrusted))}")
        self._estimator = skops.io.load(path, trusted=["numpy.dtype"])
        self._signature = json.loads(path.with_name("signature.json").read_text())
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answers a request, which has the columns or the matrix of the signature."""
        try:
            outputs = self._outputs(self._arranged({each.name: _array(each) for each in payload.inputs}))
        except KeyError as error:
            raise InferenceError(f"the request lacks the input {error}") from error
        except (ValueError, TypeError) as error:
            raise InferenceError(f"{type(self._estimator).__name__}: {error}") from error
        names = [each.name for each in payload.outputs or ()] or list(outputs)
        if unknown := [name for name in names if name not in outputs]:
            raise InferenceError(f"there is no output {unknown[0]}; expected {', '.join(outputs)}")
        return InferenceResponse(
            model_name=self.name, model_version=self.version, outputs=[_output(name, outputs[name]) for name in names]
        )

    def _arranged(self, values: Mapping[str, np.ndarray]) -> Any:
        """Returns the argument of ``predict``."""
        model = self._signature.get("model", self._signature)
        if "matrix" not in model:
            columns = {each["name"]: values[each["name"]] for each in model["columns"]}
            return pd.DataFrame({name: column.reshape(len(column)) for name, column in columns.items()})
        order = model.get("order")
        parts = [values[name] for name in order] if order else list(values.values())
        return np.column_stack([part.astype(_matrix_type(model["matrix"]["type"]), copy=False) for part in parts])

    def _outputs(self, values: Any) -> dict[str, np.ndarray]:
        problem, classes = self._signature.get("problem"), self._signature.get("classes")
        if problem == "regression":
            return {"prediction": np.asarray(self._estimator.predict(values)).reshape(len(values)).astype(np.float32)}
        if problem is not None:
            scores = np.asarray(self._estimator.predict_proba(values)).astype(np.float32)
            if problem == "binary":
                return {"probability": scores[:, 1]}
            return {"probabilities": scores, "class": np.array(classes, object)[scores.argmax(axis=1)]}
        predicted = np.asarray(self._estimator.predict(values))
        labels = getattr(self._estimator, "classes_", None)
        if not isinstance(labels, np.ndarray):
            return {"predictions": predicted.astype(np.float64 if is_regressor(self._estimator) else np.int64)}
        outputs = {"predictions": predicted}
        if hasattr(self._estimator, "predict_proba"):
            outputs["probabilities"] = np.asarray(self._estimator.predict_proba(values)).astype(np.float64)
            outputs["classes"] = np.tile(labels, (len(values), 1))
        return outputs


def _matrix_type(name: str) -> str:
    return {"float": "float32", "double": "float64", "half": "float16", "string": "object"}.get(name, name)


def _array(each: RequestInput) -> np.ndarray:
    if each.datatype == "BYTES":
        return np.array(StringCodec.decode_input(each), object).reshape(each.shape)
    array: np.ndarray = NumpyCodec.decode_input(each)
    return array


def _output(name: str, array: np.ndarray) -> ResponseOutput:
    datatype = "FP32" if array.dtype == np.float32 else _DATATYPES.get(array.dtype.kind, "BYTES")
    values = array.ravel().tolist()
    data = [str(value).encode() for value in values] if datatype == "BYTES" else values
    return ResponseOutput(name=name, shape=list(array.shape), datatype=datatype, data=data)
