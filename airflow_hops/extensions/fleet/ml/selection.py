"""Makes a fleet of the served one in which some segments have the models of another: promotion, or rollback."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, ModelNotFound
from airflow_hops.core.models.model_record import deployed_model, read_record
from airflow_hops.extensions.fleet.core.packs import Entry, shown
from airflow_hops.extensions.fleet.ml.entries import outcomes_of
from airflow_hops.extensions.fleet.ml.fleet_files import FLEET, OpenFleet, Segment, write_fleet
from airflow_hops.extensions.fleet.ml.rows import ROWS_FOLDER
from airflow_hops.ml.step.context import StepContext
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, read_signature

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

    def selected(key: str) -> Segment:
        own = served.entries.get(key)
        if key not in chosen:
            return served.segment(key)
        theirs, model, statistics = other.segment(key)
        is_refused = own is not None and not is_rollback and own["refused"] and own["refused"] == theirs["fingerprint"]
        if own is not None and (is_refused or _model(own) == _model(theirs)):
            if is_refused:
                log.warning("Segment %s keeps its model: the other was rolled back", shown(key))
            return own, served.segment(key)[1], statistics
        entry = theirs
        if is_rollback:
            reason = f"rolled back to the model of version {version}; {theirs['reason']}"
            entry = {**theirs, "reason": reason, "refused": None if own is None else own["fingerprint"]}
        changed.append(key)
        return entry, model, statistics

    keys = sorted({*served.entries, *chosen}, key=str.encode)
    description, facts = served.fleet.description, served.properties
    with context.output(champion=served.artifact, donor=donor) as writer:
        pooled = served.fleet.payload(description.pooled)
        index = write_fleet(writer.path, description, pooled, map(selected, keys), str(facts.problem))
        if (known := served.folder / ROWS_FOLDER).exists():  # so that the next run reads only what is new, too
            shutil.copytree(known, writer.path / ROWS_FOLDER)
        shutil.copyfile(served.folder / FLEET / SIGNATURE_FILE, writer.path / FLEET / SIGNATURE_FILE)
        outcomes = outcomes_of(description.segment, index, served, reused=len(index), encoding="kept")
        training = {"changed": len(changed), "from": donor.uri, "previous": served.artifact.uri}
        (writer.path / "training.json").write_text(json.dumps(training, indent=1))
        log.info("%s segments have other models than in version %s", f"{len(changed):,}", record.champion.version)
        states = {state: float(count) for state, count in outcomes.states.items()}
        return writer.commit(
            metrics={"segments": len(index), "changed": len(changed), **states},
            properties={**replace(facts, more={}).to_dict(), "fleet": outcomes.to_dict()},
        )


def _model(entry: Entry) -> tuple[str, str | None]:
    return entry["state"], entry["place"] and entry["place"].sha256


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
