"""The record of a run: what its step was given, so that it can be run again.

It is a JSON file of the store, which :mod:`airflow_hops.core.store.run_records` reads and writes. Runs with the same
code, libraries, parameters and inputs, at the same addresses, have the same record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_hops.core.contract.artifacts import Artifact, Producer, cache_key
from airflow_hops.core.contract.json_fields import CheckedFields
from airflow_hops.core.contract.protocol import StepSpec

TRAIN_ENTRY = "airflow_hops.ml.stages.train:run"
SEARCH_ENTRY = "airflow_hops.ml.stages.search:run"
INGEST_ENTRY = "airflow_hops.ml.stages.ingest:run"
FUNCTION_ENTRY = "airflow_hops.ml.step.function:run"

REPRODUCED, BACKTEST = "_reproduced", "_backtest"
"""Stands in the place of the DAG's id in what ``airflow hops reproduce`` and back-tests make: without records."""

_CHANGE_WHAT_SERVES = ("deployment", "rollout")
"""Kinds of the artifacts of steps whose effect lies outside of them: these are not run again."""

_IMPORTS_HOPS = re.compile(r"^\s*(from|import)\s+hops\b", re.MULTILINE)

FILE_PARAMS = ("script", "notebook")
"""Parameters of a step that name a file of user code."""

FUNCTION_PARAMS = ("train", "prepare", "preprocess", "space")
"""Parameters of a step that name a function as ``module:function``, beside those of its ``metrics``."""

REPRODUCED_APP = "reproduced_app"
"""The service of a step's that names the folder of the experiments that it repeats: they draw the same numbers."""


@dataclass(frozen=True)
class RunRecord(CheckedFields):
    """The input of a step.

    Attributes:
        dag_id: The DAG.
        step: Its name.
        entry: ``module:function`` of the ML side.
        params: Its parameters, less secrets.
        secrets: Paths of the parameters that were left out as secrets, such as ``env/API_TOKEN``.
        inputs: Its input artifacts by role, each as :meth:`~airflow_hops.core.contract.artifacts.Artifact.to_dict` has
            it.
        output_kind: Kind of its artifact; None for none.
        parts: The parts of its cache key.
        code: SHA-256 (hex) of the paths and contents of the user code that is kept; None where it could not be kept.
        code_paths: How many folders of user code there were.
        code_left_out: Files of user code that are not kept: all together would be too large, or they are links that
            lead out of it.
        script: Path in the user code of the script or notebook that ``params`` names; None for none.
        package_version: Version of this package.
        python: Version of the environment's Python.
        packages: Versions of the environment's packages by name.
        from_elsewhere: Those of them that came from a path or an address, not from an index.
        started: When the first run with this record began, ISO 8601 UTC.
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

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: a field is missing or of another type.
            BadInput: an input is not an artifact.
        """
        made = super().from_dict(value)
        made.artifacts()
        return made

    def artifacts(self) -> dict[str, tuple[Artifact, ...]]:
        """The input artifacts by role."""
        return {role: tuple(map(Artifact.from_dict, values)) for role, values in self.inputs.items()}


@dataclass(frozen=True)
class UserCode:
    """The user code of a step.

    Attributes:
        fingerprint: What the cache key says of it.
        files: Contents by path: the number of the folder of user code, and the path below it.
        left_out: Paths of files that are not kept.
        script: Path of the script or notebook.
        folders: How many folders of user code there are.
        unknown: Reasons why the code cannot be told from other code.
    """

    fingerprint: str
    files: Mapping[str, bytes] = field(repr=False)
    left_out: Sequence[str] = ()
    script: str | None = None
    folders: int = 0
    unknown: Sequence[str] = ()


def record_key(parts: Mapping[str, str], inputs: Mapping[str, Sequence[Artifact]]) -> str:
    """The key of a step's record.

    Args:
        parts: Of its cache key, by which inputs count with their content.
        inputs: Its input artifacts by role, which count with their addresses here; others that it found are no matter.
    """
    values = {role: artifacts for role, artifacts in inputs.items() if f"input {role}" in parts}
    places = {f"address {role}": "\n".join(artifact.uri for artifact in values[role]) for role in values}
    return cache_key({**parts, **places})


def is_recorded(spec: StepSpec) -> bool:
    """Whether a step has a record: where it makes an artifact, or is an experiment of the package ``hops``.

    What changes the serving versions has none, nor what was made by running recorded steps again.
    """
    if not spec.cache_key_parts or spec.producer.dag_id in (REPRODUCED, BACKTEST):
        return False
    if spec.output is None:
        source = str(spec.params.get("source", "")) if spec.entry == FUNCTION_ENTRY else ""
        return spec.entry in (TRAIN_ENTRY, SEARCH_ENTRY) or _IMPORTS_HOPS.search(source) is not None
    return spec.output.kind not in _CHANGE_WHAT_SERVES


def app_id(producer: Producer) -> str:
    """Returns the name of an experiment's application in Hopsworks' terms: here the task of a DAG's run."""
    return f"{producer.dag_id}.{producer.run_id}.{producer.task}"
