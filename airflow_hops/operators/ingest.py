"""Operator that reads raw tables in a window of time into a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import XComArg

from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.arguments import Time
from airflow_hops.connections import with_storage_options
from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError
from airflow_hops.core.contract.protocol import StepResult, StepSpec
from airflow_hops.core.contract.retraining.triggered import extras, requested_window
from airflow_hops.core.contract.sources import Source
from airflow_hops.core.monitoring.retraining import claim_request, note_no_new_rows
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import read_record
from airflow_hops.core.store.source_files import fingerprint_of_sources
from airflow_hops.extensions.streams.core.topic_ranges import REJECTED_FOLDER
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import airflow_error, producer_of, skipped
from airflow_hops.operators.spark import SparkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["IngestOperator", "Source"]
_READ_ANEW = ("sql://", "spark://", "hive://")
"""Schemes of tables whose earlier states cannot be read."""


class IngestOperator(SparkOperator):
    """Reads raw tables in a window of time into one ``snapshot``: a folder of Parquet files for each table.

    If the DAG run was triggered by an asset event whose ``extra`` has ``window_end``, as requests for retraining do,
    that and its ``window_start`` override the arguments. If another run has already claimed the request, the task is
    skipped; so it is, with all that follows, if the snapshot has the very rows on which the champion was trained.

    Example::

        flights = IngestOperator(
            task_id="ingest",
            sources={
                "flights": Source("s3://raw/flights/*.csv.gz", time_column="time_hour"),
                "planes": "s3://raw/planes.csv",
            },
            window_start="{{ data_interval_start }}",
            window_end="{{ data_interval_end }}",
        )

    The DAG needs ``schedule=CronDataIntervalTimetable(...)``: otherwise Airflow 3's data intervals are empty.

    Args:
        sources: The source of each table, by the table's name: a :class:`~airflow_hops.core.contract.sources.Source`,
            its URI, or its fields. The URI may be the output of another task. The first table is the main one, whose
            rows become examples. ``Source(conn_id=…, sql=…)`` is a query of a database, ``spark://…``,
            ``hive://…``, ``iceberg://…`` and ``delta://…`` are :doc:`tables </extensions/tables>`.
            ``dataset://[organisation/]name@version[#table]`` is a :doc:`shared data set </extensions/sharing>`,
            ``kafka://topic`` a :doc:`topic </extensions/streams>`. (templated)
        window_start: Start of the window, ISO 8601, UTC without a zone; None for no start. (templated)
        window_end: End of the window, ISO 8601; rows at this moment are outside. None for no end. (templated)
        licences: Licences of shared data sets that are accepted; others fail the task before a download. None for any.
        deferrable: Whether to wait for shared data sets in the triggerer, without a worker slot; by default
            ``[operators] default_deferrable``.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.ml.stages.ingest:run"
    output_kind: ClassVar[str | None] = "snapshot"
    templated = ("sources", "window_start", "window_end")

    def __init__(
        self,
        *,
        sources: Mapping[str, Source | str | XComArg | Mapping[str, Any]],
        window_start: Time | datetime | None = None,
        window_end: Time | datetime | None = None,
        licences: Sequence[str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())
        if not sources:
            raise BadInput("sources is empty; expected at least one table")
        if REJECTED_FOLDER in sources:
            raise BadInput(
                f"sources has a table {REJECTED_FOLDER!r}, which is the folder of records that cannot be decoded; give "
                "the table another name"
            )
        self.sources = {
            table: Source.from_value(table, {"uri": value} if isinstance(value, XComArg) else value).to_dict()
            for table, value in sources.items()
        }
        self._read_sources: Mapping[str, Any] | None = None
        self._states: Mapping[str, str] = {}
        self._waited: Any = None
        self._ranges: dict[str, dict[str, Any]] = {}

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the sources and the window, which a triggering asset event may replace."""
        start, end = requested_window(context.get("triggering_asset_events"))
        if end:
            self.log.info("The triggering asset event asks for the window %s to %s", start or self.window_start, end)
        start, end = start or self.window_start, end or self.window_end
        params = {
            "sources": self._read_sources or self.sources,
            "window_start": str(start) if start else None,
            "window_end": str(end) if end else None,
            **({"states": self._states} if self._states else {}),
        }
        return {**params, "ranges": self._ranges} if self._ranges else params

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step, unless other runs have claimed all requests that triggered this one.

        Raises:
            AirflowSkipException: they have; or the snapshot is that which the champion to retrain was trained on.
        """
        _claim_requests(hook.store, context)
        self._fetch_datasets(hook.store)
        self._plan_ranges(hook.store, context)
        self._states = self._states_of_tables(hook, context)
        result = super().run_step(hook, context)
        _skip_without_new_rows(hook.store, context, Artifact.from_dict(result.value))
        return result

    def _plan_ranges(self, store: ArtifactStore, context: Context) -> None:
        """Plans the offsets of topics; as parameters of the step they are part of the cache key."""
        from airflow_hops.extensions.streams.core.ranges import recorded_ranges  # it would slow down every DAG file

        params = self.step_params(context)
        sources = {table: Source.from_value(table, value) for table, value in params["sources"].items()}
        topics = with_storage_options({table: source for table, source in sources.items() if source.is_topic})
        window = params["window_start"], params["window_end"]
        self._ranges = {
            table: recorded_ranges(store, producer_of(context), table, source, window).to_dict()
            for table, source in topics.items()
        }

    def _fetch_datasets(self, store: ArtifactStore) -> None:
        """Waits until shared data sets are in the store, and then reads those files."""
        from airflow_hops.extensions.sharing.hooks import fetch_datasets, is_dataset  # these imports, and those of
        from airflow_hops.extensions.sharing.triggers import (
            DatasetTrigger,  # the trigger, would slow down every DAG file
        )

        if not any(map(is_dataset, self.sources.values())):
            return
        while not isinstance(step := fetch_datasets(store, self.sources, self.licences, self._waited), dict):
            trigger = DatasetTrigger(ref=step.ref, wants=step.wants, since=step.since, conn_id=self.hops_conn_id)
            self.log.info("Waiting for the sharing daemon: %s of data set %s", step.wants, step.ref)
            if self.deferrable:
                self.defer(trigger=trigger, method_name="resume")
            self._note_wait(asyncio.run(trigger.wait()))
        self._read_sources = step

    def _states_of_tables(self, hook: RuntimeHook, context: Context) -> dict[str, str]:
        """Asks a step for the states of tables, which become parameters and so part of the cache key."""
        tables = {name: value for name, value in self.sources.items() if Source.from_value(name, value).is_table}
        if not tables:
            return {}
        spec = StepSpec(
            step=self.task_id,
            entry="airflow_hops.extensions.tables.ml.read.tables:states_of",
            params={"sources": tables},
            producer=producer_of(context),
        )
        states = dict(hook.run(spec, launcher=self.chosen_launcher(hook), cache=False).value)
        return {
            name: state if tables[name]["uri"].startswith(_READ_ANEW) else _first_state(hook.store, spec, name, state)
            for name, state in states.items()
        }

    def _note_wait(self, event: Mapping[str, Any]) -> None:
        from airflow_hops.extensions.sharing.core.waiting import Wait

        if event["error"]:
            raise HopsError(event["error"])
        self._waited = Wait(event["ref"], event["wants"], event["since"])

    def resume(self, context: Context, event: Any) -> Any:
        """Continues after the triggerer has waited."""
        try:
            self._note_wait(event)
        except HopsError as error:
            raise airflow_error(error) from error
        return self.execute(context)

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the state of the files, so that changed files are read again."""
        read = self._read_sources or self.sources
        sources = {table: Source.from_value(table, value) for table, value in read.items() if table not in self._states}
        sources = {table: source for table, source in sources.items() if not source.is_topic}
        return {**super().step_cache_key_parts(hook), "sources": fingerprint_of_sources(with_storage_options(sources))}


def _first_state(store: ArtifactStore, spec: StepSpec, table: str, state: str) -> str:
    """Returns the snapshot that the first try of a run found, so that all its tries read the same rows."""
    producer, value = spec.producer, spec.params["sources"][table]
    identity = json.dumps([producer.run_id, value["uri"], value["version"]])
    name = f"{table}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.json"
    uri = store.uri("_state", producer.dag_id, producer.task, "states", name)
    with contextlib.suppress(FileExistsError):
        store.create_text(uri, json.dumps({"state": state}))
    return str(store.read_json(uri)["state"])


def _claim_requests(store: ArtifactStore, context: Context) -> None:
    """Claims the retraining requests that triggered the run.

    Raises:
        AirflowSkipException: other runs of the DAG have claimed all of them.
    """
    causes = [extra.get("cause") for extra in extras(context.get("triggering_asset_events"))]
    producer = producer_of(context)
    takers = [claim_request(store, cause, producer)["run_id"] for cause in causes if cause]
    if takers and len(takers) == len(causes) and producer.run_id not in takers:
        names = " and ".join(sorted(set(takers)))
        raise skipped(context["ti"], f"the request for this retraining was claimed by run {names}")


def _skip_without_new_rows(store: ArtifactStore, context: Context, snapshot: Artifact) -> None:
    """Notes for the requests that triggered the run whether there are new rows for their models.

    Raises:
        AirflowSkipException: requests triggered it, and there are none for any of their champions.
    """
    from airflow_hops.hooks.new_rows import training_snapshot

    events = list(extras(context.get("triggering_asset_events")))
    causes = {extra["cause"]: extra.get("model_name") for extra in events if extra.get("cause")}
    trained = []
    for cause, model_name in causes.items():
        champion = read_record(store, model_name).champion if model_name else None
        trained_on = training_snapshot(store, champion.model) if champion else None
        is_same = trained_on is not None and trained_on.fingerprint == snapshot.fingerprint
        note_no_new_rows(store, cause, producer_of(context), is_same)
        if champion is not None and is_same:
            trained.append(f"version {champion.version} of model {model_name!r}")
    if causes and len(trained) == len(causes) and all(extra.get("cause") for extra in events):
        names = " and ".join(sorted(set(trained)))
        raise skipped(
            context["ti"],
            f"the sources have no rows on which {names} was not trained: there is nothing new to learn. The request "
            "counts neither for the cooldown nor for the budget; to train all the same, trigger the DAG yourself",
        )
