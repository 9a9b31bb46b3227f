"""Contract tests of sources, for pytest.

Those of a planner run in Airflow's environment, those of a reader in the runtime environment, those of the class in
either.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.programs import with_package
from airflow_hops.core.sources.sources import RowSource, row_source, scheme_of, source_class

_ONE_SIDE = ("airflow.sdk", "numpy", "pandas", "pyarrow", "pyspark", "tensorflow")
_IMPORT = """
import importlib, sys
importlib.import_module({module!r})
print(" ".join({names!r} & sys.modules.keys()))
"""


class SourceContract:
    """Tests that every class of sources passes, in either environment.

    Attributes:
        fields: Fields of a source as in a DAG, ``uri`` and all required ones.
    """

    fields: ClassVar[Mapping[str, Any]]

    def test_scheme_leads_to_the_class(self) -> None:
        kind = source_class(self.fields["uri"])
        assert issubclass(kind, RowSource)
        assert type(row_source("rows", self.fields)) is kind
        assert scheme_of(self.fields["uri"]) in kind.schemes
        assert kind.planner and ":" in kind.planner

    def test_json_leads_to_an_equal_source(self) -> None:
        source = row_source("rows", self.fields)
        assert row_source("rows", json.loads(json.dumps(source.to_dict()))) == source

    def test_refuses_unknown_fields_and_other_schemes(self) -> None:
        with pytest.raises(BadInput):
            row_source("rows", {**self.fields, "no_such_field": 1})
        with pytest.raises(BadInput):
            source_class(self.fields["uri"]).from_value("rows", {**self.fields, "uri": "no-such-scheme://rows"})

    def test_class_imports_nothing_of_one_side(self) -> None:
        """DAG files and steps import it."""
        script = _IMPORT.format(module=source_class(self.fields["uri"]).__module__, names=set(_ONE_SIDE))
        command = [sys.executable, "-c", script]
        result = subprocess.run(
            command, env=with_package({"PYTHONPATH": ":".join(sys.path)}), check=True, capture_output=True, text=True
        )
        assert result.stdout.split() == []


class PlannerContract:
    """Tests that every planner passes, in Airflow's environment; it may not have to wait in them."""

    @pytest.fixture
    def source(self) -> RowSource:
        raise NotImplementedError("return a source without a window")

    @pytest.fixture
    def hook(self) -> Any:
        raise NotImplementedError("return a RuntimeHook with an empty store")

    @pytest.fixture
    def change(self) -> Callable[[], Any]:
        """Returns a function that adds rows to the source, if the test can do so."""
        return lambda: None

    def test_all_tries_of_a_run_read_the_same_rows(self, source: RowSource, hook: Any, change: Any) -> None:
        from airflow_hops.runner.sources import Planning  # Airflow's side

        hook.make_store()
        planning = Planning(hook, Producer("contract", "run", "ingest"), (None, None))
        plan = pkgutil.resolve_name(str(source.planner))
        first = plan({"rows": source}, planning)
        change()
        again = replace(planning, producer=replace(planning.producer, try_number=2))
        assert plan({"rows": source}, again) == first
        assert first.keys() == {"rows"}
        assert isinstance(first["rows"], RowSource) or json.loads(json.dumps(first["rows"])) == first["rows"]


class ReaderContract:
    """Tests that every reader passes, in the runtime environment.

    Attributes:
        rows: Number of rows of the source.
    """

    rows: ClassVar[int]

    @pytest.fixture
    def source(self) -> RowSource:
        raise NotImplementedError("return a source with a time_column and the options of its connection")

    @pytest.fixture
    def plan(self, source: RowSource) -> Any:
        """Returns the plan of the source."""
        return None

    @pytest.fixture
    def ingest(self, tmp_path: Path, plan: object) -> object:
        """Returns a function that reads a source, and returns the counts of rows and the files' contents by name."""
        from airflow_hops.ml.ingest import Window, ingest_table
        from airflow_hops.ml.readers.artifact_files import OutputFolder  # the runtime's side

        def ingest(source: RowSource, name: str = "first", start: str | None = None) -> tuple[object, dict[str, bytes]]:
            folder = tmp_path / name
            folder.mkdir()
            counts, _ = ingest_table("rows", source, Window.parse(start, None), OutputFolder(str(folder)), plan=plan)
            return counts, {path.name: path.read_bytes() for path in sorted((folder / "rows").iterdir())}

        return ingest

    def test_equal_rows_become_equal_bytes(self, ingest: Any, source: RowSource) -> None:
        counts, files = ingest(source)
        assert (counts.rows_in, counts.rows_out) == (self.rows, self.rows)
        assert files and ingest(source, "second")[1] == files

    def test_reads_chosen_columns(self, ingest: Any, source: RowSource, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        ingest(replace(source, columns=(str(source.time_column),)))
        assert pq.read_table(tmp_path / "first" / "rows").column_names == [source.time_column]

    def test_refuses_an_unknown_column(self, ingest: Any, source: RowSource) -> None:
        with pytest.raises(BadInput, match="no such column"):
            ingest(replace(source, columns=("no such column",)))

    def test_refuses_a_window_without_rows(self, ingest: Any, source: RowSource) -> None:
        with pytest.raises(BadInput, match="no rows in the window"):
            ingest(source, start="9000-01-01T00:00:00+00:00")
