"""Links of the lineage: from an artifact to the artifacts that it was made from, the inputs in its manifest.

A step that looks up an artifact itself, such as the champion of an evaluation, records it as an input, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_hops.core.artifacts.artifact import Artifact, Manifest

COMPARED = "champion"
"""Role of the model that an evaluation compares its candidate with, or that a training continues from."""

CONSTANTS = "constants"
"""Role of the statistics that a transform takes its constants from, if they are not those of its examples."""


@dataclass(frozen=True)
class Link:
    """A link to a source of an artifact.

    Attributes:
        role: Role of the source in the step.
        followed: Whether the source's own sources belong to the lineage; those of a champion do not.
    """

    source: Artifact
    role: str
    followed: bool = True


def links_of(manifest: Manifest) -> list[Link]:
    """Returns the sources of an artifact."""
    return [Link(each, role, role != COMPARED) for role, inputs in manifest.inputs.items() for each in inputs]
