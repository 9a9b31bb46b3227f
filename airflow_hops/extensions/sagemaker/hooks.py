"""Credentials of AWS for a step that deploys to SageMaker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.airflow_internals.tasks import mask_secret
from airflow_hops.core.errors import BadInput


def sagemaker_services(services: Mapping[str, str]) -> dict[str, str]:
    """Returns services from the connection of type ``aws`` that a connection of kind ``sagemaker`` names, if any.

    Raises:
        BadInput: the provider is not installed, or the connection cannot be used.
    """
    conn_id = services.get("serving_aws_conn_id")
    if not conn_id:
        return {}
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook
    except ImportError as error:
        raise BadInput(
            f"serving_aws_conn_id is {conn_id!r}, which needs Airflow's provider for Amazon ({error}): install "
            "apache-airflow-providers-amazon, or leave the field empty for the step's own credentials"
        ) from error
    try:
        hook: Any = AwsGenericHook(aws_conn_id=conn_id, client_type="sagemaker")
        frozen = hook.get_session().get_credentials().get_frozen_credentials()
        region, url = hook.region_name or hook.get_session().region_name, hook.conn_config.endpoint_url
    except Exception as error:  # errors of the provider, of boto, or of AWS
        raise BadInput(f"serving_aws_conn_id: connection {conn_id!r} cannot be used: {error}") from error
    mask_secret([value for value in (frozen.secret_key, frozen.token) if value])
    values = {
        "region_name": region,
        "endpoint_url": url,
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "session_token": frozen.token,
    }
    return {f"serving_aws_{name}": value for name, value in values.items() if value}
