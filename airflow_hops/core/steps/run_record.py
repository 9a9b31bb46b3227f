"""Record of a run: the inputs of its step.

``<store>/_runs/<dag>/<key>.json`` is a :class:`RunRecord`, by the key of the step's cache and the addresses of its
inputs: runs with the same code, libraries, parameters and inputs, at the same addresses, share a record.
``<store>/_runs/<dag>/code/<digest>.zip`` is user code. Existing files are not written again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Self

from airflow_hops.core.artifacts.artifact import Artifact, Manifest, cache_key
from airflow_hops.core.errors import ArtifactNotFound, BadInput, UnreadableFile
from airflow_hops.core.json_fields import CheckedFields
from airflow_hops.core.schema.history import IMPORTED
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store.artifact_store import ArtifactStore

MAX_CODE_BYTES = 32 << 20
"""Maximum size of a run's stored user code."""
MAX_CODE_FILES = 10_000
"""Maximum number of its files."""

_KEY = re.compile(r"[0-9a-f]{64}")
_EPOCH = (1980, 1, 1, 0, 0, 0)

TRAIN_ENTRY = "airflow_hops.ml.training.stage:run"
INGEST_ENTRY = "airflow_hops.ml.ingest:run"
FUNCTION_ENTRY = "airflow_hops.ml.step.function:run"

RECORD_TAG = "hops.record"
"""Tag of MLflow's run with the key of its record in the store."""

_CHANGE_WHAT_SERVES = ("deployment", "rollout")
"""Kinds of artifacts of steps with external effects."""

_IMPORTS_HOPS = re.compile(r"^\s*(from|import)\s+hops\b", re.MULTILINE)

FILE_PARAMS = ("script", "notebook")
"""Parameters of a step that name a file of user code."""

FUNCTION_PARAMS = ("train", "prepare", "preprocess", "space")
"""Parameters of a step that name a function as ``module:function``, besides those in ``metrics``."""


