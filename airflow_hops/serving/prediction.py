"""A predict request from the moment that it is decoded: version, run, counts, capture. Both APIs end up here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from airflow_hops.serving.capture import Capture
from airflow_hops.serving.capture_columns import count_rows
from airflow_hops.serving.catalog import Catalog
from airflow_hops.serving.stats import EMPTY, RequestStats

if TYPE_CHECKING:
    from airflow_hops.serving.servable import Servable, Signature

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Target:
    """What a request asks of which model.

    Attributes:
        model: Model name.
        version: Version asked for, or None.
        label: Label asked for, or None.
        signature: Signature name; empty for the default.
        request_id: The client's id of the request, or None.
    """

    model: str
    version: int | None = None
    label: str | None = None
    signature: str = ""
    request_id: str | None = None


@dataclass(frozen=True)
class Prediction:
    """An answer.

    Attributes:
        outputs: Alias to array.
        version: The version that answered.
        signature: The signature's name, resolved.
        request_id: The client's id of the request, or the one made for it; captured rows carry it.
    """

    outputs: dict[str, np.ndarray]
    version: int
    signature: str
    request_id: str | None


class Predictor:
    """Answers predict requests.

    Args:
        catalog: Where versions are found.
        stats: Where requests are counted.
        capture: Where answered requests are kept.
    """

    def __init__(self, catalog: Catalog, stats: RequestStats, capture: Capture) -> None:
        self.catalog = catalog
        self.stats = stats
        self.capture = capture

    def predict(
        self,
        target: Target,
        api: Literal["grpc", "rest"],
        decode: Callable[[Servable, Signature], Inputs],
        output_filter: Sequence[str] = (),
    ) -> Prediction:
        """Answers one request.

        Args:
            target: The model and what is asked of it.
            api: What the request came through.
            decode: Gives the inputs, once the signature is known.
            output_filter: Aliases of the outputs wanted; empty for all.

        Raises:
            ServingError: With the code and message that TensorFlow Serving gives.
        """
        started_s = time.perf_counter()
        at_s = time.time()
        servable = self.catalog.acquire(target.model, target.version, target.label, target.request_id)
        rows = 0
        outputs: dict[str, np.ndarray] | None = None
        try:
            signature = servable.signature(target.signature)
            inputs = decode(servable, signature)
            rows = count_rows(inputs)
            outputs = servable.predict(signature, inputs, output_filter)
        finally:
            servable.release()
            latency_s = time.perf_counter() - started_s
            self.stats.record(target.model, servable.version, rows, latency_s, ok=outputs is not None)
        request_id = target.request_id
        if self.capture.options.enabled:
            request_id = request_id or uuid.uuid4().hex
            self.capture.offer(
                request_id=request_id,
                model=target.model,
                version=servable.version,
                signature=signature.name,
                api=api,
                at_s=at_s,
                latency_s=latency_s,
                rows=rows,
                inputs=inputs,
                outputs=outputs,
            )
        return Prediction(outputs, servable.version, signature.name, request_id)

    def stats_report(self) -> dict[str, object]:
        """Returns what ``GET /v1/stats`` answers: counts, latencies and the traffic in effect, by model and version."""
        counted = self.stats.snapshot()
        models: dict[str, object] = {}
        for model in sorted(counted.keys() | self.catalog.views.keys()):
            shares = self.catalog.traffic_percent(model)
            versions = counted.get(model, {})
            models[model] = {
                "versions": {
                    str(version): {**versions.get(version, EMPTY), "traffic_percent": shares.get(version, 0.0)}
                    for version in sorted(versions.keys() | shares.keys())
                }
            }
        return {"since": self.stats.started_at, "models": models}
