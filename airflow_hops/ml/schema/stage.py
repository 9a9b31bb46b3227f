"""Freezes a schema; compares and publishes schemas for the command line."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import SchemaProperties, StatisticsProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.schema.history import (
    IMPORTED,
    accept_schema_edit,
    freeze_schema,
    frozen_name,
    publish_schema,
    requested_reset,
    restore_schema,
    schema_history,
    schema_text,
)
from airflow_hops.core.schema.page import has_page
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.schema.diff import diff_schemas
from airflow_hops.ml.schema.infer import infer_schema
from airflow_hops.ml.schema.pages import write_schema_page
from airflow_hops.ml.schema_files import SCHEMA_FILE, parse_schema, to_text
from airflow_hops.ml.statistics import STATISTICS_FILE, load_statistics
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.step.function import call_shipped

log = logging.getLogger(__name__)

_MAX_LINES = 50
_DESCRIBED = 20
"""Number of the newest versions that are described for the pages, if they are not yet."""

SPLITS = ("train", "data")
"""Splits from which a schema is inferred, the first that exists: that of examples, or that of a source."""


def run(
    context: StepContext,
    *,
    imported: Mapping[str, str] | None = None,
    curate: Mapping[str, object] | None = None,
    again: str | None = None,
    **inference: object,
) -> Artifact:
    """Freezes the schema, or accepts manual edits of a frozen one; infers it again if a reset was requested.

    Args:
        context: Step with the input ``statistics``, whose split ``train`` (of a source: ``data``) is used.
        imported: ``path`` and ``text`` of a manually maintained schema; it is frozen instead of an inferred one, and
            published when it has changed.
        curate: Shipped function (:func:`~airflow_hops.ml.step.function.call_shipped`) that gets the inferred schema
            and returns the final one.
        again: Reason to infer a frozen schema again; None to keep it.
        **inference: Options of :func:`infer_schema`.

    Raises:
        BadInput: a schema does not parse, statistics are missing, or the function returns something else.
    """
    store, output = context.store, context.spec.output
    if output is None:
        raise BadInput(f"step {context.spec.step!r} freezes a schema, but its spec names no output")
    again = None if imported else requested_reset(store, output.uri) or again
    if restore_schema(store, output.uri) and again is None:
        frozen = _take_in_edit(context, output.uri)
        frozen = _publish_import(context, output.uri, imported) if imported else frozen
        _describe(context.store, output.uri)
        return frozen
    producer, parts = context.spec.producer, dict(context.spec.cache_key_parts)
    if imported:
        schema = parse_schema(imported["text"], imported["path"])
        text, note = imported["text"], f"imported from {imported['path']} by run {producer.run_id}"
        parts[IMPORTED] = _sha256(text)
    else:
        schema, note = _infer(context, inference), f"inferred by run {producer.run_id}"
        note += f" ({again})" if again else ""
        if curate:
            schema = _curated(context, schema, curate)
            note += f", curated by {curate['function']}()"
        text = to_text(schema)
    log.info("Frozen: %d features, %d domains (%s)", len(schema.feature), len(schema.string_domain), note)
    frozen = freeze_schema(
        store,
        output.uri,
        text,
        producer=producer,
        note=note,
        overwrite=again is not None,
        features=_features(schema),
        inputs=context.spec.inputs,
        cache_key_parts=parts,
        properties=_columns(context),
    )
    _describe(store, output.uri)
    return frozen


def compare(context: StepContext, *, before: str, after: str) -> dict[str, Any]:
    """Returns the differences of two schema texts, as :meth:`SchemaDiff.to_dict`."""
    return diff_schemas(parse_schema(before, "before"), parse_schema(after, "after")).to_dict()


def publish(
    context: StepContext, *, uri: str, text: str, source: str, approved_by: str, note: str, **only: Any
) -> dict[str, Any]:
    """Publishes a schema text, for ``airflow hops schema approve`` and ``revert``.

    Args:
        context: The step's context.
        uri: Address of the frozen schema.
        text: The schema as protobuf text.
        source: Origin of the text, for messages.
        approved_by: Person who approved it.
        note: Reason.
        **only: ``run_id`` and ``replaces`` of :func:`~airflow_hops.core.schema.history.publish_schema`.

    Returns:
        Differences, as :meth:`SchemaDiff.to_dict`; ``{}`` if the replaced schema does not parse.

    Raises:
        BadInput: the text does not parse or has no feature, or ``uri`` is not a frozen schema.
    """
    schema = parse_schema(text, source)
    if not schema.feature:
        raise BadInput(f"{source}: no feature in it, expected a schema of the pipeline's examples")
    restore_schema(context.store, uri)
    try:
        old = parse_schema(schema_text(context.store, uri), uri)
    except BadInput:
        old = None
    publish_schema(context.store, uri, text, approved_by=approved_by, note=note, features=_features(schema), **only)
    write_schema_page(context.store, uri, text, schema)
    return {} if old is None else diff_schemas(old, schema).to_dict()


def _describe(store: ArtifactStore, uri: str) -> None:
    """Writes what the pages show of the versions of a schema, as far as it is not there."""
    for version in [*(each.version for each in schema_history(store, uri)[-_DESCRIBED:]), None]:
        with suppress(BadInput, FileNotFoundError):  # a faulty edit that was replaced, or a deleted version
            text = schema_text(store, uri, version)
            if not has_page(store, uri, text):
                write_schema_page(store, uri, text, parse_schema(text, uri))


def _infer(context: StepContext, inference: Mapping[str, Any]) -> Any:
    statistics = context.input("statistics")
    folder = context.local("statistics")
    path = next((p for split in SPLITS if (p := folder / split / STATISTICS_FILE).exists()), None)
    if path is None:
        raise BadInput(
            f"{statistics.uri}: no statistics of the split 'train', from which the schema is inferred, nor of 'data', "
            "the split of a source"
        )
    facts = StatisticsProperties.of(statistics)
    columns = _columns(context)
    return infer_schema(load_statistics(path), **columns, classes=facts.classes, problem=facts.problem, **inference)


def _curated(context: StepContext, inferred: Any, curate: Mapping[str, Any]) -> Any:
    schema = type(inferred)()
    schema.CopyFrom(inferred)
    returned = call_shipped(context, **{**curate, "args": [schema, *curate.get("args", ())]})
    # Code for TFDV often changes a schema in place.
    curated = schema if returned is None else returned
    if not isinstance(curated, type(inferred)):
        kind = type(curated)
        raise BadInput(
            f"{curate['function']}() returned a {kind.__module__}.{kind.__qualname__}; expected the Schema, or nothing "
            "when it was changed in place"
        )
    curated = parse_schema(to_text(curated), f"the schema of {curate['function']}()")
    changes = diff_schemas(inferred, curated).changes
    for change in changes[:_MAX_LINES]:
        log.info("Curated: %s", change)
    if len(changes) > _MAX_LINES:
        log.info("Curated: and %d more", len(changes) - _MAX_LINES)
    return curated


def _take_in_edit(context: StepContext, uri: str) -> Artifact:
    try:
        schema = parse_schema(schema_text(context.store, uri), f"{uri}/{SCHEMA_FILE}")
    except BadInput as error:
        versions = schema_history(context.store, uri)
        if not versions:
            raise
        good = versions[-1]
        _, name = frozen_name(uri) or ("", "")
        raise BadInput(
            f"{error}; the last good version is {good.version}, of {good.recorded_at}: correct the file, or go back "
            f"with 'airflow hops schema revert {context.spec.producer.dag_id} {name} {good.version}'"
        ) from None
    return accept_schema_edit(context.store, uri, features=_features(schema))


def _publish_import(context: StepContext, uri: str, imported: Mapping[str, str]) -> Artifact:
    text, manifest = imported["text"], context.store.manifest(uri)
    if manifest.cache_key_parts.get(IMPORTED) == _sha256(text):
        return manifest.reference(uri)
    schema = parse_schema(text, imported["path"])
    log.info("%s has changed since it was last imported, and is published", imported["path"])
    run_id = context.spec.producer.run_id
    return publish_schema(
        context.store,
        uri,
        text,
        approved_by="the DAG's repository",
        note=f"imported from {imported['path']} by run {run_id}",
        run_id=run_id,
        features=_features(schema),
        cache_key_parts={IMPORTED: _sha256(text)},
    )


def _columns(context: StepContext) -> dict[str, Any]:
    if not context.has_input("statistics"):
        return SchemaProperties().to_dict()
    facts = StatisticsProperties.of(context.input("statistics"))
    columns = SchemaProperties(facts.label, facts.key, facts.time, weight=facts.weight, more_labels=facts.more_labels)
    return columns.to_dict()


def _features(schema: Any) -> list[str]:
    return [feature.name for feature in schema.feature]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
