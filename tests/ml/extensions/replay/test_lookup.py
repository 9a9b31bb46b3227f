"""Runs and registered versions of MLflow that lead back to a model artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from airflow_hops.core.contract.artifacts import Artifact, BadInput, Producer
from airflow_hops.extensions.replay.ml.reproduce.lookup import run as look_up
from airflow_hops.ml.tracking import ModelRegistry

pytestmark = pytest.mark.runtime


def test_run_and_version_lead_to_their_model(make_context: Any, tmp_path: Path) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    model = Artifact("file:///store/model", "model", "f", metrics={"train_loss": 0.5})
    ModelRegistry(tracking_uri, "m").register(model, Producer("shop", "weekly", "deploy"))
    run_id = MlflowClient(tracking_uri).get_model_version("m", "1").run_id
    context = make_context(services={"tracking_uri": tracking_uri})
    result = look_up(context, run_id=run_id)
    assert (result["dag_id"], result["model"], result["record"]) == ("shop", model.uri, None)
    assert result["metrics"]["model.train_loss"] == 0.5
    assert look_up(context, model="m", version=1) == {"model": model.uri, "fingerprint": "f"}
    with pytest.raises(BadInput, match="has no run 0000"):
        look_up(context, run_id="0" * 32)
