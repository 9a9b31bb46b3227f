"""A capture in a process of its own, for tests: what it is told comes as JSON lines; run with the runtime's Python.

``{"offer": N, "rows": R, "models": M}`` offers N requests, ``{"flush": seconds}`` flushes, ``{"status": true}`` asks
for the status, ``{"labels": […]}`` adds labels, ``{"close": true}`` ends. Each is answered with one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import PredictRequest, PredictResponse
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.capture.routes import read_feedback
from airflow_hops.serving.request_kind import RequestKind


def call(number: int, model: str, rows: int, shadow: bool) -> CapturedCall:
    request, response = PredictRequest(), PredictResponse()
    tensors.fill_proto(request.inputs["x"], np.full((rows, 3), number, np.float32))
    tensors.fill_proto(response.outputs["y"], np.full(rows, number, np.int64))
    return CapturedCall(
        kind=RequestKind(model, 1, "Predict", "GRPC"),
        request_id=f"r{number}",
        at_us=1_700_000_000_000_000 + number,
        latency_ms=1.0,
        rows=rows,
        request=request.SerializeToString(),
        response=response.SerializeToString(),
        shadow=shadow,
    )


def main() -> None:
    capture = Capture(CaptureOptions(**json.loads(sys.argv[1])))
    number = 0
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        answer: Any = None
        if "offer" in asked:
            answer = []
            for _ in range(asked["offer"]):
                model = f"m{number % asked.get('models', 1)}"
                if capture.offer(call(number, model, asked.get("rows", 1), asked.get("shadow", False))):
                    answer.append([f"r{number}", model])
                number += 1
        elif "flush" in asked:
            answer = capture.flush(asked["flush"])
        elif "status" in asked:
            answer = capture.status()
        elif "labels" in asked:
            answer = capture.add_labels(read_feedback(json.dumps(asked["labels"]).encode()))
        elif "close" in asked:
            answer = capture.close()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
