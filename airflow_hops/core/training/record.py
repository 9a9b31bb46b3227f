"""Record of a training: its parameters, figures and outcome, as the web pages show them.

A training is a task instance with one state of code, parameters and inputs; all its tries share the record.
``<store>/_trainings/<dag>/`` holds two files for each: ``<id>.json``, a :class:`TrainingRecord`, and
``<id>.curves.json``. Each is replaced as a whole, so a reader finds the previous content or the new one. Curves are
written before the figures that summarize them.

The step writes when a try begins, at most every two seconds while metrics arrive, and when the try ends. If it is
killed, the status stays RUNNING, and the next try takes over the record: it keeps the curves up to where it resumes.
After the training, its evaluations and deployments add metrics and versions. People's notes are in a separate file,
so that nobody overwrites them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from airflow_hops.core.artifacts.artifact import Artifact, Manifest, Producer
from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.steps.run_record import record_key
from airflow_hops.core.store.artifact_store import ArtifactStore

_Content = TypeVar("_Content", bound=JsonFields)
_ID = re.compile(r"[0-9a-f]{32}")
_RECORD = re.compile(r"([0-9a-f]{32})\.json")

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

MAX_POINTS = 1000
"""Maximum number of points of a stored curve."""

EPOCHS_OF_RANKS = 10
"""Number of last epochs of which the times of all ranks are stored."""


@dataclass(frozen=True)
class MetricPoint(JsonFields):
    """A value of a metric (null if it is not finite), and its step."""

    value: float | None
    step: int


@dataclass(frozen=True)
class MetricFigures(JsonFields):
    """A metric during a training, over all its values; the smallest and largest are of the finite ones."""

    last: MetricPoint
    min: MetricPoint | None = None
    max: MetricPoint | None = None
    count: int = 1


@dataclass(frozen=True)
class StoredCurve(JsonFields):
    """A metric by step, with at most :data:`MAX_POINTS` points that preserve its shape.

    Attributes:
        values: Null if not finite.
        times: Milliseconds since the epoch.
    """

    steps: Sequence[int]
    values: Sequence[float | None]
    times: Sequence[int]


@dataclass(frozen=True)
class TrainingCurves(JsonFields):
    """The curves of a training by metric."""

    curves: Mapping[str, StoredCurve] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingTry(JsonFields):
    """A try of a training; times in milliseconds since the epoch. It was killed if another one follows its null end."""

    number: int
    start_time: int
    end_time: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class RankTimes(JsonFields):
    """A rank's rows in an epoch, and its seconds of computing, waiting for rows and exchanging gradients."""

    host: str
    row_count: int
    computing: float
    rows: float
    exchange: float


@dataclass(frozen=True)
class SlowestRank(JsonFields):
    """The rank that the others waited for in an epoch.

    Attributes:
        computing: Seconds of computing; ``rows``, of waiting for rows; ``exchange``, of exchanging gradients.
        waits_for: The name of the longest of these.
        times: Its time without the exchange, as a multiple of the other ranks' median.
        ranks: Rows and times of all ranks, by rank; empty in an epoch before the last :data:`EPOCHS_OF_RANKS`.
    """

    epoch: int
    rank: int
    computing: float
    rows: float
    exchange: float
    waits_for: str
    times: float
    ranks: tuple[RankTimes, ...] = ()


@dataclass(frozen=True)
class RunDataset(JsonFields):
    """A split that a training reads."""

    name: str
    context: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class RunModelVersion(JsonFields):
    """A version of a served model."""

    name: str
    version: int


