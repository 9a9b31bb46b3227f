"""Contract tests of engines of ``prepare``, for pytest in the runtime environment."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.errors import BadInput, RowsNotConserved
from airflow_hops.core.prepare.engines import PrepareEngine, prepare_engine
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.prepare import stage
from airflow_hops.ml.prepare.classes import Classifier
from airflow_hops.ml.prepare.columns import REASON_COLUMN, check_columns
from airflow_hops.ml.prepare.engine import PreparedRows, WritePart
from airflow_hops.ml.prepare.hashes import partitions
from airflow_hops.ml.spark.pools import IN_PROCESS
from airflow_hops.ml.step.context import StepContext, resolve

_ROWS = 1200
_DAY_US = 86_400_000_000
ROWS = pa.table(
    {
        "id": [f"key {n if n % 40 else n + 1}" if n % 50 != 7 else None for n in range(_ROWS)],
        "at": pa.array([n * _DAY_US for n in range(_ROWS)], pa.timestamp("us", "UTC")),
        "label": [("yes", "no", "no", None)[n % 4 if n % 44 == 3 else n % 3] for n in range(_ROWS)],
        "integer": pa.array([n if n % 9 else None for n in range(_ROWS)], pa.int32()),
        "double": [(0.1 * n, float("nan"), -0.0, None)[n % 4] for n in range(_ROWS)],
        "float": pa.array([0.3 * n for n in range(_ROWS)], pa.float32()),
        "flag": [n % 2 == 0 for n in range(_ROWS)],
        "text": [f"é{n % 17} " * (n % 5) for n in range(_ROWS)],
        "vector": [[0.5 * n, 1.0, 2.0][: 3 if n % 60 else 2] if n % 11 else None for n in range(_ROWS)],
        "reject_reason": ["closed" if n % 70 == 5 else None for n in range(_ROWS)],
    }
)
"""The table ``rows`` of the snapshot."""
_REJECT = {"a multiple of 81": "integer % 81 = 0"}


class PrepareEngineContract:
    """Tests that every engine passes; a subclass names the engine and functions of the kind that its users write.

    Each function gets what the engine gives, of which ``tables["rows"]`` is the table ``rows``.

    Attributes:
        engine: Name of the engine in the entry-point group ``airflow_hops.prepare_engines``.
    """

    engine: ClassVar[str]

    @staticmethod
    @abstractmethod
    def whole(session: Any, tables: Any) -> Any:
        """Returns all rows and columns of the table ``rows``."""

    @staticmethod
    @abstractmethod
    def reversed(session: Any, tables: Any) -> Any:
        """Returns the rows of the table ``rows`` by ``at``, descending."""

    @staticmethod
    @abstractmethod
    def doubled(session: Any, tables: Any) -> Any:
        """Returns each row of the table ``rows`` twice."""

    @pytest.fixture
    def prepare(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., tuple[Artifact, dict[str, bytes]]]:
        """Returns a function that runs the stage with a user's function, and returns the content of its files."""
        store = ArtifactStore(str(tmp_path / "store"))
        with store.create(store.uri("contract", "snapshot"), "snapshot", Producer()) as writer:
            (writer.path / "rows").mkdir()
            for number in range(2):
                pq.write_table(ROWS.slice(number * 700, 700), writer.path / "rows" / f"part-0000{number}.parquet")
            counts = {"rows": RowCounts(_ROWS, _ROWS)}
            snapshot = writer.commit(rows=counts, properties={"window": None, "tables": ["rows"]})

        def run(function: Callable[..., Any], engine: str = self.engine, **options: object) -> Any:
            module = ModuleType("users")
            module.prepare = function  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "users", module)
            producer = Producer("contract", f"run-{len(list(tmp_path.iterdir()))}", "prepare")
            scratch = tmp_path / producer.run_id
            scratch.mkdir()
            spec = StepSpec(
                step="prepare",
                entry="airflow_hops.ml.prepare:run",
                params={},
                inputs={"tables": (snapshot,)},
                output=Output(store.address(producer, "examples"), "examples"),
                store=store.root,
                producer=producer,
            )
            options = {
                "prepare": "users:prepare",
                "label": "label",
                "key": "id",
                "time": "at",
                "reject": _REJECT,
                "max_rejected": 0.3,
            } | options
            artifact = stage.run(StepContext(spec, scratch), engine=engine, **options)
            folder = store.local(artifact)
            return artifact, {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.parquet"))}

        return run

    @pytest.mark.parametrize("options", [{}, {"newest_s": 100 * 86_400.0}, {"key": None}, {"key": "integer"}])
    def test_files_are_those_of_every_engine(
        self, prepare: Any, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, object]
    ) -> None:
        artifact, files = prepare(self.whole, **options)
        reference = PrepareEngine(f"{__name__}:reference_rows")
        monkeypatch.setattr(f"{stage.__name__}.prepare_engine", lambda name: reference)
        expected, expected_files = prepare(lambda *_: ROWS, engine="reference", **options)
        assert artifact.rows == expected.rows and len(expected.rows["rows"].rejected) > 2
        assert artifact.properties == expected.properties
        assert files == expected_files

    def test_order_of_rows_does_not_matter(self, prepare: Any) -> None:
        assert prepare(self.whole)[1] == prepare(self.reversed)[1]

    def test_rows_are_conserved(self, prepare: Any) -> None:
        with pytest.raises(RowsNotConserved, match=f"table 'rows' has {_ROWS} rows, {2 * _ROWS} came out"):
            prepare(self.doubled, max_rejected=1)

    def test_bad_functions_and_conditions_are_named(self, prepare: Any) -> None:
        def fails(session: object, tables: object) -> Any:
            raise ZeroDivisionError("no rows per day")

        with pytest.raises(BadInput, match="users:prepare raised ZeroDivisionError: no rows per day"):
            prepare(fails)
        with pytest.raises(BadInput, match="users:prepare returned a int, expected "):
            prepare(lambda *_: 7)
        with pytest.raises(BadInput, match=r"reject\['odd'\]: 'nowhere = 1': "):
            prepare(self.whole, reject={"odd": "nowhere = 1"})
        with pytest.raises(BadInput, match="label is 'absent', but prepare returned no such column; it has id, at"):
            prepare(self.whole, label="absent")

    def test_engine_is_registered(self) -> None:
        assert callable(resolve(prepare_engine(self.engine).rows))


