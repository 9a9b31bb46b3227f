"""Source of the rows of another organisation's data set."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_hops.core.sources.sources import RowSource
from airflow_hops.extensions.sharing.core.entries import SCHEME


@dataclass(frozen=True)
class DatasetSource(RowSource):
    """The source of a shared data set's rows, which the sharing daemon fetches.

    Attributes:
        uri: ``dataset://[organisation/]name@version[#table]``.
        time_column: Column by which the window selects rows; None takes the whole table.
        columns: Columns to use; None for all.
        schema: Types that columns must have, by name, as in :class:`~airflow_hops.operators.Source`; others fail the
            task before the download.
        licences: Licences that are accepted; others fail the task before the download. None for any.
    """

    schemes = (SCHEME,)
    planner = "airflow_hops.extensions.sharing.hooks:plan"
    licences: tuple[str, ...] | None = field(default=None, kw_only=True)
