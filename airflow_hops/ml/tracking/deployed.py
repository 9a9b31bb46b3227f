"""Models that were deployed, by name and version."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import read_record
from airflow_hops.ml.tracking.registry import ModelRegistry


def deployed_model(
    store: ArtifactStore, services: Mapping[str, str], model_name: str, version: int | str
) -> tuple[Artifact, int]:
    """The artifact of a deployed model, and its version.

    Args:
        store: The artifact store.
        services: A step's services; the registry is asked for versions that serve no more.
        model_name: Model name.
        version: ``champion``, ``challenger``, or a number in the registry.

    Raises:
        BadInput: there is no such version.
    """
    record = read_record(store, model_name)
    if version in ("champion", "challenger"):
        role = record.champion if version == "champion" else record.challenger
        if role is None:
            raise BadInput(f"model {model_name!r} has no {version}")
        return role.model, role.version
    if isinstance(version, bool) or not str(version).isdigit():
        raise BadInput(f"version is {version!r}; expected 'champion', 'challenger' or a version's number")
    number = int(version)
    if (served := record.served(number)) is not None:
        return served.model, number

    uri, fingerprint = ModelRegistry(services.get("tracking_uri", ""), model_name).model_of(number)
    return Artifact(uri, "model", fingerprint), number