@dataclass(frozen=True)
class TrainingRecord(JsonFields):
    """A training of a task instance, or a trial of a search.

    Attributes:
        run_id: The record's id, 32 hexadecimal digits (:func:`training_id`).
        start_time: Start of the first try, milliseconds since the epoch.
        end_time: End of the last try; None before.
        params: Parameters as text, without credentials.
        tags: Facts by name, ``hops.…``; MLflow's run has the same.
        parent: Id of the search that it is a trial of.
        record: Key of the :class:`~airflow_hops.core.steps.run_record.RunRecord` with environment and code.
        cost: As in the manifest of an artifact; empty before the end.
        mlflow: MLflow's ``experiment`` and ``run`` id; empty without MLflow.
        versions: Versions that its model was deployed as.
        slowest: The slowest rank of each epoch, of the last :data:`MAX_POINTS`; empty for one rank.
    """

    run_id: str
    name: str
    status: Status
    start_time: int
    end_time: int | None = None
    dag_run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    iteration: int = -1
    params: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, MetricFigures] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    datasets: tuple[RunDataset, ...] = ()
    parent: str | None = None
    record: str | None = None
    tries: tuple[TrainingTry, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    mlflow: Mapping[str, str] = field(default_factory=dict)
    versions: tuple[RunModelVersion, ...] = ()
    slowest: tuple[SlowestRank, ...] = ()

    def with_metrics(self, metrics: Iterable[tuple[str, float, int]]) -> TrainingRecord:
        """Returns the record with metrics that have no curve: name, value and step."""
        figures = dict(self.figures)
        for name, value, step in metrics:
            finite = MetricPoint(value, step) if math.isfinite(value) else None
            figures[name] = MetricFigures(finite or MetricPoint(None, step), finite, finite)
        return replace(self, figures=figures)

    def with_slowest(self, slowest: SlowestRank) -> TrainingRecord:
        """Returns the record with the slowest rank of an epoch; a resumed epoch replaces that of an earlier try."""
        kept_from = slowest.epoch - EPOCHS_OF_RANKS
        earlier = [
            each if each.epoch > kept_from else replace(each, ranks=())
            for each in self.slowest
            if each.epoch < slowest.epoch
        ]
        return replace(self, slowest=(*earlier, slowest)[-MAX_POINTS:])

    def with_version(self, name: str, version: int) -> TrainingRecord:
        """Returns the record with a version of its model."""
        added = RunModelVersion(name, version)
        return replace(self, versions=tuple(dict.fromkeys((*self.versions, added))))


def training_id(
    producer: Producer, parts: Mapping[str, str], inputs: Mapping[str, Sequence[Artifact]], *within: str
) -> str:
    """Returns the id of a training from its task instance and what its step was given.

    ``within`` names it among several of the step: an experiment, a trial.
    """
    place = (producer.dag_id, producer.run_id, producer.task, record_key(parts, inputs), *within)
    return hashlib.sha256("\n".join(place).encode()).hexdigest()[:32]


def training_of(model: Manifest) -> str:
    """Returns the id of the training that made a model artifact."""
    return training_id(model.producer, model.cache_key_parts, model.inputs)


def trainings_uri(store: ArtifactStore, dag_id: str) -> str:
    """Returns the folder with the records of a DAG's trainings."""
    return store.internal("_trainings", dag_id)


def training_uri(store: ArtifactStore, dag_id: str, run_id: str, part: str = "") -> str:
    """Returns the address of a record, or of its ``part`` ``curves``."""
    if not _ID.fullmatch(run_id):
        raise BadInput(f"{run_id!r} is not the id of a training; expected 32 hexadecimal digits")
    return f"{trainings_uri(store, dag_id)}/{run_id}{part and '.'}{part}.json"


def id_of_record(name: str) -> str | None:
    """Returns the id of the training that a file of the folder is the record of; None for other files."""
    matched = _RECORD.fullmatch(name)
    return matched[1] if matched else None


def read_training(store: ArtifactStore, dag_id: str, run_id: str) -> TrainingRecord | None:
    """Returns the record of a training; None if there is none. Raises BadInput if the file is not a record."""
    return _read(store, training_uri(store, dag_id, run_id), TrainingRecord)


def read_curves(store: ArtifactStore, dag_id: str, run_id: str) -> TrainingCurves:
    """Returns the curves of a training; none if no metric was reported. Raises BadInput if the file is damaged."""
    return _read(store, training_uri(store, dag_id, run_id, "curves"), TrainingCurves) or TrainingCurves()


def write_training(
    store: ArtifactStore, dag_id: str, record: TrainingRecord, curves: TrainingCurves | None = None
) -> None:
    """Writes the record of a training, after its curves."""
    if curves is not None:
        store.write_text(training_uri(store, dag_id, record.run_id, "curves"), _compact(curves))
    store.write_text(training_uri(store, dag_id, record.run_id), _compact(record))


def update_training(
    store: ArtifactStore,
    dag_id: str,
    run_id: str,
    change: Callable[[TrainingRecord], TrainingRecord],
    missing: Callable[[], TrainingRecord] | None = None,
) -> None:
    """Changes the record of a training that has ended; one that is missing is made, or left missing."""
    with store.lock(trainings_uri(store, dag_id)):
        record = read_training(store, dag_id, run_id) or (missing and missing())
        if record is not None:
            write_training(store, dag_id, change(record))


def _read(store: ArtifactStore, uri: str, kind: type[_Content]) -> _Content | None:
    """Returns the content of a file; None if there is no file."""
    try:
        return kind.from_dict(store.read_json(uri))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except TypeError as error:
        raise UnreadableFile(uri, f": not a {kind.__name__} ({error}); restore the file, or remove it") from error


def _compact(content: JsonFields) -> str:
    return json.dumps(content.to_dict(), ensure_ascii=False, separators=(",", ":")) + "\n"
