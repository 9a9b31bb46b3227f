"""Record of a run: the inputs of its step, so that it can be repeated.

It is a JSON file in the store (see :mod:`airflow_hops.core.steps.run_records`). Runs with the same code, libraries,
parameters and inputs, at the same addresses, share a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_hops.core.artifacts.artifact import Artifact, cache_key
from airflow_hops.core.json_fields import CheckedFields
from airflow_hops.core.steps.protocol import StepSpec

TRAIN_ENTRY = "airflow_hops.ml.training.stage:run"
INGEST_ENTRY = "airflow_hops.ml.ingest:run"
FUNCTION_ENTRY = "airflow_hops.ml.step.function:run"

RECORD_TAG = "hops.record"
"""Tag of MLflow's run with the key of its record in the store."""

_CHANGE_WHAT_SERVES = ("deployment", "rollout")
"""Kinds of artifacts of steps with external effects, which are not repeated."""

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

    Steps that change the serving versions and repeated steps have none.
    """
    if not spec.cache_key_parts or not spec.producer.is_dag:
        return False
    if spec.output is None:
        source = str(spec.params.get("source", "")) if spec.entry == FUNCTION_ENTRY else ""
        return spec.entry == TRAIN_ENTRY or _IMPORTS_HOPS.search(source) is not None
    return spec.output.kind not in _CHANGE_WHAT_SERVES