class _Reference(PreparedRows):
    """Rows in memory; what every engine's results are compared with."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.schema, self.pool = table, table.schema, IN_PROCESS

    def summarize(self, columns: Sequence[str], work: Callable[[Iterable[Any]], str]) -> list[str]:
        return [work(self.table.select(columns).combine_chunks().to_batches())]

    def write(self, classifier: Classifier, parts: int, write: WritePart) -> list[str]:
        (batch,) = self.table.combine_chunks().to_batches()
        rows = classifier.classify(batch)
        numbers = partitions(rows.column(rows.schema.get_field_index(classifier.identity)), parts)
        return [write(part, [rows.take(pa.array(np.flatnonzero(numbers == part)))]) for part in range(parts)]


@contextmanager
def reference_rows(context: Any, options: Any, function: Any, tables: object, parts: int) -> Iterator[_Reference]:
    """Opens rows in memory, with the one condition of these tests."""
    table = function()
    check_columns(table.schema, options)
    (reason,) = options.reject
    place = table.column_names.index(REASON_COLUMN)
    multiple = pc.equal(pc.multiply(pc.divide(table["integer"], 81), 81), table["integer"]).fill_null(False)
    reasons = pc.coalesce(table[REASON_COLUMN], pc.if_else(multiple, reason, pa.scalar(None, pa.string())))
    yield _Reference(table.set_column(place, REASON_COLUMN, reasons))
