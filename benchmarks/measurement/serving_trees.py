"""LightGBM's trees as ONNX, requests for them, and their rates in process; in a named environment that has LightGBM."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.ml.models.export import export_model
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.servable import Call

MATRIX, COLUMNS = "matrix", "columns"
"""Models by what requests hold: all features in one tensor, as the peers have it, or each by its name."""

WIDTH, TREES = 20, 100
NAMES = [f"feature_{number}" for number in range(WIDTH)]
ROWS = (1, 64)


def write(folder: Path) -> None:
    """Writes the model, as ONNX and as LightGBM's own text, and the bodies of requests."""
    random = np.random.default_rng(7)
    x = random.normal(size=(5000, WIDTH)).astype(np.float32)
    y = x[:, 0] * 3 + np.sin(x[:, 1] * 2) + x[:, 2] * x[:, 3] + random.normal(0, 0.1, len(x))
    model = lightgbm.LGBMRegressor(n_estimators=TREES, verbose=-1).fit(x, y)
    target = Target("y", "regression")
    for name, order in ((MATRIX, None), (COLUMNS, NAMES)):
        export_model(model, folder / name, framework="lightgbm", target=target, sample=x[:500], order=order)
        (folder / "models" / name).mkdir(parents=True)
        (folder / name / "onnx").rename(folder / "models" / name / "1")
    model.booster_.save_model(folder / "model.bst")
    for rows in ROWS:
        values = np.round(x[:rows].astype(float), 4)
        for model_name, inputs, as_json in (
            (MATRIX, {"inputs": x[:rows]}, {"inputs": values.tolist()}),
            (
                COLUMNS,
                {name: x[:rows, number].copy() for number, name in enumerate(NAMES)},
                {name: values[:, number].tolist() for number, name in enumerate(NAMES)},
            ),
        ):
            request = protocol.PredictRequest()
            request.model_spec.name = model_name
            for name, array in inputs.items():
                tensors.fill_proto(request.inputs[name], array)
            (folder / f"{model_name}-{rows}.grpc").write_bytes(request.SerializeToString())
            (folder / f"{model_name}-{rows}.json").write_text(json.dumps({"inputs": as_json}))
        tensor = {"name": "x", "shape": [rows, WIDTH], "datatype": "FP32", "data": values.ravel().tolist()}
        (folder / f"{MATRIX}-{rows}.v2.json").write_text(json.dumps({"inputs": [tensor]}))
        (folder / f"{MATRIX}-{rows}.rows.json").write_text(json.dumps({"rows": values.tolist()}))
        np.save(folder / f"{rows}.npy", x[:rows])


def in_process(folder: Path, rows: int, seconds: float) -> dict[str, Any]:
    """Calls a CPU second: LightGBM with one thread, and the servables from message to message."""
    x = np.load(folder / f"{rows}.npy")
    booster = lightgbm.Booster(model_file=folder / "model.bst")
    found = {"lightgbm": _per_cpu_second(lambda: booster.predict(x, num_threads=1), seconds)}
    for name in (MATRIX, COLUMNS):
        servable: Any = open_model(name, 1, folder / "models" / name / "1", ModelOptions(intra_op_threads=1))
        call = Call(Method.PREDICT, (folder / f"{name}-{rows}.grpc").read_bytes())
        found[name] = _per_cpu_second(functools.partial(servable.answer, call), seconds)
    return found


def _per_cpu_second(work: Callable[[], Any], seconds: float) -> float:
    for _ in range(50):
        work()
    calls, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        work()
        calls += 1
    return calls / (time.process_time() - began)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if not (target / "written").exists():
        write(target)
        (target / "written").touch()
    print(json.dumps({rows: in_process(target, rows, float(sys.argv[2])) for rows in ROWS}))
