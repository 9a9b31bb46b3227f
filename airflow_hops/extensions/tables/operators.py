"""Operator that writes the rows of an artifact to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.extensions.tables.core.tables import Table
from airflow_hops.operators.base import HopsOperator
from airflow_hops.runner.arguments import holds_late

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["Table", "WriteTableOperator"]


class WriteTableOperator(HopsOperator):
    """Writes the rows of an artifact to a table of a database, of Iceberg or of Delta: each row exactly once.

    The rows may be predictions, examples, a snapshot, or the quarantined rows of a validation. The table gets two more
    columns: ``hops_batch``, and ``hops_folder``, the split or table within the artifact. All rows are written in one
    transaction, which first deletes rows of the same batch, so a retry or a rerun replaces them. Databases are written
    by the worker, with the driver of Airflow's provider, which then reads the rows again: a value that the table does
    not keep fails the task before the transaction ends.

    Example::

        WriteTableOperator(
            task_id="write", rows=predicted.output, table=Table(conn_id="warehouse", name="predictions")
        )

    Args:
        rows: The artifact. (templated)
        table: The table: a :class:`~airflow_hops.extensions.tables.Table`, its URI, or its fields. A lake's table is
            created if it does not exist. (templated)
        folders: Folders of the artifact to write, such as ``["eval"]`` or ``["rejected/flights"]``; None for all
            except rejected records. (templated)
        batch: Value of ``hops_batch``, such as ``"{{ ds }}"``, which is compared by its bytes; None for the artifact's
            path in the store, which consists of DAG, run and task. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`. Tables of Iceberg and Delta need a ``runtime``
            with their libraries.
    """

    entry = "airflow_hops.extensions.tables.ml.write.stage:run"
    output_kind = "table_write"
    param_arguments = ("table", "folders", "batch")
    input_arguments = ("rows",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "rows", "table", "folders", "batch")
    cacheable = False

    def __init__(
        self,
        *,
        rows: Any,
        table: Table | str | Mapping[str, Any],
        folders: Sequence[str] | None = None,
        batch: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.folders = folders
        self.batch = batch
        self.check_arguments(WriteTableOperator, table=table)
        self.table = table if holds_late(table) else Table.from_value(table).to_dict()

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the fields of the table, and what is written."""
        return {**super().step_params(context), "table": Table.from_value(self.table).to_dict()}

    def check_table(self, table: Any, columns: Sequence[str]) -> None:
        """Checks that the table of a database has columns that are known before there are rows; raises BadInput."""
        target = Table.from_value(table)
        if target.conn_id is None:
            return
        from airflow_hops.extensions.tables.runner.states import check_table

        check_table(target, columns)
