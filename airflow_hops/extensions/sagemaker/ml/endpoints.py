"""Endpoints of SageMaker: what was written to them last, and changes that survive a kill.

``<store>/_serving/sagemaker_<endpoint>.json`` has the endpoint's config and weights as they were written last.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from airflow_hops.core.errors import BadInput, ConnectionFieldError, HopsError
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore

# A change: wait until no other one is under way; compare the endpoint with the record, which must be the state that was
# written last, or the one that was intended; write the intended state; apply it; once SageMaker is done, write it as
# the present one. So a kill at any point leaves an endpoint that equals one of both, and a retry goes on from there. An
# endpoint that equals neither was changed by somebody else, and stays as it is.
# A config of an endpoint never changes, so its name has the digest of its content.

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_NAME_CHARACTERS = 50
"""A config's name adds ``-`` and 12 characters to the endpoint's; SageMaker allows 63."""
_IN_TRANSIT = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")
_RETRIED = re.compile(
    "throttl|RequestLimitExceeded|TooManyRequests|InternalFailure|InternalServer|ServiceUnavailable|RequestTimeout"
    "|ExpiredToken|in-progress",
    re.IGNORECASE,
)
"""Codes and messages of errors that a retry may not meet: of a busy service, old credentials, another's change."""
_FIELDS = {"ExecutionRoleArn", "Container", "Variant", "DataCaptureConfig"}


@dataclass(frozen=True)
class EndpointState(JsonFields):
    """Config and weights of an endpoint.

    Attributes:
        config: Name of its config.
        weights: Version to weight.
    """

    config: str
    weights: Mapping[str, float]

    @property
    def versions(self) -> list[int]:
        """The versions, in order."""
        return sorted(map(int, self.weights))