@dataclass(frozen=True)
class RunRecord(CheckedFields):
    """The inputs of a step.

    Attributes:
        entry: ``module:function`` of the ML side.
        params: Parameters without secrets.
        secrets: Paths of the omitted secrets, such as ``env/API_TOKEN``.
        inputs: Input artifacts by role, as from :meth:`~airflow_hops.core.artifacts.artifact.Artifact.to_dict`.
        output_kind: Kind of the step's artifact; None for none.
        code: SHA-256 (hex) of the paths and contents of the stored user code; None if it could not be stored.
        code_paths: Number of folders of user code.
        code_left_out: Files of user code that are not stored, since they exceed the size limit or are links to outside.
        script: Path in the user code of the script or notebook that ``params`` names; None for none.
        python: Version of the environment's Python.
        profile: Profile of the environment; None if unknown.
        packages: Versions of the environment's packages by name.
        from_elsewhere: Packages installed from a path or an address instead of an index.
        started: Start of the first run with this record, ISO 8601 UTC.
        bundle: Bundle of the DAG file in that run; None outside of a task.
        bundle_version: Version of the bundle, such as a commit; None if the bundle has none.
    """

    dag_id: str
    step: str
    entry: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Any]
    parts: Mapping[str, str]
    package_version: str
    python: str
    packages: Mapping[str, str]
    started: str
    code: str | None = None
    code_paths: int = 0
    code_left_out: Sequence[str] = ()
    script: str | None = None
    from_elsewhere: Sequence[str] = ()
    secrets: Sequence[str] = ()
    output_kind: str | None = None
    profile: str | None = None
    bundle: str | None = None
    bundle_version: str | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: a field is missing or has another type.
            BadInput: an input is not an artifact.
        """
        made = super().from_dict(value)
        made.artifacts()
        return made

    def artifacts(self) -> dict[str, tuple[Artifact, ...]]:
        """Returns the input artifacts by role."""
        return {role: tuple(map(Artifact.from_dict, values)) for role, values in self.inputs.items()}


@dataclass(frozen=True)
class UserCode:
    """The user code of a step.

    Attributes:
        fingerprint: Its part of the cache key.
        files: Contents by path, which is the number of the folder of user code and the path in it.
        left_out: Paths of files that are not stored.
        script: Path of the script or notebook.
        folders: Number of folders of user code.
        unknown: Reasons why the code cannot be determined.
    """

    fingerprint: str
    files: Mapping[str, bytes] = field(repr=False)
    left_out: Sequence[str] = ()
    script: str | None = None
    folders: int = 0
    unknown: Sequence[str] = ()


def record_key(parts: Mapping[str, str], inputs: Mapping[str, Sequence[Artifact]]) -> str:
    """Returns the key of a step's record, from the parts of its cache key and the addresses of its inputs.

    Inputs that are not in the cache key are ignored.
    """
    values = {role: artifacts for role, artifacts in inputs.items() if f"input {role}" in parts}
    places = {f"address {role}": "\n".join(artifact.uri for artifact in values[role]) for role in values}
    return cache_key({**parts, **places})


def is_recorded(spec: StepSpec) -> bool:
    """Returns whether a step has a record: it makes an artifact, or is an experiment of the package ``hops``.

    Steps that change the serving versions have none.
    """
    if not spec.cache_key_parts:
        return False
    if spec.output is None:
        source = str(spec.params.get("source", "")) if spec.entry == FUNCTION_ENTRY else ""
        return spec.entry == TRAIN_ENTRY or _IMPORTS_HOPS.search(source) is not None
    return spec.output.kind not in _CHANGE_WHAT_SERVES


def has_record(store: ArtifactStore, dag_id: str, key: str) -> bool:
    """Returns whether there is a record with this key."""
    return store.files.exists(_record_uri(store, dag_id, key))


def read_record(store: ArtifactStore, dag_id: str, key: str) -> RunRecord | None:
    """Returns the record with this key; None if there is none.

    Raises:
        BadInput: the key is invalid, or the file is not a record.
    """
    uri = _record_uri(store, dag_id, key)
    try:
        return RunRecord.from_dict(store.read_json(uri))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise UnreadableFile(uri, f": not the record of a run ({error}); restore it, or remove it") from error


def record_of(store: ArtifactStore, manifest: Manifest) -> RunRecord | None:
    """Returns the record of the step that made an artifact, or None."""
    # The source of an imported schema is not part of its step's key.
    parts = {name: part for name, part in manifest.cache_key_parts.items() if name != IMPORTED}
    return read_record(store, manifest.producer.dag_id, record_key(parts, manifest.inputs))


def write_record(store: ArtifactStore, key: str, record: RunRecord, code: UserCode | None) -> None:
    """Writes a record, after its user code."""
    if code is not None:
        record = replace(record, code=_digest(code.files))
        if not store.files.exists(uri := _code_uri(store, record)):
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in sorted(code.files.items()):
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
            store.files.write(uri, stream.getvalue())
    with suppress(FileExistsError):
        store.create_text(_record_uri(store, record.dag_id, key), json.dumps(record.to_dict(), indent=1) + "\n")


def read_code(store: ArtifactStore, record: RunRecord) -> dict[str, bytes]:
    """Returns the files of a record's user code by path (see :class:`~airflow_hops.core.steps.run_record.UserCode`).

    Raises:
        BadInput: the code was not stored or was removed, or the file is damaged, too large, or has a path that leads
            out of the folder that it is unpacked to.
    """
    if record.code is None:
        raise BadInput("the run's code was not stored, since its imports could not be determined")
    uri = _code_uri(store, record)
    try:
        with zipfile.ZipFile(io.BytesIO(store.files.read(uri))) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_CODE_FILES:
                raise _not_ours(uri, f"it has {len(entries):,} files, more than {MAX_CODE_FILES:,}")
            files: dict[str, bytes] = {}
            left = MAX_CODE_BYTES
            for entry in entries:
                if not _is_inside(entry.filename):
                    raise _not_ours(uri, f"{entry.filename!r} leads out of it, or is not the path of a file")
                with archive.open(entry) as file:
                    files[entry.filename] = file.read(left + 1)  # an archive may name smaller sizes than it has
                left -= len(files[entry.filename])
                if left < 0:
                    raise _not_ours(uri, f"it is larger than {MAX_CODE_BYTES:,} bytes")
            folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
            for name in folders & files.keys():
                raise _not_ours(uri, f"{name!r} is both a file and a folder")
    except FileNotFoundError:
        raise ArtifactNotFound(uri, ": the code of the run was removed") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise UnreadableFile(uri, f": the code of the run is damaged ({error})") from error
    if _digest(files) != record.code:
        raise UnreadableFile(
            uri, ": the code of the run is damaged, or was changed: its content does not match its name"
        )
    return files


def _not_ours(uri: str, why: str) -> BadInput:
    return BadInput(f"{uri}: it was not written by this package: {why}")


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    is_plain = path.as_posix() == name and "\\" not in name and all(len(part.encode()) < 256 for part in path.parts)
    return is_plain and bool(path.name) and not path.is_absolute() and ".." not in path.parts


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _record_uri(store: ArtifactStore, dag_id: str, key: str) -> str:
    return f"{store.internal('_runs', dag_id, _checked(key))}.json"


def _code_uri(store: ArtifactStore, record: RunRecord) -> str:
    return f"{store.internal('_runs', record.dag_id, 'code', _checked(record.code or ''))}.zip"


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise BadInput(f"{key!r} is not the key of a run; expected 64 hexadecimal digits")
    return key
