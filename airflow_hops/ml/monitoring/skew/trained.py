"""Training data of a model, and the comparison of rows with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.core.contract.properties import ModelProperties
from airflow_hops.core.contract.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT, SkewOptions, SkewReference
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.monitoring.captured.requests import RowsFile
from airflow_hops.ml.monitoring.skew.captured_rows import CapturedSpan
from airflow_hops.ml.monitoring.skew.detect import compare_statistics
from airflow_hops.ml.monitoring.skew.feature_rows import FeatureRows
from airflow_hops.ml.monitoring.skew.report import Compared, SkewReport
from airflow_hops.ml.readers.artifact_files import example_files, files_below
from airflow_hops.ml.schemas import SCHEMA_FILE, load_schema
from airflow_hops.ml.spark.tasks import IN_PROCESS, Pool
from airflow_hops.ml.statistics import STATISTICS_FILE, load_statistics
from airflow_hops.ml.statistics.summary import features_by_name, type_name

if TYPE_CHECKING:
    from airflow_hops.ml.metrics.scoring import ServedModel
    from airflow_hops.ml.monitoring.skew.attribution import Attribution

_FEATURES_AT_ONCE = 100
"""Features whose statistics are computed together: with more, batches have fewer rows, and each batch costs time."""
_OF_TIMES_ALONE = {"rows", "wrong_times", "wrong_time"}


@dataclass(frozen=True)
class Trained:
    """A model and its training data.

    Attributes:
        stored: Statistics of its training data.
        origin: Name of these statistics in artifacts.
        statistics: Statistics of the split that rows are compared with.
        schema: The schema; only features that the model takes have skew comparators.
        types: TFDV's type (INT, FLOAT, STRING) by name of the compared features.
        served: The model as a server loads it, if it is loaded already.
    """

    model: Artifact
    stored: Artifact
    origin: SkewReference
    statistics: Any
    schema: Any
    types: Mapping[str, str]
    served: ServedModel | None = None

    @classmethod
    def read(
        cls,
        store: ArtifactStore,
        model: Artifact,
        stored: Artifact,
        schema: Artifact,
        origin: SkewReference,
        split: str,
    ) -> Trained:
        """Reads the statistics and schema of a model from the store.

        Raises:
            BadInput: the model was trained on other statistics.
        """
        of = ModelProperties.of(model)
        trained_on = of.statistics_fingerprint
        if trained_on is not None and trained_on != stored.fingerprint:
            raise BadInput(
                f"{stored.uri}: these are not the statistics that version {origin.version} of {origin.model!r} "
                f"was trained on (fingerprint {stored.fingerprint[:12]}…, expected {trained_on[:12]}…): their task has "
                "run again since. Deploy a model that was trained on the new ones"
            )
        statistics = load_statistics(store.local(stored) / split / STATISTICS_FILE)
        loaded = load_schema(store.local(schema) / SCHEMA_FILE)
        _keep_comparators(loaded, of.features)
        known = features_by_name(statistics)
        types = {
            feature.name: type_name(known[feature.name])
            for feature in loaded.feature
            if feature.HasField("skew_comparator") and feature.name in known
        }
        return cls(model, stored, origin, statistics, loaded, types)

    def rows(self, store: ArtifactStore, split: str, pool: Pool = IN_PROCESS) -> FeatureRows:
        """Returns the rows that the statistics were computed from, to be read by tasks of ``pool``.

        Raises:
            BadInput: the examples are not known, or gone.
        """
        examples = store.manifest(self.stored.uri).inputs.get("examples")
        if not examples:
            raise BadInput(f"{self.stored.uri}: the manifest names no examples that the statistics were computed from")
        if pool.reads_store:
            files = [RowsFile.stored(file) for file in files_below(store, examples[0], [split])[split]]
        else:
            files = files_of(store.local(examples[0]), split)
        return FeatureRows(files, "", pool)


def compare_rows(
    store: ArtifactStore,
    trained: Trained,
    span: CapturedSpan,
    rows: FeatureRows,
    options: SkewOptions,
    *,
    unwell: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> Compared:
    """Compares rows with a model's training data; the verdict is ``insufficient`` if there are too few.

    Args:
        store: Store of the model and its examples, from which effects on predictions are computed.
        trained: The training data.
        span: Number and times of the rows.
        rows: The rows.
        options: Options of the comparison.
        unwell: Faults of the monitor itself, in words.
        notes: Other notes on the rows.

    Raises:
        BadInput: a feature is missing from them, or is of another type; or there is nothing to compare.
    """
    facts = {name: value for name, value in vars(span).items() if name not in _OF_TIMES_ALONE} | {
        "versions": dict(span.versions or {}),
        "unwell": unwell,
    }
    counts = {"captured": RowCounts(span.rows, span.rows)}
    notes = [*notes, *unwell]
    if span.rows < options.rows_needed:
        reference_rows = int(trained.statistics.datasets[0].num_examples)
        report = SkewReport(INSUFFICIENT, (), {}, reference_rows, span.rows, options.rows_needed)
        return Compared(report, trained.statistics, None, trained.origin, facts, counts, notes=tuple(notes))
    current = _statistics(rows, list(trained.types))
    report = compare_statistics(trained.statistics, current, trained.schema, options)
    attribution = None
    if options.attribute and report.verdict in (DRIFT, PIPELINE_FAULT):
        attribution = _attribute(store, trained, rows, options, report, notes)
    return Compared(
        report=report,
        reference=trained.statistics,
        current=current,
        origin=trained.origin,
        facts=facts,
        rows=counts,
        attribution=attribution,
        notes=tuple(notes),
    )


def files_of(folder: Path, split: str) -> list[RowsFile]:
    """Returns the files of a split of examples.

    Raises:
        BadInput: there are none.
    """
    return [RowsFile.at(path) for path in example_files(folder, split)]


def _statistics(rows: FeatureRows, names: Sequence[str]) -> Any:
    """Computes the statistics of some features at a time, so that their number does not change the cost of each."""
    statistics, *more = (
        rows.statistics(names[start : start + _FEATURES_AT_ONCE])
        for start in range(0, max(len(names), 1), _FEATURES_AT_ONCE)
    )
    for others in more:
        statistics.datasets[0].features.extend(others.datasets[0].features)
    return statistics


def _keep_comparators(schema: Any, features: Any) -> None:
    """Drops the comparators of features that the model does not take: the server never sees them."""
    for feature in schema.feature:
        if features and feature.name not in features:
            feature.ClearField("skew_comparator")


def _attribute(
    store: ArtifactStore,
    trained: Trained,
    rows: FeatureRows,
    options: SkewOptions,
    report: SkewReport,
    notes: list[str],
) -> Attribution | None:
    """Computes effects on predictions; None, and a note, if the model or its examples are gone."""
    from airflow_hops.ml.monitoring.skew.attribution import attribute_drift

    try:
        return attribute_drift(
            trained.served or model_folder(store, trained.model),
            trained.rows(store, options.split, rows.pool),
            rows,
            features=report.features,
            classes=ModelProperties.of(trained.model).classes,
        )
    except BadInput as error:
        notes.append(f"Effects on predictions are not known: {error}")
        return None
