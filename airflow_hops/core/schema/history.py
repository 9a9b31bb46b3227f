"""Versions of a frozen schema, with their authors, times and notes.

Only the standard library is imported, since both sides publish schemas. A pipeline's frozen schema has one address,
``<store>/<dag>/_frozen/<name>/schema``. Beside it is ``history/`` with a record for each version, ``000001.json`` and
so on, and each text that was ever in force as a separate artifact, ``<fingerprint>/``, for readers with a reference to
a replaced version (:meth:`~airflow_hops.core.store.ArtifactStore.local`).

A version is recorded before it takes effect, and the replaced one is recorded before that, so a crash loses none. If
the store cannot replace a folder atomically, and a crash has left none at the address, the latest version is restored.
On a local store a lock serializes publishers. On an object store versions are created exclusively, so none is lost
there either; of two published at the same moment, either may stay in force.
"""

# The order of a publication, under the lock of ``history/`` in a local store:
# 1. The schema in force is recorded, if it was edited by hand since the last record.
# 2. The new text is written as an artifact below its fingerprint.
# 3. ``history/<number>.json`` is created exclusively: of two publishers in an object store one gets the number, and the
#    other one the next.
# 4. The artifact at the schema's address is replaced.
# A kill before 3 leaves an artifact that no record names. A kill between 3 and 4 leaves a record that is not in force;
# a repeated publication finds its text in the last record, and only does 4.

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from airflow_hops.core.artifacts.artifact import (
    MANIFEST_NAME,
    Artifact,
    FileEntry,
    Manifest,
    Producer,
    fingerprint_of,
    name_in,
)
from airflow_hops.core.errors import ArtifactNotFound, BadInput, UnreadableFile
from airflow_hops.core.store import ArtifactStore, kept_version
from airflow_hops.core.store.artifact_store import FROZEN

SCHEMA_FILE = "schema.pbtxt"
IMPORTED = "imported schema"
"""Part of a manifest's cache key with the SHA-256 of the file that the schema was imported from."""
_KIND = "schema"
_KEPT = "surrogateescape"
"""Preserves bytes of an edit that are not text."""


class SchemaChanged(BadInput):
    """The schema to replace is no longer in force."""


@dataclass(frozen=True)
class SchemaVersion:
    """A version of a frozen schema.

    Attributes:
        version: Version number, from 1.
        sha256: SHA-256 (hex) of its ``schema.pbtxt``.
        recorded_at: Time, ISO 8601 UTC.
        approved_by: The person who approved it; empty if it was inferred, imported or edited by hand.
        note: Reason.
        run_id: The DAG run that made it, or None.
        in_force: Whether it is the current schema.
    """

    version: int
    fingerprint: str
    sha256: str
    recorded_at: str
    approved_by: str
    note: str
    run_id: str | None = None
    in_force: bool = False


def schema_history(store: ArtifactStore, uri: str) -> list[SchemaVersion]:
    """Returns the versions of the frozen schema at ``uri``, oldest first.

    A hand edit that no run has recorded yet is not a version; then no version is in force.

    Raises:
        BadInput: a record cannot be read.
    """
    versions = _records(store, uri)
    if not has_schema(store, uri) or is_edited(store, uri):
        return versions
    fingerprint = store.manifest(uri).fingerprint
    in_force = max((v.version for v in versions if v.fingerprint == fingerprint), default=0)
    return [replace(version, in_force=version.version == in_force) for version in versions]


def schema_text(store: ArtifactStore, uri: str, version: int | None = None) -> str:
    """Returns the text of the frozen schema at ``uri``, or of one of its versions.

    Raises:
        BadInput: the version or schema does not exist, or is not text in UTF-8.
    """
    if version is None:
        return _readable(_text(store, uri), uri)
    known = {record.version: record for record in _records(store, uri)}
    if version not in known:
        there = f"there are 1 to {max(known)}" if known else "there is none"
        raise ArtifactNotFound(uri, f": there is no version {version}; {there}")
    retained = kept_version(uri, known[version].fingerprint)
    return _readable(_text(store, retained), retained)


def has_schema(store: ArtifactStore, uri: str) -> bool:
    """Returns whether a frozen schema, with manifest and text, is at ``uri``."""
    try:
        store.read_text(f"{uri}/{SCHEMA_FILE}", errors=_KEPT)
    except FileNotFoundError:
        return False
    return store.exists(uri)


def is_edited(store: ArtifactStore, uri: str) -> bool:
    """Returns whether the frozen schema's file was edited, so that its manifest or history does not match."""
    entry = _entry(_text(store, uri))
    return entry not in store.manifest(uri).files or all(
        version.sha256 != entry.sha256 for version in _records(store, uri)
    )


class FrozenName(NamedTuple):
    """The name of a frozen schema, and the DAG that it belongs to."""

    dag_id: str
    name: str