@dataclass(frozen=True)
class EndpointRecord(JsonFields):
    """Record of what was written to an endpoint.

    Attributes:
        state: What it had after the last change; None if it did not exist.
        intended: What the change under way makes of it; None if that removes it.
        is_changing: Whether a change is under way.
        labels: Label to version, which SageMaker does not know.
    """

    state: EndpointState | None = None
    intended: EndpointState | None = None
    is_changing: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as SageMaker describes it.

    Attributes:
        status: Its status; empty if it does not exist.
        failure: Reason of the last failure.
        state: Its config and weights, by variant; None if it does not exist.
    """

    status: str = ""
    failure: str = ""
    state: EndpointState | None = None

    @property
    def in_transit(self) -> bool:
        """Whether SageMaker changes it."""
        return self.status in _IN_TRANSIT


class SageMakerEndpoints:
    """The endpoints of models, one for each; the variant ``v3`` serves version 3.

    Args:
        services: The services of a connection of kind ``sagemaker``.
        places: Folders of the models, on S3.
        store: The artifact store.
        change_timeout_s: Seconds for which a change waits for one that is under way.

    Attributes:
        poll_s: Seconds between two descriptions of an endpoint that SageMaker changes.

    Raises:
        BadInput: A field of the connection is missing or invalid.
    """

    poll_s: ClassVar[float] = 2.0

    def __init__(
        self, services: Mapping[str, str], places: SharedPlaces, store: ArtifactStore, change_timeout_s: float = 1800.0
    ) -> None:
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
        self._base_path, self._store, self._change_timeout_s = places.server_base_path, store, change_timeout_s
        self._client = _client(services)

    def record(self, name: str) -> EndpointRecord:
        """Returns what was written to an endpoint."""
        try:
            return EndpointRecord.from_dict(json.loads(self._store.read_text(self._uri(name))))
        except FileNotFoundError:
            return EndpointRecord()

    def describe(self, name: str) -> Endpoint:
        """Returns an endpoint as it is. Raises HopsError if SageMaker does not answer."""
        if not _NAME.fullmatch(name) or len(name) > _NAME_CHARACTERS:
            raise BadInput(
                f"model_name is {name!r}, which cannot be the name of an endpoint; expected at most {_NAME_CHARACTERS} "
                "letters, digits and hyphens: rename the model"
            )
        answer = self._find("describe_endpoint", EndpointName=name)
        if answer is None:
            return Endpoint()
        weights = {
            each["VariantName"]: float(each.get("DesiredWeight") or 0.0)
            for each in answer.get("ProductionVariants", [])
        }
        state = EndpointState(answer["EndpointConfigName"], _by_version(weights))
        return Endpoint(answer["EndpointStatus"], answer.get("FailureReason", ""), state)

    def checked(self, name: str) -> EndpointRecord:
        """Waits for a change that is under way, and returns the record, which then is what the endpoint has.

        Raises:
            BadInput: Somebody else has changed the endpoint.
            HopsError: The change takes too long, or SageMaker does not answer.
        """
        endpoint = self._wait(name)
        record = self.record(name)
        if endpoint.status not in ("", "InService"):
            if record.state is not None or not record.is_changing:
                raise BadInput(
                    f"endpoint {name!r} is {endpoint.status} ({endpoint.failure or 'without a reason'}); repair it in "
                    "SageMaker, or undeploy the model"
                )
            self._find("delete_endpoint", EndpointName=name)  # it was never created, and can only be deleted
            endpoint = self._wait(name)
        if record.is_changing and endpoint.state == record.intended:
            self._remove_unused(name, record.state, record.intended)
            record = replace(record, state=record.intended, intended=None, is_changing=False)
            self._write(name, record)
        elif endpoint.state != record.state:
            raise BadInput(f"endpoint {name!r}: {_difference(record, endpoint.state)}")
        return record

    def change(self, name: str, weights: Mapping[int, float], labels: Mapping[str, int]) -> None:
        """Makes an endpoint have some versions and weights; it returns once SageMaker has begun.

        Raises:
            BadInput: Somebody else has changed the endpoint, or SageMaker refuses the change.
            HopsError: Another change takes too long, or SageMaker does not answer.
        """
        record = self.checked(name)
        texts = {str(version): float(weight) for version, weight in sorted(weights.items())}
        present = record.state
        is_same_set = present is not None and present.weights.keys() == texts.keys()
        request = self._config(name, texts)
        intended = EndpointState(present.config if present and is_same_set else request["EndpointConfigName"], texts)
        if intended != record.intended:
            self._remove_unused(name, record.intended, present)  # of a change that did not happen
        if intended == present:
            self._write(name, replace(record, labels=dict(labels), is_changing=False, intended=None))
            return
        self._write(name, replace(record, intended=intended, is_changing=True, labels=dict(labels)))
        if is_same_set:
            desired = [{"VariantName": f"v{version}", "DesiredWeight": weight} for version, weight in texts.items()]
            self._call("update_endpoint_weights_and_capacities", EndpointName=name, DesiredWeightsAndCapacities=desired)
            return
        for version in texts:
            self._create_model(name, version)
        if self._find("describe_endpoint_config", EndpointConfigName=intended.config) is None:
            self._call("create_endpoint_config", **request)
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

    def delete(self, name: str) -> None:
        """Deletes an endpoint with its config and models.

        Raises:
            BadInput: Somebody else has changed the endpoint.
            HopsError: SageMaker does not answer, or takes too long.
        """
        broken = self._wait(name).status not in ("", "InService")
        record = self.record(name) if broken else self.checked(name)
        if record.state is not None:
            self._remove_unused(name, record.intended, record.state)  # before the record forgets it
            self._write(name, replace(record, intended=None, is_changing=True))
        self._find("delete_endpoint", EndpointName=name)
        self._wait(name)
        self._remove_unused(name, record.state or record.intended, None)
        self._write(name, EndpointRecord())

    def _remove_unused(self, name: str, former: EndpointState | None, state: EndpointState | None) -> None:
        """Deletes config and models that an endpoint has no more."""
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

    def _wait(self, name: str) -> Endpoint:
        deadline_s = time.monotonic() + self._change_timeout_s
        while (endpoint := self.describe(name)).in_transit:
            if time.monotonic() > deadline_s:
                raise HopsError(
                    f"endpoint {name!r} is {endpoint.status} for more than {self._change_timeout_s:.0f} s; try again"
                )
            time.sleep(self.poll_s)
        return endpoint

    def _uri(self, name: str) -> str:
        return self._store.internal("_serving", f"sagemaker_{name}.json")

    def _write(self, name: str, record: EndpointRecord) -> None:
        self._store.write_text(self._uri(name), json.dumps(record.to_dict(), indent=1))

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


def _by_version(weights: Mapping[str, float]) -> dict[str, float]:
    """Returns the weights by version; a variant that is not ours keeps its name."""
    return {
        name[1:] if name.startswith("v") and name[1:].isdigit() else f"variant {name}": weight
        for name, weight in sorted(weights.items())
    }


def _difference(record: EndpointRecord, found: EndpointState | None) -> str:
    """Describes what somebody else has changed, and what to do."""
    expected = record.state
    if expected is None:
        assert found is not None
        return (
            f"it exists, with the config {found.config!r}, and was not made with this store; delete it, or give the "
            "model another name"
        )
    if found is None:
        return f"it was deleted, and had the config {expected.config!r}; make it again, or undeploy the model"
    for name in sorted({*expected.weights, *found.weights}):
        variant = f"v{name}" if name.isdigit() else name.removeprefix("variant ")
        weights = expected.weights.get(name), found.weights.get(name)
        if weights[0] != weights[1]:
            what = (
                f"the variant {variant!r} was removed"
                if weights[1] is None
                else f"the variant {variant!r} is new"
                if weights[0] is None
                else f"the variant {variant!r} has the weight {weights[1]:g}, and was given {weights[0]:g}"
            )
            return f"{what}: somebody else has changed it, which is not overwritten; put it back"
    return (
        f"its config is {found.config!r}, and was {expected.config!r}: somebody else has changed it, which is not "
        "overwritten; put it back"
    )
