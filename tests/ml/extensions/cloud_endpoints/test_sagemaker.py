"""Endpoints of SageMaker, as moto has them: deployments, canaries by weights, kills, and changes by others."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from waiting import address_of

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.cloud_endpoints.ml import sagemaker
from airflow_hops.extensions.cloud_endpoints.ml.sagemaker import SageMakerEndpoints
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.testing.model_servers import ModelServerContract
from tests.ml.extensions.cloud_endpoints.endpoint_contract import Connect, EndpointContract, canary

pytestmark = [pytest.mark.runtime, pytest.mark.server]

SETTINGS = {
    "ExecutionRoleArn": "arn:aws:iam::123456789012:role/models",
    "Container": {"Image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-inference:2.16-cpu"},
    "Variant": {"InstanceType": "ml.m5.large", "InitialInstanceCount": 2},
    "DataCaptureConfig": {
        "EnableCapture": True, "InitialSamplingPercentage": 100, "DestinationS3Uri": "s3://models/captured",
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of moto, with credentials set."""
    repository = Path(__file__).parents[4]
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [
        repository / ".venv/bin/python",
        Path(__file__).with_name("sagemaker_api.py"),
        "-H",
        "127.0.0.1",
        "-p",
        "0",
    ]
    with pytest.MonkeyPatch.context() as patch, log.open("w") as stream:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setattr(SageMakerEndpoints, "poll_s", 0.01)
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
        try:
            yield address_of(process, log)
        finally:
            process.terminate()
            process.wait()


def services_of(api: str, **changes: Any) -> dict[str, str]:
    return {
        "serving_kind": "sagemaker",
        "serving_base_path": "s3://models/served",
        "serving_storage_options": json.dumps({"endpoint_url": api}),
        "serving_aws_endpoint_url": api,
        "serving_sagemaker": json.dumps({**SETTINGS, **changes}),
    }


@pytest.fixture
def name() -> str:
    return f"flights-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def connect(api: str, tmp_path: Path) -> Connect:
    def make(**changes: Any) -> Any:
        return ModelServer.of(services_of(api, **changes), ArtifactStore(str(tmp_path / "store")))

    return make


@pytest.fixture
def aws(api: str) -> Any:
    from botocore.session import get_session

    return get_session().create_client("sagemaker", endpoint_url=api)


def weights(aws: Any, name: str) -> dict[str, float]:
    """The endpoint's weights as AWS shows them."""
    variants = aws.describe_endpoint(EndpointName=name)["ProductionVariants"]
    return {each["VariantName"]: each.get("DesiredWeight", 0.0) for each in variants}


class TestContract(ModelServerContract):
    kind = "sagemaker"

    @pytest.fixture
    def services(self, api: str) -> Mapping[str, str]:
        return services_of(api)

    def write(self, folder: Path) -> None:
        write_model(folder)


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"model")


class TestEndpoints(EndpointContract):
    kills = (40, 40)

    @pytest.fixture
    def connect(self, connect: Connect, aws: Any, monkeypatch: pytest.MonkeyPatch) -> Connect:
        monkeypatch.setattr(sagemaker, "_client", lambda services: aws)  # making one takes 0.1 s
        return connect

    @pytest.fixture
    def service(self, aws: Any) -> Any:
        return aws

    def weights(self, service: Any, name: str) -> dict[str, float]:
        return weights(service, name)

    def left_behind(self, service: Any, name: str) -> list[str]:
        """Names of the endpoints, configs and models whose names begin with one."""
        names = []
        for kind in ("Endpoint", "EndpointConfig", "Model"):
            pages = service.get_paginator(f"list_{re.sub('(?<=t)C', '_c', kind).lower()}s").paginate()
            names += [each[f"{kind}Name"] for page in pages for each in page[f"{kind}s"]]
        return [each for each in names if each.startswith(name)]


def test_config_and_model_are_those_of_the_connection(connect: Connect, aws: Any, name: str) -> None:
    for step in [*canary(connect(), name)][:2]:
        step()
    config = aws.describe_endpoint_config(
        EndpointConfigName=aws.describe_endpoint(EndpointName=name)["EndpointConfigName"]
    )
    assert config["DataCaptureConfig"]["DestinationS3Uri"] == "s3://models/captured"
    model = aws.describe_model(ModelName=f"{name}-2")
    source = {"S3Uri": f"s3://models/served/{name}/2/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    assert model["PrimaryContainer"]["ModelDataSource"] == {"S3DataSource": source}


def test_change_by_somebody_else_is_named_and_not_overwritten(connect: Connect, aws: Any, name: str) -> None:
    server = connect()
    for step in [*canary(server, name)][:3]:
        step()
    aws.update_endpoint_weights_and_capacities(
        EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "v2", "DesiredWeight": 60.0}]
    )
    fault = "the variant 'v2' has the weight 60, and was given 20: somebody else has changed it"
    for change in (
        lambda: server.set_traffic(name, {2: 100}),
        lambda: server.serve(name, [1]),
        lambda: server.shares.read(name),
        lambda: server.withdraw(name),
    ):
        with pytest.raises(BadInput, match=fault):
            change()
    assert weights(aws, name) == {"v1": 80.0, "v2": 60.0}
    aws.update_endpoint_weights_and_capacities(
        EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "v2", "DesiredWeight": 20.0}]
    )
    server.set_traffic(name, {2: 100})
    aws.delete_endpoint(EndpointName=name)
    with pytest.raises(BadInput, match="it was deleted, and had the config"):
        server.serve(name, [2])