def frozen_name(uri: str) -> FrozenName | None:
    """Returns the name in a frozen schema's address; None for other addresses."""
    match uri.rsplit("/", 4):
        case [_, dag, folder, name, kind] if (folder, kind) == (FROZEN, _KIND):
            return FrozenName(name_in(dag), name_in(name))
    return None


def changed_by_person(store: ArtifactStore, uri: str) -> bool:
    """Returns whether a person approved a version of the frozen schema at ``uri``, or edited it, recorded or not."""
    versions = _records(store, uri)
    return is_edited(store, uri) or any(version.approved_by or version.run_id is None for version in versions)


def request_reset(store: ArtifactStore, uri: str, *, by: str, note: str = "") -> None:
    """Makes the next run infer the frozen schema at ``uri`` again; until then it stays in force."""
    store.write_text(_reset_uri(uri), json.dumps({"by": by, "note": note}))


def requested_reset(store: ArtifactStore, uri: str) -> str | None:
    """Returns the person and reason of a request to infer the frozen schema again; None without a request."""
    try:
        request = store.read_json(_reset_uri(uri))
    except FileNotFoundError:
        return None
    return f"reset by {request['by']}" + (f": {request['note']}" if request["note"] else "")


def freeze_schema(
    store: ArtifactStore,
    uri: str,
    text: str,
    *,
    producer: Producer,
    note: str,
    overwrite: bool = False,
    features: Sequence[str] = (),
    inputs: Mapping[str, tuple[Artifact, ...]] | None = None,
    cache_key_parts: Mapping[str, str] | None = None,
    properties: Mapping[str, object] | None = None,
) -> Artifact:
    """Creates the first version of a frozen schema; an existing one is returned unchanged, unless ``overwrite``.

    Args:
        store: The artifact store.
        uri: The frozen schema's address.
        text: The schema as protobuf text.
        producer: The task instance that made it.
        note: Its origin, for the history.
        overwrite: Whether to replace an existing one, which stays in the history; this completes a requested reset.
        inputs: Lineage.
        features: Names of the features, for the artifact's properties.
        cache_key_parts: Recorded in the manifest.
        properties: Other small JSON facts.
    """
    with store.lock(_history(uri)):
        if _is_there(store, uri):
            if not overwrite:
                return store.manifest(uri).reference(uri)
            _take_in(store, uri)
        facts = Manifest(_KIND, producer, inputs or {}, (), "", {}, {}, properties or {}, cache_key_parts or {})
        facts = _with_features(facts, features)
        _record(store, uri, text, facts, SchemaVersion(0, "", "", "", "", note, producer.run_id))
        frozen = _write(store, uri, text, facts)
        store.remove_text(_reset_uri(uri))
        return frozen


def restore_schema(store: ArtifactStore, uri: str) -> bool:
    """Returns whether there is a frozen schema at ``uri``; restores the latest version of a lost one."""
    with store.lock(_history(uri)):
        return _is_there(store, uri)


def publish_schema(
    store: ArtifactStore,
    uri: str,
    text: str,
    *,
    approved_by: str,
    note: str = "",
    run_id: str | None = None,
    features: Sequence[str] | None = None,
    cache_key_parts: Mapping[str, str] | None = None,
    replaces: str | None = None,
) -> Artifact:
    """Replaces a frozen schema; the replaced one stays in the history, even an unrecorded hand edit.

    A text that is already in force is not published again.

    Args:
        store: The artifact store.
        uri: The frozen schema's address.
        text: The new schema as protobuf text; it is not parsed here.
        approved_by: The person who approved it.
        note: Reason.
        run_id: The DAG run of the approval.
        features: Names of the features, for the artifact's properties; None if unchanged.
        cache_key_parts: Parts that replace those of the manifest.
        replaces: Fingerprint of the schema that was in force at the approval; None for any.

    Returns:
        The new frozen schema. References to the replaced one still resolve to its text.

    Raises:
        BadInput: there is no frozen schema at ``uri``, or ``approved_by`` is empty.
        SchemaChanged: the schema in force is not ``replaces``.
    """
    if not approved_by:
        raise BadInput(f"{uri}: approved_by is empty, expected the name of the person who approves the schema")
    with store.lock(_history(uri)):
        manifest = _take_in(store, uri)
        if replaces not in (None, manifest.fingerprint):
            raise SchemaChanged(
                f"{approved_by} approved a change of the schema {uri} as it was (fingerprint {replaces[:12]}…), and it "
                f"has changed since ({manifest.fingerprint[:12]}…): nothing was overwritten"
            )
        parts = {**manifest.cache_key_parts, **(cache_key_parts or {})}
        facts = _with_features(replace(manifest, cache_key_parts=parts), features)
        if _entry(text) in manifest.files and facts == manifest:
            return manifest.reference(uri)
        _record(store, uri, text, facts, SchemaVersion(0, "", "", "", approved_by, note, run_id))
        return _write(store, uri, text, facts)


