"""The world of a test: a store, plain writers of the artifacts that a stage reads, and stages run in this process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.errors import HopsError
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.step.context import StepContext
from tests import flights_examples
from tests.captured_flights import CaptureFolder
from tests.ml.echo_models import write_echo_model, write_function

if TYPE_CHECKING:
    from tests.ml.flights_models import FlightsModels

Table = pa.Table | pd.DataFrame | Mapping[str, Any]
KINDS = {
    "ingest": "snapshot", "prepare": "examples", "statistics": "statistics", "schema": "schema",
    "validation": "anomalies", "transform": "transformed_examples", "evaluate": "evaluation",
    "infra_validate": "infra_blessing", "skew": "skew", "performance": "performance",
}  # fmt: skip
"""Kind of artifact that each stage writes, by the name of its package."""


class World:
    """A store with plain writers of artifacts, each at an address of its own unless a test names its run.

    ``world.run(schema, statistics=world.run(statistics, examples=world.examples({"train": table})))``
    """

    def __init__(self, folder: Path, store: ArtifactStore | None = None) -> None:
        self.folder, self.store = folder, store or ArtifactStore(str(folder / "store"))

    def context(
        self,
        kind: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        services: Mapping[str, str] | None = None,
        dag_id: str = "tests",
        run_id: str | None = None,
        task_id: str | None = None,
        code_paths: tuple[str, ...] = (),
        **inputs: Artifact | Sequence[Artifact],
    ) -> StepContext:
        """Returns the context of a step's function."""
        producer = Producer(dag_id, run_id or f"run-{uuid.uuid4().hex[:8]}", task_id or kind or "step")
        spec = StepSpec(
            step=producer.task_id,
            entry="tests:step",
            params=params or {},
            inputs={role: (each,) if isinstance(each, Artifact) else tuple(each) for role, each in inputs.items()},
            output=Output(self.store.address(producer, kind), kind) if kind else None,
            store=self.store.root,
            storage_options=self.store.storage_options,
            producer=producer,
            code_paths=code_paths,
            services=services or {},
        )
        scratch = self.folder / f"scratch-{uuid.uuid4().hex[:8]}"
        scratch.mkdir()
        return StepContext(spec, scratch)

    def run(
        self,
        stage: ModuleType | Callable[..., Any],
        *,
        kind: str | None = None,
        services: Mapping[str, str] | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        code_paths: tuple[str, ...] = (),
        inputs: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> Any:
        """Runs a stage, or a step's function; of the values, artifacts are its inputs, and others its parameters.

        ``inputs`` are those whose roles are also names of parameters. A run that fails leaves no artifact,
        except for a notebook with its outputs.
        """
        function = stage.run if isinstance(stage, ModuleType) else stage
        if kind is None and isinstance(stage, ModuleType):
            kind = next(KINDS[part] for part in stage.__name__.split(".") if part in KINDS)
        params = {name: each for name, each in values.items() if not _is_input(each)}
        inputs = {**(inputs or {}), **{role: each for role, each in values.items() if role not in params}}
        ids = {"services": services, "run_id": run_id, "task_id": task_id, "code_paths": code_paths}
        context = self.context(kind, params=params, **ids, **inputs)
        written = [context.spec.output.uri] if context.spec.output else []
        former = [uri for uri in written if self.store.exists(uri)]
        try:
            result = function(context, **params)
        except HopsError:
            assert kind == "notebook" or [uri for uri in written if self.store.exists(uri)] == former
            raise
        assert kind is None or isinstance(result, Artifact)
        return result

    def artifact(
        self,
        kind: str,
        write: Callable[[Path], Any] | None = None,
        *,
        run_id: str | None = None,
        task_id: str | None = None,
        made_from: Mapping[str, Sequence[Artifact]] | None = None,
        **properties: Any,
    ) -> Artifact:
        """Commits an artifact; ``write`` gets its folder, and may return counts of rows."""
        producer = Producer("tests", run_id or f"run-{uuid.uuid4().hex[:8]}", task_id or kind)
        with self.store.create(self.store.address(producer, kind), kind, producer, inputs=made_from) as writer:
            rows = write and write(writer.path)
            return writer.commit(properties=properties, **({"rows": rows} if isinstance(rows, dict) else {}))

    def snapshot(self, tables: Mapping[str, Table], **properties: Any) -> Artifact:
        properties = {"window": None, "tables": [*tables], **properties}
        return self.artifact("snapshot", lambda folder: write_tables(folder, tables), **properties)

    def examples(self, splits: Mapping[str, Table | Sequence[Table]], **properties: Any) -> Artifact:
        """Writes examples; a split of several tables has as many files."""
        properties = {"label": "label", "splits": [*splits], **properties}
        return self.artifact("examples", lambda folder: write_tables(folder, splits), **properties)

    def described(self, examples: Artifact, **options: Any) -> dict[str, Artifact]:
        """Returns examples with their statistics and schema, made by the stages, as the inputs of others."""
        from airflow_hops.ml.schema import stage as schema
        from airflow_hops.ml.statistics import stage as statistics

        described = self.run(statistics, examples=examples, **options)
        return {"examples": examples, "statistics": described, "schema": self.run(schema, statistics=described)}

    def model(self, write: Callable[[Path], Any], **properties: Any) -> Artifact:
        """Writes a model; ``write`` gets the folder of its SavedModel."""
        return self.artifact("model", lambda folder: (write(folder / "saved_model"), None)[1], **properties)

    def echo(
        self, output: str, columns: Sequence[str], more: Mapping[str, str] | None = None, **properties: Any
    ) -> Artifact:
        """Writes a model whose outputs are columns of its rows (:func:`write_echo_model`)."""
        return self.model(lambda folder: write_echo_model(folder, output, columns, more), **properties)

    def served_function(self, serve: Callable[..., Any], types: Mapping[str, Any], **properties: Any) -> Artifact:
        """Writes a model that computes a function (:func:`write_function`)."""
        return self.model(lambda folder: write_function(folder, serve, **types), **properties)

    def deploy(self, model: Artifact, name: str = "served", version: int = 1, path: str = "/models/1") -> str:
        """Records a model as the champion; returns the record's address."""
        write_record(self.store, name, ModelRecord(champion=ServedVersion.of(model, version, path, 100)))
        return record_uri(self.store, name)

    def captured(self) -> CaptureFolder:
        """Returns an empty folder of captured requests, written as by the server."""
        return CaptureFolder(self.folder / f"captured-{uuid.uuid4().hex[:8]}")

    def rows(self, artifact: Artifact, split: str) -> pa.Table:
        return pq.read_table(sorted((self.store.local(artifact) / split).glob("*.parquet")))

    def read(self, artifact: Artifact, name: str) -> Any:
        """Returns a JSON file of an artifact."""
        return json.loads((self.store.local(artifact) / name).read_text())


class Flights(World):
    """A world that all tests share, with artifacts of the flights of winter, each made when a test first reads it."""

    def __init__(self, folder: Path, store: ArtifactStore, raw: Path) -> None:
        super().__init__(folder, store)
        self.raw, self._learnt = raw, dict[tuple[int, str], Artifact]()

    def months(self, first: int, last: int) -> pd.DataFrame:
        return flights_examples.months(self.raw, first, last)

    def examples(self, splits: Mapping[str, Table | Sequence[Table]], **properties: Any) -> Artifact:
        return super().examples(splits, **{**flights_examples.PROPERTIES, "window": None, **properties})

    @cached_property
    def statistics(self) -> Artifact:
        """Statistics of a third of the flights of January to March, splits train and eval."""
        from airflow_hops.ml.statistics import stage as statistics

        winter = self.months(1, 3)
        splits = {"train": winter[winter.index % 4 == 0], "eval": winter[winter.index % 12 == 1]}
        return self.run(statistics, examples=self.examples(splits))

    @cached_property
    def schema(self) -> Artifact:
        from airflow_hops.ml.schema import stage as schema

        return self.run(schema, statistics=self.statistics)

    @cached_property
    def prepared(self) -> Artifact:
        """Examples of a part of the flights of January to March: splits train, eval and newest (the last days)."""
        winter = self.months(1, 3)
        newest = winter["scheduled_at"] > winter["scheduled_at"].max() - 3 * 86_400
        older = winter[~newest]
        splits = {"train": older[older.index % 8 == 0], "eval": older[older.index % 16 == 1]}
        return self.examples({**splits, "newest": winter[newest].iloc[::2]})

    @cached_property
    def _models(self) -> FlightsModels:
        from tests.ml.flights_models import FlightsModels

        folder = self.folder / "flights-models"
        folder.mkdir()
        return FlightsModels(self.store, folder, *map(self.store.local, (self.prepared, self.statistics, self.schema)))

    def learnt(self, steps: int = 200, flaw: str = "") -> Artifact:
        """Returns a model that has learnt something; one of no steps guesses (:meth:`FlightsModels.make`)."""
        if (steps, flaw) not in self._learnt:
            self._learnt[steps, flaw] = self._models.make(steps=steps, flaw=flaw)
        return self._learnt[steps, flaw]


def write_tables(folder: Path, tables: Mapping[str, Table | Sequence[Table]]) -> dict[str, RowCounts]:
    """Writes ``<name>/part-00000.parquet`` and so on; returns the counts of rows."""
    counts = {}
    for name, files in tables.items():
        (folder / name).mkdir(parents=True)
        parts = [to_arrow(each) for each in (files if isinstance(files, list | tuple) else [files])]
        for number, part in enumerate(parts):
            pq.write_table(part, folder / name / f"part-{number:05}.parquet")
        rows = sum(part.num_rows for part in parts)
        counts[name] = RowCounts(rows, rows)
    return counts


def to_arrow(table: Table) -> pa.Table:
    """Returns a table of Arrow; NaN in a frame becomes null."""
    if isinstance(table, pd.DataFrame):
        return flights_examples.to_arrow(table)
    return table if isinstance(table, pa.Table) else pa.table(dict(table))


def _is_input(value: Any) -> bool:
    return isinstance(value, Artifact) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(each, Artifact) for each in value)
    )
