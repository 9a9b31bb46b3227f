"""The infra-validate stage: a model serves in a server of its own, or the task says why not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_models import write_echo_model

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml import infra_validate
from tests.ml.forked_servers import running_fork
from tests.ml.world import Flights

pytestmark = pytest.mark.server

Validate = Callable[..., Artifact]


@pytest.fixture(scope="module")
def model(flights: Flights) -> Artifact:
    """A model whose probability is the column ``x``; it has a further output for ``gaps``."""
    facts = {"label": "late", "problem": "binary", "signature": "serving_default"}
    return flights.echo("probability", ["x"], {"more": "gaps"}, **facts)


@pytest.fixture(scope="module")
def validate(flights: Flights) -> Validate:
    """Runs the stage; whatever happens, no server of it is left."""
    frame = pd.DataFrame({"x": np.linspace(0, 1, 60, dtype=np.float32), "gaps": [1.0, None] * 30, "late": [0, 1] * 30})
    examples = flights.examples({"train": frame, "eval": frame}, key=None, time=None)

    def run(model: Artifact, **params: Any) -> Artifact:
        children = psutil.Process().children(recursive=True)  # such as the servers of fixtures
        try:
            artifact: Artifact = flights.run(infra_validate, model=model, examples=examples, **params)
        finally:
            started = set(psutil.Process().children(recursive=True)) - set(children)
            assert not [each for each in started if "airflow_hops.serving" in each.cmdline()]
        return artifact

    return run


def test_served_model_is_blessed_with_its_latencies(validate: Validate, flights: Flights, model: Artifact) -> None:
    artifact = validate(model, requests=12)
    assert artifact.properties == {"blessed": True}
    result = flights.read(artifact, "infra_validation.json")
    assert 8 <= result["rows"] <= 12 and result["requests"] == 2 * (result["rows"] + 1)
    assert result["largest_difference"] < 1e-5
    for api in ("grpc", "rest"):
        assert 0 < result[api]["median_ms"] <= result[api]["max_ms"]
    assert artifact.metrics["load_seconds"] > 0


def test_damaged_saved_model_fails_with_the_servers_message(
    validate: Validate, flights: Flights, model: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra_validate, "running_module", running_fork)

    def write(folder: Path) -> None:
        shutil.copytree(flights.store.local(model) / "saved_model", folder)
        graph = folder / "saved_model.pb"
        graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])

    damaged = flights.model(write, run_id="damaged")
    with pytest.raises(BadInput, match=r"the model server does not load the model: .*/damaged/model/") as failed:
        validate(damaged)
    assert "saved_model.pb" in str(failed.value)


def test_server_that_exceeds_a_limit_is_ended(
    validate: Validate, model: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra_validate, "running_module", running_fork)
    monkeypatch.setattr(infra_validate, "_LOAD_S", -1.0)
    with pytest.raises(HopsError, match=r"server has run for -1 s, .* before the model answered; its last") as failed:
        validate(model)
    assert failed.value.retryable


def test_probabilities_are_bounded_and_regression_serves_numbers_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra_validate, "running_module", running_fork)
    pq.write_table(pa.table({"price": np.linspace(1e6, 3e6, 50) / 3}), tmp_path / "rows.parquet")

    def rows_of(output: str) -> int:
        (tmp_path / output).mkdir()
        saved = write_echo_model(tmp_path / f"{output}-model", output, ["price"])
        files = [tmp_path / "rows.parquet"]
        return infra_validate.validate_serving(saved, files, tmp_path / output, requests=4)["rows"]

    assert rows_of("prediction") == 4
    with pytest.raises(BadInput, match=r"the model: the prediction is .*, outside \[0, 1\] in 4 of 4 rows"):
        rows_of("probability")


@pytest.mark.parametrize(
    ("problem", "values", "words"),
    [
        ("regression", [1e9, np.inf], "REST: the prediction is NaN or infinite in 1 of 2 rows"),
        ("binary", [0.5, 1.5], r"REST: the prediction is 0.5 to 1.5, outside \[0, 1\] in 1 of 2 rows"),
        (
            "multiclass",
            [[0.5, 0.5], [0.9, 0.7]],
            "REST: the prediction of all classes do not add up to 1 in 1 of 2 rows, .* 1.6;",
        ),
        ("multiclass", [0.5, 0.5], r"REST: predictions of shape \[2\] for 2 rows, expected \[2, 2\]"),
    ],
)
def test_impossible_predictions_are_refused(problem: Any, values: list[Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        infra_validate.check_answers("REST", np.array(values), (2, 2) if problem == "multiclass" else (2,), problem)


def test_answers_may_round_like_training() -> None:
    infra_validate.check_answers("REST", np.array([-1.2e-7, 1 + 1.2e-7]), (2,), "binary")
    softmax_in_bfloat16 = np.array([[0.25, 0.75], [0.2578125, 0.74609375]])
    infra_validate.check_answers("REST", softmax_in_bfloat16, (2, 2), "multiclass")


def test_unknown_split_is_named(validate: Validate, model: Artifact) -> None:
    with pytest.raises(BadInput, match="no Parquet files of split 'test'; there are the splits eval, train"):
        validate(model, split="test")