def schema_in_force(store: ArtifactStore, uri: str) -> Artifact:
    """Returns the frozen schema currently at ``uri``, edited by hand or not.

    An edit becomes a version only after it was parsed, since it may be faulty.

    Raises:
        BadInput: there is no frozen schema at ``uri``.
    """
    with store.lock(_history(uri)):
        _is_there(store, uri)
        return store.accept_edit(uri, SCHEMA_FILE)


def accept_schema_edit(store: ArtifactStore, uri: str, *, features: Sequence[str] | None = None) -> Artifact:
    """Returns the frozen schema after recording a possible edit of its file as a version and in the manifest.

    ``features`` are the names of the features, for the artifact's properties; None if unchanged.

    Raises:
        BadInput: there is no frozen schema at ``uri``.
    """
    with store.lock(_history(uri)):
        return _take_in(store, uri, features).reference(uri)


def _take_in(store: ArtifactStore, uri: str, features: Sequence[str] | None = None) -> Manifest:
    """Records the schema in force if it is not in the history yet."""
    _is_there(store, uri)
    manifest, text = store.manifest(uri), _text(store, uri)
    entry = _entry(text)
    versions = _records(store, uri)
    if entry in manifest.files and entry.sha256 in {version.sha256 for version in versions}:
        return manifest
    note, run_id = "edited by hand", None
    if entry in manifest.files and not versions:
        note, run_id = f"frozen by run {manifest.producer.run_id}", manifest.producer.run_id
    manifest = _with_features(replace(manifest, files=(entry,)), features)
    _record(store, uri, text, manifest, SchemaVersion(0, "", "", "", "", note, run_id))
    store.write_text(f"{uri}/{MANIFEST_NAME}", manifest.to_json())
    return manifest


def _is_there(store: ArtifactStore, uri: str) -> bool:
    if has_schema(store, uri):
        return True
    versions = _records(store, uri)
    if versions:
        retained = kept_version(uri, versions[-1].fingerprint)
        _write(store, uri, _text(store, retained), store.manifest(retained))
    return bool(versions)


def _record(store: ArtifactStore, uri: str, text: str, facts: Manifest, version: SchemaVersion) -> None:
    """Stores a text as the latest version."""
    entry = _entry(text)
    fingerprint = fingerprint_of(_KIND, [entry])
    if not store.exists(kept_version(uri, fingerprint)):
        _write(store, kept_version(uri, fingerprint), text, facts)
    versions = _records(store, uri)
    if versions and versions[-1].sha256 == entry.sha256:
        return  # it was recorded, but did not take effect because of a crash or an error
    now = datetime.now(UTC).isoformat(timespec="seconds")
    number = len(versions) + 1
    while True:
        record = replace(version, version=number, fingerprint=fingerprint, sha256=entry.sha256, recorded_at=now)
        value = {name: item for name, item in asdict(record).items() if name != "in_force"}
        try:
            store.create_text(_record_uri(uri, number), json.dumps(value, indent=1))
            return
        except FileExistsError:
            number += 1


def _records(store: ArtifactStore, uri: str) -> list[SchemaVersion]:
    versions: list[SchemaVersion] = []
    while True:
        path = _record_uri(uri, len(versions) + 1)
        try:
            versions.append(SchemaVersion(**store.read_json(path)))
        except FileNotFoundError:
            return versions
        except (ValueError, TypeError) as error:
            raise UnreadableFile(path, f": not a record of a schema's version ({error})") from None


def _write(store: ArtifactStore, uri: str, text: str, facts: Manifest) -> Artifact:
    writer = store.create(uri, _KIND, facts.producer, inputs=facts.inputs, cache_key_parts=facts.cache_key_parts)
    with writer:
        (writer.path / SCHEMA_FILE).write_bytes(text.encode(errors=_KEPT))
        return writer.commit(rows=facts.rows, metrics=facts.metrics, properties=facts.properties)


def _text(store: ArtifactStore, uri: str) -> str:
    path = f"{uri}/{SCHEMA_FILE}"
    try:
        return store.read_text(path, errors=_KEPT)
    except FileNotFoundError:
        raise ArtifactNotFound(path, ": there is no schema") from None


def _readable(text: str, uri: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise UnreadableFile(
            f"{uri}/{SCHEMA_FILE}", f":{line}: not a schema in protobuf text: expected UTF-8"
        ) from None
    return text


def _entry(text: str) -> FileEntry:
    content = text.encode(errors=_KEPT)
    return FileEntry(SCHEMA_FILE, len(content), hashlib.sha256(content).hexdigest())


def _with_features(facts: Manifest, features: Sequence[str] | None) -> Manifest:
    if features is None:
        return facts
    properties, metrics = {**facts.properties, "features": list(features)}, {**facts.metrics, "features": len(features)}
    return replace(facts, properties=properties, metrics=metrics)


def _history(uri: str) -> str:
    return f"{uri.rpartition('/')[0]}/history"


def _reset_uri(uri: str) -> str:
    return f"{_history(uri)}/reset.json"


def _record_uri(uri: str, number: int) -> str:
    return f"{_history(uri)}/{number:06d}.json"
