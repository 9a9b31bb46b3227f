"""Credentials of AWS and Databricks for a step that deploys to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from airflow_hops.airflow_internals.tasks import mask_secret
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.runner.connections import required_connection


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


def databricks_services(services: Mapping[str, str]) -> dict[str, str]:
    """Returns services from the connection of type ``databricks`` that a connection of kind ``databricks`` names.

    Its provider need not be installed. The token of a service principal is valid for an hour.

    Raises:
        BadInput: The connection cannot be used.
        HopsError: Databricks gives no token.
    """
    argument = "serving_databricks_conn_id"
    conn_id = services.get(argument) or "databricks_default"
    connection, extra = required_connection(argument, conn_id, "databricks", "generic")
    host = urlsplit(connection.host if "://" in (connection.host or "") else f"//{connection.host or ''}").hostname
    login, secret = connection.login or "", connection.password or ""
    token = extra.get("token") or (secret if login in ("", "token") else "")
    is_principal = bool(extra.get("service_principal_oauth")) and bool(login and secret)
    if not host or not (token or is_principal):
        raise BadInput(
            f"{argument}: connection {conn_id!r} has {'neither a token nor' if host else 'no host, or no token or'} a "
            "service principal; expected the workspace as host, and a token as password without a login, or "
            "service_principal_oauth in extra with the principal's id as login and its secret as password"
        )
    url = f"{connection.schema or 'https'}://{host}" + (f":{connection.port}" if connection.port else "")
    if not token:
        form = {"grant_type": "client_credentials", "scope": "all-apis"}
        try:
            answer = httpx.post(f"{url}/oidc/v1/token", data=form, auth=(login, secret), timeout=60.0)
            answer.raise_for_status()
            token = answer.json()["access_token"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise HopsError(f"{argument}: connection {conn_id!r}: {url} gives no token: {error!r}") from error
    mask_secret([token, secret] if secret else [token])
    return {"serving_databricks_url": url, "serving_databricks_token": str(token)}
