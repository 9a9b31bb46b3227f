"""SageMaker as a model server: an endpoint for each model, whose variants are the versions that it serves."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_hops.core.errors import BadInput, ConnectionFieldError, HopsError
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.cloud_endpoints.ml.endpoints import CloudEndpoints, Endpoint, EndpointState, by_version
from airflow_hops.extensions.cloud_endpoints.ml.server import EndpointServer
from airflow_hops.ml.model_server.version_folders import VersionFolders

# A config of an endpoint never changes, so its name has the digest of its content.

_NAME_CHARACTERS = 50
"""A config's name adds ``-`` and 12 characters to the endpoint's; SageMaker allows 63."""
_SERVING = ("InService", "Updating", "SystemUpdating", "RollingBack")
_IN_TRANSIT = ("Creating", "Deleting", *_SERVING[1:])
_RETRIED = re.compile(
    "throttl|RequestLimitExceeded|TooManyRequests|InternalFailure|InternalServer|ServiceUnavailable|RequestTimeout"
    "|ExpiredToken|in-progress",
    re.IGNORECASE,
)
"""Codes and messages of errors that a retry may not meet: of a busy service, old credentials, another's change."""
_FIELDS = {"ExecutionRoleArn", "Container", "Variant", "DataCaptureConfig"}


