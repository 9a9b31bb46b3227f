"""Deployments to SageMaker's endpoints by the steps of operators, with moto's SageMaker and S3."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from airflow.sdk import DAG
from served_models import Pipeline
from waiting import address_of, wait_for
from world import context_of

from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.cloud_endpoints.hooks import sagemaker_services
from airflow_hops.operators import IngestOperator
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = [pytest.mark.runtime, pytest.mark.server]

API = Path(__file__).parents[2] / "ml/extensions/cloud_endpoints/sagemaker_api.py"
SETTINGS = {
    "ExecutionRoleArn": "arn:aws:iam::123456789012:role/models",
    "Container": {"Image": "tensorflow-inference:2.16-cpu"},
    "Variant": {"InstanceType": "ml.m5.large", "InitialInstanceCount": 1},
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as stream:
        process = subprocess.Popen([sys.executable, API, "-H", "127.0.0.1", "-p", "0"], stdout=stream, stderr=stream)
        try:
            yield address_of(process, log)
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def services(api: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    extra = {"region_name": "us-east-1", "endpoint_url": api}
    connection = {"conn_type": "aws", "login": "testing", "password": "testing-secret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_MODELS", json.dumps(connection))
    fields = {
        "serving_kind": "sagemaker",
        "serving_aws_conn_id": "aws_models",
        "serving_sagemaker": json.dumps(SETTINGS),
        "serving_base_path": "s3://models/served",
        "serving_storage_options": json.dumps({"endpoint_url": api, "key": "testing", "secret": "testing"}),
        "serving_rest_port": "",
        "serving_config_file": "",
        "serving_traffic_file": "",
    }
    return {**fields, **sagemaker_services(fields)}


def test_connection_that_cannot_be_used_is_named() -> None:
    assert sagemaker_services({}) == {}
    with pytest.raises(BadInput, match="serving_aws_conn_id: connection 'nowhere' cannot be used"):
        sagemaker_services({"serving_aws_conn_id": "nowhere"})


def ingest(folder: Path, model_name: str) -> None:
    """Ingests 60 requests to each version, written as SageMaker's data capture does, by the operator."""
    time = datetime.now(UTC)
    for version in (1, 2):
        lines = []
        for number in range(60):
            sides = {"endpointInput": f"{number},1", "endpointOutput": f"{number / 60}"}
            data = {side: {"data": text, "encoding": "CSV"} for side, text in sides.items()}
            event = {"eventId": f"{version}-{number}", "inferenceTime": time.isoformat()}
            lines.append(json.dumps({"captureData": data, "eventMetadata": event}))
        path = folder / model_name / f"v{version}" / f"{time:%Y/%m/%d/%H}" / "0.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(lines) + "\n")
    source = CapturedSource(str(folder), model=model_name, layout="sagemaker", inputs=("age", "fare"))
    with DAG("logs", schedule=None):
        operator = IngestOperator(task_id="ingest", sources={"log": source})
    operator.run_step(RuntimeHook(), context_of("ingest", "logs"))


def test_canary_is_deployed_promoted_by_its_log_and_rolled_back(
    pipeline: Pipeline, services: dict[str, str], api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"flights-{uuid.uuid4().hex[:6]}"
    flights = replace(pipeline, name=name)
    keys = {"region_name": "us-east-1", "aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    aws = boto3.client("sagemaker", endpoint_url=api, **keys)

    def weights() -> dict[str, float]:
        variants = aws.describe_endpoint(EndpointName=name)["ProductionVariants"]
        return {each["VariantName"]: each.get("DesiredWeight", 0.0) for each in variants}

    def deploy(kind: str, **settings: Any) -> Any:
        changed = {**services, "serving_sagemaker": json.dumps({**SETTINGS, **settings})}
        return flights.deploy(flights.model(kind), services=changed, available_timeout_s=60.0)

    assert deploy("first").properties["mode"] == "champion"
    assert weights() == {"v1": 100.0}
    with pytest.raises(StepFailed, match="variant 'v2': the container did not answer"):
        deploy("second", Container={"Image": "broken"})
    assert weights() == {"v1": 100.0}
    deployment = deploy("second")
    assert deployment.properties["traffic"] == {"1": 80, "2": 20}
    assert weights() == {"v1": 80.0, "v2": 20.0}
    recorded = flights.record()
    with pytest.raises(StepFailed, match="ingest its log with CapturedSource first") as caught:
        flights.poll(deployment, services=services)
    assert not caught.value.retryable and flights.record() == recorded
    flights.connect(monkeypatch)
    ingest(tmp_path / "log", name)
    rollout = flights.poll(deployment, services=services, steps=[100])
    assert rollout.properties["decision"] == "promoted" and rollout.metrics["canary_requests"] == 60
    wait_for(lambda: weights() == {"v2": 100.0}, "the former champion's end", 30)
    deploy("third")
    assert weights() == {"v2": 80.0, "v3": 20.0}
    assert flights.decide("roll_back", to_version=None, services=services)["traffic"] == {"2": 100}
    wait_for(lambda: weights() == {"v2": 100.0}, "the canary's end", 30)
    flights.decide("undeploy", version=None, force=True, services=services)
    assert name not in {each["EndpointName"] for each in aws.list_endpoints()["Endpoints"]}
    assert "testing-secret" not in "".join(line.text for line in flights.runner.lines)
