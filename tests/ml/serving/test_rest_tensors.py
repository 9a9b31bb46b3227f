"""Numbers of JSON requests: read all at once where they plainly are of their type, one by one where they may not be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from airflow_hops.core.serving_api.tensors import type_of
from airflow_hops.serving.api import rest_tensors
from airflow_hops.serving.api.rest_tensors import PredictBody, read_tensors
from airflow_hops.serving.errors import ServingError

ODD = (True, False, None, "1", [1.0], {}, {"b64": "MQ=="}, 0, 1, -1, 0.0, -0.0, 0.5, 300, 2**11, 2**24, 2**31, 2**53)
ODD += (2**63, 2**64, -(2**63) - 1, 10**400, 1e39, -1e39, 70_000.0, math.nan, math.inf)


@pytest.mark.parametrize("numpy_type", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64"])
def test_numbers_read_at_once_are_those_that_are_looked_at_one_by_one(
    numpy_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor_type = type_of(np.zeros(1, numpy_type))

    def read(values: list[Any]) -> Any:
        try:
            array = read_tensors(PredictBody("", "columnar", values), {"x": tensor_type})["x"]
        except ServingError as error:
            return error.code, error.message
        return array.dtype, array.shape, array.tobytes()

    whole = [0.0, 1.0, 0.25, 1.0] if numpy_type.startswith("f") else [0, 1, 100, 1]
    bodies = [[*whole, odd, *whole[:rest]] for odd in (*whole, *ODD) for rest in (0, 4)]
    assert {len(body) > rest_tensors._FEW for body in bodies} == {False, True}
    at_once = [read(body) for body in bodies]
    monkeypatch.setattr(rest_tensors, "_read_numbers", lambda flat, tensor_type: None)
    assert at_once == [read(body) for body in bodies]