class SageMakerEndpoints(CloudEndpoints):
    """The endpoints of SageMaker; the variant ``v3`` serves version 3. Models are on S3."""

    kind = "sagemaker"
    service = "SageMaker"
    part = "variant"
    names = (
        rf"(?=.{{1,{_NAME_CHARACTERS}}}$)[a-zA-Z0-9](-*[a-zA-Z0-9])*",
        f"at most {_NAME_CHARACTERS} letters, digits and hyphens",
    )

    def __init__(
        self, services: Mapping[str, str], places: SharedPlaces, folders: VersionFolders, store: ArtifactStore
    ) -> None:
        super().__init__(services, places, folders, store)
        where = "connection field 'serving_sagemaker'"
        self._settings = json_object(services.get("serving_sagemaker"), where)
        variant, container = self._settings.get("Variant"), self._settings.get("Container")
        if (
            not self._settings.keys() <= _FIELDS
            or not isinstance(self._settings.get("ExecutionRoleArn"), str)
            or not (isinstance(variant, Mapping) and isinstance(container, Mapping) and container.get("Image"))
        ):
            raise BadInput(
                f"{where} is {dict(self._settings)!r}; expected ExecutionRoleArn, Container with an Image, Variant "
                'such as {"InstanceType": "ml.m5.large", "InitialInstanceCount": 1}, and optionally DataCaptureConfig'
            )
        if not places.server_base_path.startswith("s3://"):
            raise ConnectionFieldError(
                "serving_base_path", f" is {places.base_path!r}; SageMaker reads models from s3:// only"
            )
        self._variant, self._container = dict(variant), dict(container)
        self._base_path, self._client = places.server_base_path, _client(services)

    def _describe(self, name: str) -> Endpoint:
        answer = self._find("describe_endpoint", EndpointName=name)
        if answer is None:
            return Endpoint()
        weights = {
            each["VariantName"]: float(each.get("DesiredWeight") or 0.0)
            for each in answer.get("ProductionVariants", [])
        }
        return Endpoint(
            status := answer["EndpointStatus"],
            in_transit=status in _IN_TRANSIT,
            serves=status in _SERVING,
            failure=answer.get("FailureReason", ""),
            state=EndpointState(answer["EndpointConfigName"], by_version(weights)),
            pending=answer.get("PendingDeploymentSummary", {}).get("EndpointConfigName", ""),
        )

    def _intend(self, name: str, present: EndpointState | None, weights: Mapping[str, float]) -> EndpointState:
        if present is not None and present.weights.keys() == weights.keys():
            return EndpointState(present.config, weights)
        return EndpointState(self._config(name, weights)["EndpointConfigName"], weights)

    def _apply(self, name: str, present: EndpointState | None, intended: EndpointState) -> None:
        if present is not None and present.config == intended.config:
            desired = [{"VariantName": f"v{number}", "DesiredWeight": w} for number, w in intended.weights.items()]
            self._call("update_endpoint_weights_and_capacities", EndpointName=name, DesiredWeightsAndCapacities=desired)
            return
        for version in intended.weights:
            self._create_model(name, version)
        if self._find("describe_endpoint_config", EndpointConfigName=intended.config) is None:
            self._call("create_endpoint_config", **self._config(name, intended.weights))
        if present is None:
            self._call("create_endpoint", EndpointName=name, EndpointConfigName=intended.config)
        else:
            self._call(
                "update_endpoint",
                EndpointName=name,
                EndpointConfigName=intended.config,
                # Numbers of instances stay, which autoscaling may have set; the weights are the config's.
                RetainAllVariantProperties=True,
                ExcludeRetainedVariantProperties=[{"VariantPropertyType": "DesiredWeight"}],
            )

    def _delete_endpoint(self, name: str) -> None:
        self._find("delete_endpoint", EndpointName=name)

    def _remove_unused(self, name: str, former: EndpointState | None, state: EndpointState | None) -> None:
        """Deletes config and models."""
        if former is not None and (state is None or state.config != former.config):
            self._find("delete_endpoint_config", EndpointConfigName=former.config)
            for version in former.weights.keys() - (state.weights.keys() if state else ()):
                self._find("delete_model", ModelName=f"{name}-{version}")

    def _config(self, name: str, weights: Mapping[str, float]) -> dict[str, Any]:
        variants = [
            {**self._variant, "VariantName": f"v{version}", "ModelName": f"{name}-{version}", "InitialVariantWeight": w}
            for version, w in weights.items()
        ]
        capture = self._settings.get("DataCaptureConfig")
        request = {"ProductionVariants": variants, **({"DataCaptureConfig": capture} if capture else {})}
        digest = hashlib.blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=6).hexdigest()
        return {"EndpointConfigName": f"{name}-{digest}", **request}

    def _create_model(self, name: str, version: str) -> None:
        """Creates the model of a version. Raises BadInput if there is another model of its name."""
        place = f"{self._base_path}/{name}/{version}/"
        source = {"S3Uri": place, "S3DataType": "S3Prefix", "CompressionType": "None"}
        model = f"{name}-{version}"
        present = self._find("describe_model", ModelName=model)
        if present is None:
            self._call(
                "create_model",
                ModelName=model,
                ExecutionRoleArn=self._settings["ExecutionRoleArn"],
                PrimaryContainer={**self._container, "ModelDataSource": {"S3DataSource": source}},
            )
            return
        container = present.get("PrimaryContainer") or {}
        present_source = container.get("ModelDataSource", {}).get("S3DataSource", {})
        uri = present_source.get("S3Uri") or container.get("ModelDataUrl")
        if uri != place:
            raise BadInput(
                f"SageMaker's model {model!r} is at {uri}, expected {place}: somebody else has made it; delete it, "
                "or give the model another name"
            )

    def _find(self, operation: str, **fields: Any) -> dict[str, Any] | None:
        """Calls an operation; returns None if what it names does not exist."""
        answer: dict[str, Any] | None = self._call(operation, may_lack=True, **fields)
        return answer

    def _call(self, operation: str, *, may_lack: bool = False, **fields: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        call: Callable[..., Any] = getattr(self._client, operation)
        try:
            return call(**fields)
        except ClientError as error:
            code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
            if may_lack and ("could not find" in message.lower() or "does not exist" in message.lower()):
                return None
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            kind = HopsError if _RETRIED.search(f"{code} {message}") or status >= 500 else BadInput
            raise kind(f"SageMaker refuses {operation} ({code}): {message}") from error
        except BotoCoreError as error:
            raise HopsError(f"SageMaker does not answer {operation}: {error}") from error


def _client(services: Mapping[str, str]) -> Any:
    """Returns a client of SageMaker. Raises BadInput if there is no region."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    names = {
        "region_name": "region_name",
        "endpoint_url": "endpoint_url",
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    options = {option: services.get(f"serving_aws_{name}") or None for option, name in names.items()}
    try:
        return get_session().create_client("sagemaker", **options)
    except (BotoCoreError, ValueError) as error:
        raise BadInput(
            f"SageMaker cannot be reached: {error}; see the connection's field 'serving_aws_conn_id'"
        ) from error


@dataclass(frozen=True)
class SageMakerServer(EndpointServer):
    """Endpoints of SageMaker."""

    endpoints: ClassVar[type[CloudEndpoints]] = SageMakerEndpoints
