"""Makes a fleet of the served one in which some segments have the models of another: promotion, or rollback."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, ModelNotFound
from airflow_hops.core.models.model_records import deployed_model, read_record
from airflow_hops.extensions.fleet.core.options import FleetOutcomes
from airflow_hops.extensions.fleet.core.packs import shown
from airflow_hops.extensions.fleet.ml.entries import deciles
from airflow_hops.extensions.fleet.ml.fleet_files import FLEET, OpenFleet, write_fleet
from airflow_hops.extensions.fleet.ml.rows import ROWS_FOLDER
from airflow_hops.ml.step.context import StepContext
from airflow_hops.serving.models.estimator_signature import SIGNATURE_FILE
from airflow_hops.serving.models.model_signature import read_signature

log = logging.getLogger(__name__)


def run(
    context: StepContext, *, model_name: str, segments: Sequence[str] | None = None, version: int | str | None = None
) -> Artifact:
    """Writes the champion's fleet with the models that other segments have in the input ``model``, or in a version.

    Parameters are those of ``SelectSegmentsOperator``.

    Raises:
        BadInput: no version serves; the fleets have different inputs, encodings or labels; or a segment is in neither.
    """
    record = read_record(context.store, model_name)
    if record.champion is None:
        raise ModelNotFound(model_name, "champion")
    served = OpenFleet.read(context.store, record.champion.model)
    is_rollback = version is not None
    donor = deployed_model(context.store, model_name, version)[0] if version is not None else context.input("model")
    other = OpenFleet.read(context.store, donor)
    _check_alike(context, served, other)
    if isinstance(segments, str) or segments == []:
        raise BadInput(f"segments is {segments!r}; expected a list of keys, at least one, or None for all")
    chosen = set(other.entries if segments is None else map(str, segments))  # integers are keys, too
    if unknown := sorted(chosen - other.entries.keys()):
        raise BadInput(
            f"segments has {', '.join(map(shown, unknown[:5]))}, which the fleet {donor.uri} does not have; it has "
            f"{len(other.entries):,} segments"
        )
    changed: list[str] = []

    def entry_of(segment: str) -> tuple[Mapping[str, Any], bytes | None]:
        own, theirs = served.entries.get(segment), other.entries.get(segment)
        if segment not in chosen or theirs is None:
            assert own is not None
            return own, served.payload(own)
        if own is not None and _model(own) == _model(theirs):
            return own, served.payload(own)
        changed.append(segment)
        if not is_rollback:
            if own is not None and own["refused"] and own["refused"] == theirs["fingerprint"]:
                log.warning("Segment %s keeps its model: the other was rolled back", shown(segment))
                changed.pop()
                return own, served.payload(own)
            return theirs, other.payload(theirs)
        refused = own["fingerprint"] if own is not None else None
        reason = f"rolled back to the model of version {version}; {theirs['reason']}"
        return {**theirs, "reason": reason, "refused": refused}, other.payload(theirs)

    keys = sorted({*served.entries, *chosen}, key=str.encode)
    description = served.fleet.description
    reference = {**{key: other.reference[key] for key in chosen & other.reference.keys()}}
    reference = {**served.reference, **reference}
    facts = served.properties
    with context.output(champion=served.artifact, donor=donor) as writer:
        pooled = served.fleet.payload(description.pooled)
        entries = write_fleet(
            writer.path, description, pooled, map(entry_of, keys), reference.values(), str(facts.problem), ""
        )
        if (known := served.folder / ROWS_FOLDER).exists():  # so that the next run reads only what is new, too
            shutil.copytree(known, writer.path / ROWS_FOLDER)
        signature = served.folder / FLEET / SIGNATURE_FILE
        (writer.path / FLEET / SIGNATURE_FILE).write_bytes(signature.read_bytes())
        states = Counter(entry["state"] for entry in entries)
        outcomes = FleetOutcomes(
            segment=description.segment,
            segments=len(entries),
            states=dict(sorted(states.items())),
            trained=0,
            reused=len(entries),
            encoding="kept",
            previous=served.artifact.uri,
            deciles=deciles(entries),
        )
        training = {"changed": len(changed), "from": donor.uri, "previous": served.artifact.uri}
        (writer.path / "training.json").write_text(json.dumps(training, indent=1))
        log.info("%s segments have other models than in version %s", f"{len(changed):,}", record.champion.version)
        properties = replace(facts, more={}).to_dict()
        return writer.commit(
            metrics={"segments": len(entries), "changed": len(changed), **{k: float(v) for k, v in states.items()}},
            properties={**properties, "fleet": outcomes.to_dict()},
        )


def _model(entry: Mapping[str, Any]) -> tuple[str, str | None]:
    return entry["state"], entry["sha256"]


def _check_alike(context: StepContext, served: OpenFleet, other: OpenFleet) -> None:
    """Raises BadInput if models of one fleet would answer requests of the other wrongly."""
    ours, theirs = served.fleet.description, other.fleet.description
    signatures = [read_signature(context.store.local(each.artifact) / FLEET) for each in (served, other)]
    for name, mine, others in (
        ("segment", ours.segment, theirs.segment),
        ("encoding", ours.encoding, theirs.encoding),
        ("label", _label(served.properties), _label(other.properties)),
        ("inputs", signatures[0].requests, signatures[1].requests),
    ):
        if mine != others:
            raise BadInput(
                f"{other.artifact.uri} has another {name} than the served fleet {served.artifact.uri}, so its models "
                "would answer wrongly beside the others; deploy it as a whole instead"
            )


def _label(properties: ModelProperties) -> tuple[Any, ...]:
    return properties.label, properties.problem, properties.classes
