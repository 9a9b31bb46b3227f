"""The kind ``batch`` of model servers, and the properties of the artifact ``predictions``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.artifacts.properties import Properties, Window
from airflow_hops.core.json_fields import omit_if_none
from airflow_hops.core.serving_api.server_kinds import ModelServerKind

BATCH = ModelServerKind("airflow_hops.extensions.scoring.ml.server:BatchServer", is_bundled=False, has_process=False)


@dataclass(frozen=True)
class PredictionsProperties(Properties):
    """Properties of ``predictions``.

    Attributes:
        model: URI of the model artifact.
        model_name: Name of the model, if it was deployed.
        version: Version of the model, if it was deployed.
        signature: The called signature.
        columns: Columns copied from the examples.
        outputs: Types of the outputs by name.
        key: Name of the key's column, or None.
        window: Window of the examples.
        problem: Kind of problem; None if the model does not state it.
        classes: Names of the classes in the order of ``probabilities``, if any.
        more_labels: Further labels of the model.
    """

    model: str = ""
    model_fingerprint: str = ""
    model_name: str | None = None
    version: int | None = None
    signature: str = ""
    splits: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    window: Window | None = None
    problem: str | None = omit_if_none()
    classes: tuple[str, ...] | None = omit_if_none()
    more_labels: Mapping[str, Mapping[str, Any]] | None = omit_if_none()
