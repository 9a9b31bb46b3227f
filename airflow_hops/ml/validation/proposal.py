"""Proposes a schema for anomalous data, with a page for a person's decision."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.schema import TRAINING, classes_of, set_classes
from airflow_hops.ml.schema.diff import SchemaDiff, diff_schemas
from airflow_hops.ml.schema.evolve import propose_schema
from airflow_hops.ml.validation.validate import Anomaly, list_anomalies, summarize, validate_statistics

PROPOSED_FILE = "proposed.pbtxt"
PROPOSAL_FILE = "proposal.md"
_LISTED = 50
"""Maximum anomalies and changes on the page; the artifact has them all."""


@dataclass(frozen=True)
class SchemaProposal:
    """Schema that the data would match.

    Attributes:
        schema: The proposed ``Schema``; None if no change of the schema would help.
        difference: From the current schema to the proposed one, if any.
        left: Anomalies that would remain (a label of one class, drift).
        refusal: Reason why no proposal was found, if one was searched.
    """

    schema: schema_pb2.Schema
    difference: SchemaDiff | None
    left: tuple[Anomaly, ...] = ()
    refusal: str = ""


def propose(
    schema: schema_pb2.Schema,
    statistics: Mapping[str, object],
    *,
    environment: str = TRAINING,
    previous: Mapping[str, object] | None = None,
    target: Target | None = None,
) -> SchemaProposal:
    """Returns the smallest change of a schema that makes the statistics of all splits valid.

    Args:
        schema: ``Schema``.
        statistics: ``DatasetFeatureStatisticsList`` by split.
        environment: As in :func:`validate_statistics`.
        previous: Statistics of an earlier span by split.
        target: The labels, and the names of their classes.
    """
    proposed = schema
    try:
        for current in statistics.values():
            proposed = propose_schema(proposed, current, environment=environment)
    except BadInput as error:
        return SchemaProposal(None, None, refusal=str(error))
    for label in target.all if target else ():
        known = classes_of(schema, label.label)
        if label.classes is None or known in (None, label.classes):
            continue
        proposed = type(schema).FromString(proposed.SerializeToString())
        for feature in proposed.feature:
            if feature.name == label.label:
                set_classes(feature, label.classes)
    difference = diff_schemas(schema, proposed)
    if not difference:
        return SchemaProposal(None, None)
    left: list[Anomaly] = []
    for split, current in statistics.items():
        earlier = (previous or {}).get(split)
        left += list_anomalies(
            validate_statistics(current, proposed, environment=environment, previous=earlier, target=target), split
        )
    return SchemaProposal(proposed, difference, tuple(left))


def to_markdown(found: Sequence[Anomaly], proposal: SchemaProposal) -> str:
    """Formats the anomalies and the proposed change as a Markdown page."""
    parts = [f"### {len(found)} {'anomaly' if len(found) == 1 else 'anomalies'}", _listed(found)]
    if proposal.difference is None:
        reason = f": {_escaped(proposal.refusal)}" if proposal.refusal else "."
        parts.append(f"No change to the schema would make this data valid{reason}")
    else:
        parts += ["### Proposed change to the schema", proposal.difference.to_markdown(limit=_LISTED)]
    if proposal.left:
        parts += ["### Also anomalous under the proposed schema", _listed(proposal.left)]
    return "\n\n".join(parts) + "\n"


def _listed(anomalies: Sequence[Anomaly]) -> str:
    sentences = summarize(anomalies)
    lines = [f"- {_escaped(sentence)}" for sentence in sentences[:_LISTED]]
    if len(sentences) > _LISTED:
        lines.append(f"- and {len(sentences) - _LISTED} more")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    # Values come from the data, and must not become links, images or separate lines.
    return re.sub(r"([\\`*_{}\[\]()<>#+|~&!])", r"\\\1", " ".join(text.split()))
