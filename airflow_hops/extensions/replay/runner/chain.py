"""The recorded steps that made a model, beginning with the ingest of its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import airflow_hops
from airflow_hops.core.artifacts.artifact import Artifact, Manifest, Producer
from airflow_hops.core.artifacts.properties import Window
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.run_record import INGEST_ENTRY, RunRecord, record_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import as_utc

_REMEDY = "run the training DAG once more, and deploy its model"


@dataclass(frozen=True)
class ChainStep:
    """A step that depends on the window of an ingest.

    Attributes:
        made: Artifact that later steps used: the step's own, or the valid examples of a validation.
        record: Record of the step.
        uris: Addresses that the step's result replaces: that of ``made``, and those of the task's artifacts of earlier
            runs from which a frozen schema was inferred.
    """

    made: Artifact
    record: RunRecord
    producer: Producer
    uris: list[str] = field(default_factory=list)

    @property
    def has_window(self) -> bool:
        """Whether it is an ingest that selects rows by time."""
        return self.record.entry == INGEST_ENTRY and bool(self.record.params.get("window_end"))

    def inputs(self, instead: Mapping[str, Artifact]) -> dict[str, tuple[Artifact, ...]]:
        """Returns the inputs by role, replacing artifacts whose URIs are in ``instead``."""
        values = self.record.artifacts().items()
        return {role: tuple(instead.get(each.uri, each) for each in artifacts) for role, artifacts in values}


def chain_of(store: ArtifactStore, artifacts: Iterable[Artifact]) -> tuple[ChainStep, ...]:
    """Returns the steps that made the artifacts and depend on the window of an ingest, in order of dependency.

    Raises:
        BadInput: an artifact or a record is missing, or nothing depends on a window.
    """
    walk = _Walk(store)
    values = list(artifacts)
    for artifact in values:
        walk.visit(artifact)
    if not walk.steps:
        raise BadInput(
            f"{values[0].uri}: none of the steps that made it is an ingest with a window_end, so that it cannot be "
            "made again for another window; expected a pipeline that begins with IngestOperator(window_start=…, "
            "window_end=…) and sources with a time_column"
        )
    return tuple(walk.steps)


def window_of(chain: Iterable[ChainStep]) -> Window:
    """Returns start (None: open) and end of the data that a chain ingests, ISO 8601 UTC.

    Raises:
        BadInput: the ingests have different windows, or another step has one of these times as a parameter, which would
            not change with the window.
    """
    chain, windows = list(chain), {}
    for step in chain:
        if step.has_window:
            start, end = step.record.params.get("window_start"), step.record.params["window_end"]
            windows[step.record.step] = (as_utc(start).isoformat() if start else None, as_utc(end).isoformat())
    window: Window = next(iter(windows.values()))
    if len(set(windows.values())) > 1:
        report = ", ".join(f"{name} {start or 'the beginning'} to {end}" for name, (start, end) in windows.items())
        raise BadInput(
            f"the ingests of the pipeline have different windows ({report}), but a candidate has one for all"
        )
    for step in chain:
        for path, text in _texts(step.record.params) if not step.has_window else ():
            with suppress(ValueError):
                if as_utc(text).isoformat() in window:
                    raise BadInput(
                        f"step {step.record.step!r} has {text!r} as {path}, which is a start or end of the data's "
                        "window: it would stay the same for every window of a back-test; make the step read it from "
                        f"the properties of its inputs instead, and {_REMEDY}"
                    )
    return window


def _texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the strings of a JSON value with their paths, except those of artifacts."""
    if isinstance(value, str):
        yield path.removeprefix("/"), value
    elif isinstance(value, Mapping) and not {"uri", "kind", "fingerprint"} <= value.keys():
        for name, item in value.items():
            yield from _texts(item, f"{path}/{name}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _texts(item, f"{path}/{place}")


def _has_module(entry: str) -> bool:
    """Returns whether this package has the module of a recorded entry; others are found when it runs."""
    top, *parts = entry.partition(":")[0].split(".")
    path = Path(str(airflow_hops.__file__)).parent.joinpath(*parts)
    return top != airflow_hops.__name__ or path.is_dir() or path.with_suffix(".py").is_file()


def ancestors(chain: Iterable[ChainStep], uri: str) -> tuple[ChainStep, ...]:
    """Returns the steps of a chain that made the artifact at an address, in their order."""
    wanted, result = {uri}, []
    for step in reversed(list(chain)):
        if wanted.intersection(step.uris):
            wanted |= {each.uri for values in step.inputs({}).values() for each in values}
            result.append(step)
    return tuple(reversed(result))


def recorded(store: ArtifactStore, uris: Iterable[str]) -> Iterator[tuple[Manifest, RunRecord]]:
    """Yields manifest and record of the artifacts that exist and have a record, newest first."""
    results: list[Manifest] = []
    for uri in uris:
        with suppress(BadInput):
            results.append(store.manifest(uri))
    for manifest in sorted(results, key=lambda manifest: manifest.created_at, reverse=True):
        if (record := record_of(store, manifest)) is not None:
            yield manifest, record


def with_artifacts(value: object, instead: Mapping[str, Artifact]) -> Any:
    """Returns a JSON value in which artifacts, such as those in function arguments, are replaced by URI."""
    if isinstance(value, str):
        return instead[value].uri if value in instead else value
    if isinstance(value, list | tuple):
        return [with_artifacts(item, instead) for item in value]
    if not isinstance(value, Mapping):
        return value
    if {"uri", "kind", "fingerprint"} <= value.keys() and value["uri"] in instead:
        return instead[value["uri"]].to_dict()
    return {name: with_artifacts(item, instead) for name, item in value.items()}


class _Walk:
    """Finds steps from the last to the first."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._depends: dict[str, bool] = {}
        self._tasks: dict[tuple[Any, ...], ChainStep] = {}
        self.steps: list[ChainStep] = []

    def visit(self, artifact: Artifact) -> bool:
        """Returns whether an artifact depends on a window, and collects the steps that made it."""
        if artifact.uri not in self._depends:
            self._depends[artifact.uri] = self._visit(artifact)
        return self._depends[artifact.uri]

    def _visit(self, artifact: Artifact) -> bool:
        store = self._store
        try:
            _, maker = store.find(artifact)
            if artifact.kind == "examples" and not maker.cache_key_parts:  # valid rows that a validation wrote
                maker = store.manifest(store.address(maker.producer, "anomalies"))
        except BadInput as error:
            raise BadInput(f"{artifact.uri}: a source of the model is gone ({error}); {_REMEDY}") from error
        record = record_of(self._store, maker)
        if record is not None and not _has_module(record.entry):
            record = None
        values = maker.inputs if record is None else record.artifacts()
        # Visits the schema last: it may come from an earlier run, whose data the model's own run replaces.
        inputs = sorted((a for artifacts in values.values() for a in artifacts), key=lambda a: a.kind == "schema")
        producer = maker.producer
        task = (producer.dag_id, producer.task, artifact.kind)
        if task in self._tasks:
            self._tasks[task].uris.append(artifact.uri)
            return True
        results = [self.visit(each) for each in inputs]
        if record is None:
            if any(results) or artifact.kind == "snapshot":
                reset = "have its schema inferred again with 'airflow hops schema reset', "
                raise BadInput(
                    f"{artifact.uri}: the store has no record of the step that made it with which this version of the "
                    "package runs it (an older version made it, or the record was removed), so it cannot be made for "
                    "another window; "
                    f"{reset if artifact.kind == 'schema' else ''}{_REMEDY}"
                )
            return False
        step = ChainStep(artifact, record, producer, [artifact.uri])
        if depends := any(results) or step.has_window:
            if task in self._tasks:
                raise BadInput(
                    f"{artifact.uri}: task {producer.task_id!r} continues from its output in an earlier run, "
                    f"{self._tasks[task].made.uri}; such a pipeline cannot be run for another window alone"
                )
            self._tasks[task] = step
            self.steps.append(step)
        return depends
