"""Lineage of a task in OpenLineage's terms: artifacts as datasets, decisions as facets of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define, field
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    RunFacet,
    dataset_version_dataset,
    datasource_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from airflow_hops.core.artifacts.artifact import Artifact, Manifest, as_artifacts, total_rows
from airflow_hops.core.artifacts.properties import (
    AnomaliesProperties,
    BlessingProperties,
    DeploymentProperties,
    RolloutProperties,
    WrittenTableProperties,
)
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import as_json
from airflow_hops.core.lineage import Link, links_of
from airflow_hops.core.redaction import masked
from airflow_hops.core.retraining.decision import RetrainingDecision
from airflow_hops.core.skew import SkewProperties
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow_hops.operators.base import HopsTask


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


_HOLDS_CONTAINER = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes with a container, instead of a user, before the host."""


def lineage_of(task: HopsTask) -> OperatorLineage[Any, Any]:
    """Returns inputs, output and decisions of a task; before it has made an artifact, only the inputs.

    The inputs of an artifact are those in its manifest, so that a step that was not repeated has those of the run that
    made it, as on the lineage page.
    """
    links = list(_links(task))
    passed = {link.source.uri: link.source for link in links}
    outputs, facets = [], dict[str, RunFacet]()
    if task.made is not None:
        store = (task.hook or RuntimeHook(task.hops_conn_id)).store
        links = links_of(store.manifest(task.made.uri))
        made = filter(None, (task.made, getattr(task, "approved", None)))
        outputs = [_output(artifact, store.manifest(artifact.uri), store.root) for artifact in made]
        if "table" in task.made.properties:
            outputs.append(_written_table(task.made))
        facets |= _decisions(task.made)
    if (decision := getattr(task, "decision", None)) is not None:
        facets["hops_retraining"] = _retraining(decision)
    inputs = {link.source.uri: _input(passed.get(link.source.uri, link.source), link) for link in reversed(links)}
    sources = [
        InputDataset(*dataset_name(str(source["uri"])), facets={})
        for source in (getattr(task, "sources", None) or {}).values()
    ]
    return OperatorLineage(inputs=[*inputs.values(), *sources], outputs=outputs, run_facets=facets)


def dataset_name(uri: str) -> tuple[str, str]:
    """Returns namespace and name of an address by OpenLineage's naming rules, without credentials.

    Args:
        uri: A local path or an fsspec URI; of chained URIs, the last is the place.
    """
    place = uri.rpartition("::")[2]
    if "://" not in place:
        return "file", place
    parts = urlsplit(place)
    if parts.scheme in ("file", "local"):
        return "file", unquote(parts.path)
    scheme = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}.get(parts.scheme, parts.scheme)
    host = parts.netloc if scheme in _HOLDS_CONTAINER else parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}", parts.path.lstrip("/") if scheme in ("s3", "gs") else parts.path


def _links(task: HopsTask) -> Iterator[Link]:
    for role, value in task.step_inputs().items():
        with suppress(BadInput):  # reported by the task itself
            yield from (Link(artifact, role) for artifact in as_artifacts(role, value))


def _input(artifact: Artifact, link: Link) -> InputDataset:
    rows = total_rows(artifact.rows, artifact.properties)
    facets: dict[str, Any] = {"hops_role": HopsRoleInputDatasetFacet(link.role)}
    if rows is not None:
        facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rows.rows_out)
    return InputDataset(*dataset_name(artifact.uri), facets=_facets(artifact), inputFacets=facets)


def _output(artifact: Artifact, manifest: Manifest, store: str) -> OutputDataset:
    rows = total_rows(artifact.rows, artifact.properties)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=None if rows is None else rows.rows_out,
        size=sum(file.size_bytes for file in manifest.files),
        fileCount=len(manifest.files),
    )
    facets = _facets(artifact) | {"dataSource": datasource_dataset.DatasourceDatasetFacet("artifact store", store)}
    return OutputDataset(*dataset_name(artifact.uri), facets=facets, outputFacets={"outputStatistics": statistics})