def test_update_of_somebody_else_is_refused_while_it_runs(connect: Connect, aws: Any, name: str) -> None:
    """Such as a blue/green deployment of SageMaker's own, with a canary."""
    server = connect()
    for step in [*canary(server, name)][:3]:
        step()
    served = aws.describe_endpoint(EndpointName=name)["EndpointConfigName"]
    variants = aws.describe_endpoint_config(EndpointConfigName=served)["ProductionVariants"]
    aws.create_endpoint_config(EndpointConfigName=f"{name}-theirs", ProductionVariants=variants)
    for change in (lambda: server.set_traffic(name, {2: 100}), lambda: server.withdraw(name)):
        aws.update_endpoint(
            EndpointName=name, EndpointConfigName=f"{name}-theirs",
            DeploymentConfig={"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {
                "Type": "CANARY", "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 30}, "WaitIntervalInSeconds": 60,
            }}},
        )  # fmt: skip
        with pytest.raises(BadInput, match=f"is Updating: somebody else is changing it to '{name}-theirs'; wait until"):
            change()
        while aws.describe_endpoint(EndpointName=name)["EndpointStatus"] == "Updating":
            pass
    with pytest.raises(BadInput, match=r"its config is|has the weight"):
        server.set_traffic(name, {2: 100})


def test_foreign_endpoint_is_refused(connect: Connect, aws: Any, name: str, tmp_path: Path) -> None:
    next(canary(connect(), name))()
    (tmp_path / "store" / "_serving" / f"sagemaker_{name}.json").unlink()
    with pytest.raises(BadInput, match="and was not made with this store; delete it, or give the model another name"):
        connect().serve(name, [1])


def test_variant_that_does_not_start_is_an_error_and_the_champion_stays(connect: Connect, aws: Any, name: str) -> None:
    broken = connect(Container={"Image": "broken"})
    nothing = broken.serve(name, [1])
    with pytest.raises(BadInput, match="variant 'v1': the container did not answer"):
        broken.wait_until_available(name, 1, 60)
    broken.restore(name, nothing)
    server = connect()
    next(canary(server, name))()
    previous = broken.serve(name, [1, 2])
    with pytest.raises(BadInput, match="variant 'v2': the container did not answer"):
        broken.wait_until_available(name, 2, 60)
    broken.restore(name, previous)
    assert server.configured(name) == [1] and weights(aws, name) == {"v1": 100.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"serving_sagemaker": "{}"}, "expected ExecutionRoleArn, Container with an Image, Variant such as"),
        ({"serving_sagemaker": json.dumps({**SETTINGS, "Varient": {}})}, "Varient.*expected ExecutionRoleArn"),
        ({"serving_base_path": "/models"}, "is '/models'; SageMaker reads models from s3:// only"),
    ],
)
def test_wrong_connection_is_refused(api: str, changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        ModelServer.of({**services_of(api), **changes}, ArtifactStore(str(tmp_path / "store")))


def test_unsupported_operations_are_refused(connect: Connect) -> None:
    with pytest.raises(BadInput, match="model_name is 'late_flights', which cannot be the name of an endpoint"):
        connect().status("late_flights")
    services = services_of("http://127.0.0.1:9")
    with pytest.raises(HopsError, match="SageMaker does not answer describe_endpoint"):
        ModelServer.of(services, connect().store).status("flights")


@pytest.mark.parametrize(
    ("code", "message", "status", "is_retried"),
    [
        ("ThrottlingException", "Rate exceeded", 400, True),
        ("ThrottledException", "Rate exceeded", 400, True),
        ("ExpiredTokenException", "The security token included in the request is expired", 400, True),
        ("ValidationException", "Cannot update in-progress endpoint arn:aws:sagemaker:x", 400, True),
        ("", "", 503, True),
        ("AccessDeniedException", "User is not authorized to perform: sagemaker:CreateModel", 400, False),
        ("ValidationException", "Variant v1 was not found", 400, False),
    ],
)
def test_only_errors_that_may_pass_are_retried(
    connect: Connect, code: str, message: str, status: int, is_retried: bool
) -> None:
    from botocore.stub import Stubber

    server: Any = connect().shares
    with Stubber(server._client) as stubber:
        stubber.add_client_error("describe_endpoint", code, message, status)
        with pytest.raises(HopsError, match=r"SageMaker refuses describe_endpoint") as failure:
            server._call("describe_endpoint", EndpointName="e")
    assert failure.value.retryable is is_retried
