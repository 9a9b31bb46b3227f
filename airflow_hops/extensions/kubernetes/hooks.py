"""Address and credentials of Kubernetes' API for a step that deploys to KServe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airflow_hops.airflow_internals.tasks import mask_secret
from airflow_hops.core.errors import BadInput


def kserve_services(services: Mapping[str, str]) -> dict[str, str]:
    """Returns services from the connection of type ``kubernetes`` that a connection with the kind ``kserve`` names.

    Raises:
        BadInput: the provider is not installed, or the connection cannot be used.
    """
    conn_id = services.get("serving_kubernetes_conn_id") or "kubernetes_default"
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    except ImportError as error:
        raise BadInput(
            f"serving_kind 'kserve' needs Airflow's provider for Kubernetes ({error}): "
            "pip install 'airflow-hops[kubernetes]'"
        ) from error
    try:
        configuration = KubernetesHook(conn_id=conn_id).get_conn().configuration
    except Exception as error:  # errors of the provider, its client, or files
        raise BadInput(f"serving_kubernetes_conn_id: connection {conn_id!r} cannot be used: {error}") from error
    if not configuration.verify_ssl:
        raise BadInput(
            f"serving_kubernetes_conn_id: connection {conn_id!r} disables the check of certificates, without which "
            "models are not deployed; expected the CA's certificate in the kubeconfig"
        )
    token = configuration.auth_settings().get("BearerToken", {}).get("value", "").removeprefix("Bearer ")
    files = {"ca": configuration.ssl_ca_cert, "cert": configuration.cert_file, "private_key": configuration.key_file}
    texts = {name: Path(file).read_text() if file else "" for name, file in files.items()}
    mask_secret([value for value in (token, texts["private_key"]) if value])
    values = {"url": configuration.host, "token": token, **texts}
    return {f"serving_kubernetes_{name}": value for name, value in values.items()}
