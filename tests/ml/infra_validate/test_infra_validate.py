"""The infra-validate stage: a model serves in a server of its own, or the task says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_models import write_echo_model

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml import infra_validate
from airflow_hops.ml.step.context import StepContext
from tests import flights_examples
from tests.ml.forked_servers import running_fork

pytestmark = pytest.mark.server

Validate = Callable[..., Artifact]


@pytest.fixture(scope="module")
def model(run_shared_stage: Callable[..., Any]) -> Artifact:
    """A model whose probability is the column ``x``; it has a further output for ``gaps``."""

    def write(context: StepContext) -> Artifact:
        with context.output() as writer:
            write_echo_model(writer.path / "saved_model", "probability", ["x"], {"more": "gaps"})
            return writer.commit(properties={"label": "late", "problem": "binary", "signature": "serving_default"})

    return run_shared_stage(write, kind="model")


@pytest.fixture(scope="module")
def validate(run_shared_stage: Callable[..., Any], shared_store: ArtifactStore) -> Validate:
    """Runs the stage; a failure leaves no artifact, and whatever happens, no server of it is left."""
    frame = pd.DataFrame({"x": np.linspace(0, 1, 60, dtype=np.float32), "gaps": [1.0, None] * 30, "late": [0, 1] * 30})
    examples = flights_examples.write_examples(
        shared_store, {"train": frame, "eval": frame}, run_id="infra-validate", key=None, time=None
    )

    def run(model: Artifact, **params: Any) -> Artifact:
        inputs = {"model": model, "examples": examples}
        run_id = f"infra-validate-{next(numbers)}"
        children = psutil.Process().children(recursive=True)  # such as the servers of fixtures
        try:
            artifact: Artifact = run_shared_stage(
                infra_validate.run, kind="infra_blessing", inputs=inputs, run_id=run_id, **params
            )
        except HopsError:
            producer = Producer("tests", run_id, "infra_blessing")
            assert not shared_store.exists(shared_store.address(producer, "infra_blessing"))
            raise
        finally:
            started = set(psutil.Process().children(recursive=True)) - set(children)
            assert not [each for each in started if "airflow_hops.serving" in each.cmdline()]
        return artifact

    numbers = count()
    return run


def test_served_model_is_blessed_with_its_latencies(
    validate: Validate, shared_store: ArtifactStore, model: Artifact
) -> None:
    artifact = validate(model, requests=12)
    assert artifact.properties == {"blessed": True}
    result = json.loads((shared_store.local(artifact) / "infra_validation.json").read_text())
    assert 8 <= result["rows"] <= 12 and result["requests"] == 2 * (result["rows"] + 1)
    assert result["largest_difference"] < 1e-5
    for api in ("grpc", "rest"):
        assert 0 < result[api]["median_ms"] <= result[api]["max_ms"]
    assert artifact.metrics["load_seconds"] > 0


def test_damaged_saved_model_fails_with_the_servers_message(
    validate: Validate, shared_store: ArtifactStore, model: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra_validate, "running_module", running_fork)
    with shared_store.create(shared_store.uri("tests", "damaged", "train", "model"), "model", Producer()) as writer:
        target = writer.path / "saved_model"
        shutil.copytree(shared_store.local(model) / "saved_model", target)
        graph = target / "saved_model.pb"
        graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
        damaged = writer.commit()
    with pytest.raises(BadInput, match=r"the model server does not load the model: .*/damaged/train/model/") as failed:
        validate(damaged)
    assert "saved_model.pb" in str(failed.value)


def test_server_that_exceeds_a_limit_is_ended(
    validate: Validate, model: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra_validate, "running_module", running_fork)
    monkeypatch.setattr(infra_validate, "_LOAD_S", -1.0)
    with pytest.raises(HopsError, match="server has run for -1 s before the model answered; its last") as failed:
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
