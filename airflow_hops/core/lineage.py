"""Links of the lineage: from an artifact to the artifacts that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_hops.core.artifacts.artifact import Artifact, Manifest
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.evaluation import EvaluationProperties
from airflow_hops.core.skew import SkewProperties

COMPARED = "champion"
"""Role of the model that an evaluation compares its candidate with, or that a training continues from."""

CONSTANTS = "constants"
"""Role of the statistics that a transform takes its constants from, if they are not those of its examples."""


@dataclass(frozen=True)
class Link:
    """A link to a source of an artifact.

    Attributes:
        role: Role of the source in the step.
        recorded: Whether it is an input in the manifest; otherwise a property names it.
        followed: Whether the source's own sources belong to the lineage; those of a champion do not.
    """

    source: Artifact
    role: str
    recorded: bool = True
    followed: bool = True


def links_of(manifest: Manifest) -> list[Link]:
    """Returns the sources of an artifact: its inputs, and those named by its properties."""
    inputs = [(role, artifact) for role, values in manifest.inputs.items() for artifact in values]
    results = [Link(artifact, role, followed=role != COMPARED) for role, artifact in inputs]
    known = {link.source.uri for link in results}
    stated = [Link(artifact, role, recorded=False, followed=role != COMPARED) for role, artifact in _stated(manifest)]
    return results + [link for link in stated if link.source.uri not in known]


def _stated(manifest: Manifest) -> Iterator[tuple[str, Artifact]]:
    """Yields sources that only properties name: statistics of a model's constants, and sides of reports."""
    if manifest.kind == "model":
        model = ModelProperties.of(manifest)
        yield from _reference("statistics", "statistics", model.statistics, model.statistics_fingerprint)
    if manifest.kind == "evaluation" and (champion := EvaluationProperties.of(manifest).champion) is not None:
        yield from _reference(COMPARED, "model", champion.uri, champion.fingerprint)
    if manifest.kind == "skew":
        reference = SkewProperties.of(manifest).reference
        yield from _reference("reference", "statistics", reference.statistics, reference.fingerprint)


def _reference(role: str, kind: str, uri: str | None, fingerprint: str | None) -> Iterator[tuple[str, Artifact]]:
    if uri and fingerprint:
        yield role, Artifact(uri, kind, fingerprint)
