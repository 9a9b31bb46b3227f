"""Facets of artifacts and decisions, which OpenLineage has no names for; ``facets.json`` is their schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field
from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, RunFacet

_SCHEMA = "https://raw.githubusercontent.com/airflow-hops/airflow-hops/main/airflow_hops/extensions/openlineage/operators/facets.json"


class _OwnSchema:
    @classmethod
    def _get_schema(cls) -> str:
        return f"{_SCHEMA}#/$defs/{cls.__name__}"


@define
class HopsArtifactDatasetFacet(_OwnSchema, DatasetFacet):  # the provider's is static
    """Facts of an artifact: ``cached`` is true if an earlier run made it."""

    kind: str
    fingerprint: str
    cached: bool = False
    window: list[str | None] | None = None
    metrics: Mapping[str, float] = field(factory=dict)


@define
class HopsRoleInputDatasetFacet(_OwnSchema, InputDatasetFacet):
    """Role of an input in the step."""

    role: str


@define
class HopsGateRunFacet(_OwnSchema, RunFacet):
    """Whether a model or data passed a check of a kind, and the reasons."""

    kind: str
    passed: bool
    reasons: list[str] = field(factory=list)


@define
class HopsRolloutRunFacet(_OwnSchema, RunFacet):
    """Decision on a version: deployed as ``champion`` or ``canary``, ``promoted``, ``rolled_back`` or ``left``."""

    modelName: str | None
    version: int | None
    decision: str
    champion: int | None = None
    traffic: Mapping[str, int] = field(factory=dict)
    reasons: list[str] = field(factory=list)


@define
class HopsDriftRunFacet(_OwnSchema, RunFacet):
    """Verdict of a comparison, with the drifted features and the probable causes."""

    verdict: str
    drifted: list[str] = field(factory=list)
    causes: Mapping[str, str] = field(factory=dict)
    modelName: str | None = None
    version: int | None = None


@define
class HopsRetrainingRunFacet(_OwnSchema, RunFacet):
    """Decision of a retraining policy; ``why`` is the refusal in a word."""

    outcome: str
    why: str
    reason: str
    cause: str
    window: list[str | None] = field(factory=list)
    findings: list[dict[str, Any]] = field(factory=list)
