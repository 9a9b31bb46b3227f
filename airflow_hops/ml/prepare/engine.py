"""Interface of the engines of ``prepare``, which run the user's function and bring the rows of a key together.

Protocol of a step, the same on every engine:

1. The engine calls the user's function with its own kind of tables, and adds the conditions of ``reject``, which are in
   its SQL, to the column ``reject_reason`` (:class:`PreparedRows`). Nothing needs to run yet.
2. If something must be known of all rows first, :meth:`PreparedRows.summarize` passes over them.
3. :meth:`PreparedRows.write` classifies batches in any order, partitions the rows by Spark's hash of one column, and
   has each partition written. Order and sizes of batches change nothing in the files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.ml.prepare.classes import Classifier
from airflow_hops.ml.spark.pools import Pool
from airflow_hops.ml.step.context import StepContext

WritePart = Callable[[int, Iterable[Any]], str]

_LONGEST_MESSAGE = 4000


class PreparedRows(ABC):
    """The rows that a user's function returned.

    Attributes:
        schema: Their columns, in which ``reject_reason``, if any, is a string.
        pool: What works on files beside the engine.
    """

    schema: pa.Schema
    pool: Pool

    @abstractmethod
    def summarize(self, columns: Sequence[str], work: Callable[[Iterable[Any]], str]) -> list[str]:
        """Calls ``work`` with the batches of some columns, for each part of the rows; returns its results.

        Raises:
            BadInput: the user's code failed, or ``work`` raised it.
        """

    @abstractmethod
    def write(self, classifier: Classifier, parts: int, write: WritePart) -> list[str]:
        """Classifies all rows, and calls ``write`` with the number and the batches of each partition.

        A row is in the partition that :func:`airflow_hops.ml.prepare.hashes.partitions` names for the column
        ``classifier.identity``. A partition without rows may be left out.

        Returns:
            The results, in any order.

        Raises:
            BadInput: the user's code failed, or ``classifier`` raised it.
        """


class EngineRows(Protocol):
    """Function that a :class:`~airflow_hops.core.prepare.engines.PrepareEngine` names."""

    def __call__(
        self,
        context: StepContext,
        options: PrepareOptions,
        function: Callable[..., Any],
        tables: Sequence[str],
        parts: int,
    ) -> AbstractContextManager[PreparedRows]:
        """Starts the engine and calls the user's function with the tables of the input ``tables``.

        Args:
            context: The step.
            options: Whose ``reject`` are conditions in the engine's SQL.
            function: The user's function.
            tables: Names of the tables.
            parts: Number of partitions that the rows will be divided into.

        Raises:
            BadInput: the user's function raised, or returned something that the engine does not take, or columns that
                :func:`airflow_hops.ml.prepare.columns.check_columns` refuses.
        """


def call_prepare(name: str, function: Callable[..., object], *arguments: object) -> object:
    """Calls the user's function. Raises BadInput if it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        raise BadInput(f"{name} raised {described(error)}") from error


def described(error: Exception) -> str:
    """Returns an error's class and the first line of its message; of DuckDB's, all lines, which point into the SQL."""
    text = str(error).strip() or "no message"
    is_of_duckdb = "duckdb" in type(error).__module__  # Spark's other lines are plans and traces of the JVM
    return f"{type(error).__name__}: {text[:_LONGEST_MESSAGE] if is_of_duckdb else text.splitlines()[0]}"
