"""Validates that an exported model serves: sends real requests to a throwaway server over gRPC and REST."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import BlessingProperties, ExamplesProperties
from airflow_hops.core.artifacts.target import REGRESSION, Problem
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.cpu_time import GivenTime
from airflow_hops.core.processes.programs import running_module
from airflow_hops.core.serving_api.answers import ModelServerError, RequestRefused
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.rest_client import RestClient
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.features.raw_features import read_rows
from airflow_hops.ml.metrics.scoring import ScoredModel, batch_rows
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.step.context import StepContext

# The server is another program, with a link to the model's folder as version 1, free ports, and a file that it writes
# when it is ready. It is ended however the validation ends. Expected answers come from this process's own load of the
# same files, so a difference is one between the two programs, not between models.

log = logging.getLogger(__name__)

MODEL_NAME = "candidate"
VERSION = 1
TOLERANCE = 1e-5
"""Greatest allowed difference between predictions of the same row, given float32 and varying batch sizes: of a
probability, or as a share of the greatest absolute prediction of a regression.
"""

_LAST_LINES = 20
_LOAD_S = 600.0
_ASK_S = 10.0
_ANSWER_S = 300.0


def run(context: StepContext, *, requests: int = 20, split: str | None = None) -> Artifact:
    """Writes the artifact ``infra_blessing``, or fails if the model does not serve.

    Parameters are those of ``InfraValidateOperator``. Inputs are ``model`` and ``examples``.

    Raises:
        BadInput: the model does not load or its answers are wrong; no artifact is written.
        HopsError: the server did not start, or did not load the model in the time of :func:`throwaway_server`.
    """
    examples = context.input("examples")
    split = split or ExamplesProperties.of(examples).splits[-1]
    files = example_files(context.local("examples"), split)
    validation = validate_serving(
        model_folder(context.store, context.input("model")),
        files,
        context.scratch,
        requests=requests,
    )
    with context.output() as writer:
        (writer.path / "infra_validation.json").write_text(json.dumps({"blessed": True, **validation}, indent=1))
        return writer.commit(
            rows={split: RowCounts(validation["rows"], validation["rows"])},
            metrics={
                "rows": float(validation["rows"]),
                "load_seconds": validation["load_seconds"],
                "grpc_median_ms": validation["grpc"]["median_ms"],
                "rest_median_ms": validation["rest"]["median_ms"],
            },
            properties=BlessingProperties(True).to_dict(),
        )


def validate_serving(folder: Path, files: Sequence[Path], scratch: Path, *, requests: int = 20) -> dict[str, Any]:
    """Serves a model in a temporary server and requests predictions of real rows.

    Returns:
        ``rows``, ``requests``; ``load_seconds`` from the server's start until the model answered; by ``grpc`` and
        ``rest``, the milliseconds of one-row requests: ``first_ms`` of the first, to a cold model, and ``median_ms``
        and ``max_ms`` of the rest; and ``largest_difference`` of a prediction between a server's answer and this
        process.

    Raises:
        BadInput: the model does not load or its answers are wrong.
        HopsError: the server did not start.
    """
    begun = time.monotonic()
    with throwaway_server(folder, scratch) as wait_until_available:
        # While the server starts, this process loads the same model for the expected answers.
        try:
            model: ScoredModel | None = ScoredModel(folder)
            own_error = None
        except BadInput as error:
            model, own_error = None, str(error)
        grpc_port, rest_port = wait_until_available()
        if model is None:
            raise BadInput(f"the server loads the model, but this process does not: {own_error}")
        loaded = time.monotonic() - begun
        return _ask(grpc_port, rest_port, model, _pick_rows(model, files, requests), loaded)


@contextmanager
def throwaway_server(folder: Path, scratch: Path) -> Iterator[Callable[[], tuple[int, int]]]:
    """Starts a model server on free ports, with the model as version 1, and ends that process afterwards.

    It may take 600 seconds until the model answers, not counting those in which it waits for a core that others use.
    Yields a function that waits until the model answers, and returns the ports of gRPC and REST.

    Raises:
        BadInput: the server refuses the model; the message is the server's.
        HopsError: the server ended, or the model does not answer in time.
    """
    base = scratch / "models"
    base.mkdir(parents=True)
    link = base / str(VERSION)
    link.symlink_to(folder.resolve(), target_is_directory=True)
    ready_file, log_file = scratch / "ready.json", scratch / "server.log"
    # Starts a program: a fork would inherit the operations that this process's libraries registered.
    arguments = (
        "--port=0",
        "--rest_api_port=auto",
        f"--model_name={MODEL_NAME}",
        f"--model_base_path={base}",
        "--file_system_poll_wait_seconds=0",
        "--max_num_load_retries=0",
        "--drain_seconds=0",
        f"--ready_file={ready_file}",
    )

    def last_lines() -> list[str]:
        return log_file.read_text(errors="replace").splitlines()[-_LAST_LINES:]

    with (
        log_file.open("wb") as output,
        running_module(
            "airflow_hops.serving", *arguments, grace_s=3, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        used = GivenTime(process.pid)

        def check_server() -> None:
            code = process.poll()
            if code is not None or used.seconds() > _LOAD_S:
                late = f"has run for {_LOAD_S:g} s, without those in which it waited for a core,"
                problem = late if code is None else f"ended with exit code {code}"
                lines = "\n".join(f"  {line}" for line in last_lines())
                raise HopsError(f"the model server {problem} before the model answered; its last lines:\n{lines}")

        def wait_until_available() -> tuple[int, int]:
            while not ready_file.exists():
                check_server()
                time.sleep(0.02)
            ready = json.loads(ready_file.read_text())
            with ModelServerClient(f"127.0.0.1:{ready['grpc_port']}") as client:
                while True:
                    try:
                        client.wait_until_available(MODEL_NAME, VERSION, _ASK_S)
                        return int(ready["grpc_port"]), int(ready["rest_api_port"])
                    except RequestRefused as error:
                        # The server reports the path of the link, which is unknown to users.
                        message = str(error).replace(str(link), str(link.resolve()))
                        raise BadInput(f"the model server does not load the model: {message}") from error
                    except ModelServerError:
                        check_server()

        try:
            yield wait_until_available
        except BadInput:
            for line in last_lines():
                log.info("server: %s", line)
            raise


def _pick_rows(model: ScoredModel, files: Sequence[Path], count: int) -> dict[str, Any]:
    """Picks rows of the first batch: up to a quarter with missing values, the rest evenly spaced."""
    at_once = batch_rows(scan.schema(files[0]), list(model.inputs))
    for arrays, batch in read_rows(files, model.inputs, batch_rows=at_once):
        gaps = np.zeros(batch.num_rows, bool)
        for name in model.inputs:
            gaps |= batch.column(batch.schema.get_field_index(name)).is_null().to_numpy(zero_copy_only=False)
        with_gaps = np.flatnonzero(gaps)[: count // 4]
        even = np.linspace(0, batch.num_rows - 1, max(1, count - len(with_gaps))).astype(int)
        chosen = np.unique(np.concatenate([with_gaps, even]))
        return {name: values[chosen] for name, values in arrays.items()}
    raise BadInput(f"{files[0].parent}: no rows to make requests from")


def _ask(
    grpc_port: int, rest_port: int, model: ScoredModel, arrays: Mapping[str, Any], load_seconds: float
) -> dict[str, Any]:
    rows = len(next(iter(arrays.values())))
    expected = model.predict(arrays)
    shape = (rows,) if model.classes is None else (rows, model.classes)
    check_answers("the model", expected, shape, model.problem)
    tolerance = TOLERANCE * (float(np.abs(expected).max()) if model.problem == REGRESSION else 1.0)
    singles = [{name: values[row : row + 1] for name, values in arrays.items()} for row in range(rows)]
    answers: dict[str, np.ndarray] = {}
    try:
        with ModelServerClient(f"127.0.0.1:{grpc_port}", timeout_s=_ANSWER_S) as client:

            def grpc(request: Mapping[str, object]) -> Any:
                return np.asarray(client.predict(MODEL_NAME, request, version=VERSION).outputs[model.output])

            answers["gRPC, row by row"], grpc_ms = _timed(grpc, singles)
            answers["gRPC, all rows"] = grpc(arrays)
    except (ModelServerError, KeyError, ValueError) as error:
        raise _no_answer(f"gRPC request of {rows} rows", error) from error
    by_rest = RestClient("127.0.0.1", rest_port, timeout_s=_ANSWER_S)

    def rest(request: Mapping[str, object]) -> Any:
        outputs = by_rest.predict(MODEL_NAME, request, version=VERSION).outputs
        return np.asarray(outputs.get(model.output, outputs.get("outputs")), np.float64)  # a single one has no name

    try:
        answers["REST, row by row"], rest_ms = _timed(rest, singles)
        answers["REST, all rows"] = rest(arrays)
    except (ModelServerError, KeyError, ValueError, TypeError) as error:
        raise _no_answer(f"REST request of {rows} rows", error) from error
    largest = 0.0
    for name, result in answers.items():
        check_answers(name, result, shape, model.problem)
        difference = float(np.abs(result.astype(np.float64) - expected).max())
        largest = max(largest, difference)
        if difference > tolerance:
            worst = np.unravel_index(int(np.abs(result - expected).argmax()), shape)
            raise BadInput(
                f"{name}: the server answers {result[worst]:.7g} for a row for which the model, loaded in this "
                f"process, gives {expected[worst]:.7g}; the allowed difference is {tolerance:g}"
            )
    return {
        "rows": rows,
        "requests": 2 * (rows + 1),
        "load_seconds": round(load_seconds, 3),
        "grpc": grpc_ms,
        "rest": rest_ms,
        "largest_difference": largest,
    }


def _no_answer(request: str, error: Exception) -> HopsError:
    """Returns the error of a request without a usable answer, retryable if the server may only have been slow."""
    kind = HopsError if isinstance(error, ModelServerError) and error.retryable else BadInput
    return kind(f"the model server does not answer a {request}: {error or type(error).__name__}")


def _timed(ask: Any, requests: Sequence[Mapping[str, object]]) -> tuple[np.ndarray, dict[str, float]]:
    answers, milliseconds = [], []
    for request in requests:
        begun = time.perf_counter()
        answers.append(np.atleast_1d(ask(request)))
        milliseconds.append(1000 * (time.perf_counter() - begun))
    others = milliseconds[1:] or milliseconds
    latency = {"first_ms": milliseconds[0], "median_ms": np.median(others), "max_ms": max(others)}
    return np.concatenate(answers), {name: round(float(ms), 3) for name, ms in latency.items()}


def check_answers(name: str, values: np.ndarray, shape: tuple[int, ...], problem: Problem) -> None:
    """Checks that answers can be predictions.

    Raises:
        BadInput: the shape differs, or training and evaluation would refuse such predictions.
    """
    if values.shape != shape:
        raise BadInput(f"{name}: predictions of shape {list(values.shape)} for {shape[0]} rows, expected {list(shape)}")
    check_predictions(values, problem, f"{name}: the prediction")
