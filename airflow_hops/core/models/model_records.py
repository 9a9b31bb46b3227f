"""Records of served models in the store: ``<store>/_models/<model>.json``."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.segments import name_in
from airflow_hops.core.errors import BadInput, InvalidArgument, ModelNotFound, UnreadableFile
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.store.artifact_store import ArtifactStore

_FOLDER, _ENDING = "_models", ".json"
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,219}")  # temporary files have longer names
MODEL_NAME_IN_WORDS = "letters, digits, '_', '.' and '-', at most 220"


def record_uri(store: ArtifactStore, model_name: str) -> str:
    """Returns the address of a model's record.

    Raises:
        BadInput: the name has characters other than letters, digits, ``_``, ``.`` and ``-``, or too many.
    """
    if not MODEL_NAME.fullmatch(model_name):
        raise InvalidArgument("model_name", model_name, f"; expected {MODEL_NAME_IN_WORDS}")
    return store.internal(_FOLDER, model_name) + _ENDING


def find_record(store: ArtifactStore, model_name: str) -> ModelRecord | None:
    """Returns the record of a model; None if there is none.

    Raises:
        BadInput: the name is invalid, or the file is not a record.
    """
    uri = record_uri(store, model_name)
    try:
        return ModelRecord.from_dict(store.read_json(uri))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableFile(uri, f": not a model record ({type(error).__name__}: {error})") from error


def read_record(store: ArtifactStore, model_name: str) -> ModelRecord:
    """Returns the record of a model; an empty one if there is none.

    Raises:
        BadInput: the name is invalid, or the file is not a record.
    """
    return find_record(store, model_name) or ModelRecord()


def deployed_model(store: ArtifactStore, model_name: str, version: int | str) -> tuple[Artifact, int]:
    """Returns the artifact of a deployed model, and its version.

    Args:
        store: The artifact store.
        model_name: Name of the model.
        version: ``champion``, ``challenger``, or the number of a version that serves or has served.

    Returns:
        The artifact, without properties if the version no longer serves and the store no longer has it.

    Raises:
        BadInput: there is no such version.
    """
    record = read_record(store, model_name)
    if version in ("champion", "challenger"):
        role = record.champion if version == "champion" else record.challenger
        if role is None:
            raise ModelNotFound(model_name, str(version))
        return role.model, role.version
    if isinstance(version, bool) or not str(version).isdigit():
        raise InvalidArgument("version", version, "; expected 'champion', 'challenger' or a version's number")
    number = int(version)
    if (served := record.served(number)) is not None:
        return served.model, number
    # Numbers repeat after a reset of MLflow's registry; the newest event is that of the present one.
    last = next((each for each in reversed(record.history) if each.version == number and each.model), None)
    if last is None or last.model is None:
        known = ", ".join(map(str, record.versions())) or "none"
        raise ModelNotFound(model_name, number).with_text(
            f"model {model_name!r} has no version {number} that was deployed; versions: {known}"
        )
    uri, fingerprint = last.model, last.fingerprint or ""
    with contextlib.suppress(BadInput):
        if (artifact := store.manifest(uri).reference(uri)).fingerprint == fingerprint:
            return artifact, number
    return Artifact(uri, "model", fingerprint), number


def read_records(store: ArtifactStore) -> Iterator[tuple[str, ModelRecord]]:
    """Yields the records of all models, with their names."""
    return ((name, read_record(store, name)) for name in recorded_models(store))


def recorded_models(store: ArtifactStore) -> list[str]:
    """Returns the names of the models with a record."""
    names = store.names(store.internal(_FOLDER))
    return sorted(name_in(name.removesuffix(_ENDING)) for name in names if name.endswith(_ENDING))


def write_record(store: ArtifactStore, model_name: str, record: ModelRecord) -> None:
    """Writes the record of a model atomically."""
    store.write_text(record_uri(store, model_name), json.dumps(record.to_dict(), indent=1) + "\n")