def _written_table(artifact: Artifact) -> OutputDataset:
    written = WrittenTableProperties.of(artifact)
    facets: dict[str, Any] = {"schema": schema_dataset.SchemaDatasetFacet(fields=_columns(written.columns))}
    if written.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(written.version)
    rows = int(artifact.metrics["rows"])
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return OutputDataset(
        *dataset_name(written.table.removeprefix("delta://")),
        facets=facets,
        outputFacets={"outputStatistics": statistics},
    )


def _facets(artifact: Artifact) -> dict[str, DatasetFacet]:
    window = artifact.properties.get("window")
    facets: dict[str, Any] = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(artifact.fingerprint),
        "hops_artifact": HopsArtifactDatasetFacet(
            artifact.kind,
            artifact.fingerprint,
            artifact.cached,
            list(window) if isinstance(window, list | tuple) else None,
            dict(artifact.metrics),
        ),
    }
    if fields := _fields(artifact):
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    return facets


def _fields(artifact: Artifact) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """Returns columns or features with their types, as far as the artifact's properties state them."""
    properties, make = artifact.properties, schema_dataset.SchemaDatasetFacetFields
    if artifact.kind == "snapshot":
        tables = properties.get("columns") or {}
        return [make(table, "struct", fields=_columns(columns)) for table, columns in tables.items()]
    if artifact.kind in ("transformed_examples", "predictions"):
        names = [
            properties.get("label"),
            properties.get("key"),
            properties.get("time"),
            *(properties.get("columns") or ()),
        ]
        outputs = {n: o if isinstance(o, str) else o.get("dtype") for n, o in (properties.get("outputs") or {}).items()}
        return _columns({**dict.fromkeys(filter(None, names)), **outputs})
    if artifact.kind == "examples":
        return _columns(properties.get("columns") or {})
    return _columns(dict.fromkeys(properties.get("inputs") or properties.get("features") or ()))


def _columns(types: Mapping[str, str | None]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [schema_dataset.SchemaDatasetFacetFields(name, type_) for name, type_ in types.items()]


def _decisions(artifact: Artifact) -> dict[str, RunFacet]:
    kind = artifact.kind
    if kind == "anomalies":
        anomalies = AnomaliesProperties.of(artifact)
        reasons = [*anomalies.errors, *anomalies.warnings]
        return {"hops_gate": HopsGateRunFacet(kind, not anomalies.errors, masked(reasons))}
    if kind == "rollout":
        rollout = RolloutProperties.of(artifact)
        names = (rollout.model_name, rollout.version, rollout.decision, rollout.champion)
        return {"hops_rollout": HopsRolloutRunFacet(*names, dict(rollout.traffic), masked(list(rollout.reasons)))}
    if kind == "deployment":
        properties = DeploymentProperties.of(artifact)
        return {
            "hops_rollout": HopsRolloutRunFacet(
                properties.model_name,
                properties.version,
                properties.mode,
                properties.champion,
                dict(properties.traffic),
            )
        }
    if kind == "skew":
        skew = SkewProperties.of(artifact)
        reference = skew.reference
        facts = (skew.verdict, list(skew.drifted), dict(skew.causes), reference.model, reference.version)
        return {"hops_drift": HopsDriftRunFacet(*facts)}
    if "blessed" in artifact.properties:
        blessing = BlessingProperties.of(artifact)
        return {"hops_gate": HopsGateRunFacet(kind, blessing.blessed, masked(list(blessing.reasons or ())))}
    return {}


def _retraining(decision: RetrainingDecision) -> HopsRetrainingRunFacet:
    facts = (decision.outcome, decision.why, masked(decision.reason), decision.cause)
    return HopsRetrainingRunFacet(*facts, list(decision.window), masked(as_json(decision.findings)))
