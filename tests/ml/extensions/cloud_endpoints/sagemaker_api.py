"""moto's SageMaker with what it lacks, as AWS documents it; runs in Airflow's environment.

UpdateEndpoint; endpoints that are Creating or Updating for a while; and a failure for an image named ``broken``, after
which a new endpoint is Failed, and a present one has its old config.
"""

import sys

from moto.core.responses import ActionResult
from moto.sagemaker.exceptions import AWSValidationException
from moto.sagemaker.models import SageMakerModelBackend
from moto.sagemaker.responses import SageMakerResponse
from moto.server import main

POLLS = 2
create, describe, weights = (
    getattr(SageMakerModelBackend, name)
    for name in ("create_endpoint", "describe_endpoint", "update_endpoint_weights_and_capacities")
)


def begin(endpoint, status, done):
    if endpoint.endpoint_status != "InService":
        raise AWSValidationException(f"Cannot update in-progress endpoint {endpoint.arn}")
    endpoint.endpoint_status, endpoint.polls, endpoint.done = status, POLLS, done


def is_broken(backend, config):
    variants = backend.describe_endpoint_config(config)["ProductionVariants"]
    return any("broken" in backend._models[each["ModelName"]].primary_container["Image"] for each in variants)


def create_endpoint(self, endpoint_name, endpoint_config_name, tags):
    if endpoint_name in self.endpoints:
        raise AWSValidationException(f"Cannot create already existing endpoint {endpoint_name}")
    endpoint = create(self, endpoint_name, endpoint_config_name, tags)

    def done():
        endpoint.endpoint_status = "Failed" if is_broken(self, endpoint_config_name) else "InService"
        endpoint.failure_reason = "the container did not answer" if endpoint.endpoint_status == "Failed" else None

    begin(endpoint, "Creating", done)
    return endpoint


def describe_endpoint(self, endpoint_name):
    endpoint = self.endpoints.get(endpoint_name)
    if getattr(endpoint, "done", None) is not None:
        endpoint.polls -= 1
        if endpoint.polls < 0:
            done, endpoint.done = endpoint.done, None
            done()
    answer = describe(self, endpoint_name)
    if getattr(endpoint, "done", None) is not None and getattr(endpoint, "next_config", ""):
        answer["PendingDeploymentSummary"] = {"EndpointConfigName": endpoint.next_config}
    return answer


def update_weights(self, endpoint_name, desired_weights_and_capacities):
    endpoint = self.endpoints.get(endpoint_name)
    if endpoint is None:
        return weights(self, endpoint_name, desired_weights_and_capacities)
    if endpoint.endpoint_status != "InService":
        raise AWSValidationException(f"Cannot update in-progress endpoint {endpoint.arn}")
    counts = [each.get("DesiredInstanceCount") for each in endpoint.production_variants]
    arn = weights(self, endpoint_name, desired_weights_and_capacities)
    for each, count in zip(endpoint.production_variants, counts, strict=True):
        each["DesiredInstanceCount"] = each["CurrentInstanceCount"] = count
    begin(endpoint, "Updating", lambda: setattr(endpoint, "endpoint_status", "InService"))
    return arn


def update_endpoint(self):
    backend, name = self.sagemaker_backend, self._get_param("EndpointConfigName")
    endpoint = backend.endpoints.get(self._get_param("EndpointName"))
    if endpoint is None or name not in backend.endpoint_configs:
        raise AWSValidationException("Could not find endpoint or its configuration")
    config = backend.describe_endpoint_config(name)

    def done():
        endpoint.endpoint_status, endpoint.next_config = "InService", ""
        if is_broken(backend, name):
            endpoint.failure_reason = "the container did not answer"
            return
        endpoint.endpoint_config_name, endpoint.failure_reason = name, None
        endpoint.production_variants = endpoint._process_production_variants(config["ProductionVariants"])

    begin(endpoint, "Updating", done)
    endpoint.next_config = name
    return ActionResult({"EndpointArn": endpoint.arn})


SageMakerModelBackend.create_endpoint = create_endpoint
SageMakerModelBackend.describe_endpoint = describe_endpoint
SageMakerModelBackend.update_endpoint_weights_and_capacities = update_weights
SageMakerResponse.update_endpoint = update_endpoint
main(sys.argv[1:])
