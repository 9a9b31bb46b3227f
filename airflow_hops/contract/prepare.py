"""How examples are made of raw tables: what the operator and the step agree upon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.contract.artifacts import BadInput, check_max_rejected
from airflow_hops.contract.json_fields import StepOptions


@dataclass(frozen=True)
class PrepareOptions(StepOptions):
    """The options of the prepare stage; JSON values.

    Attributes:
        prepare: ``module:function`` of the user's ``prepare(spark, tables)``.
        label: Column of the label.
        key: Column of the key, if there is one.
        time: Column of the time, if there is one.
        eval_percent: Share of the keys in the split ``eval``.
        newest_s: Length of the split ``newest`` at the end of the window, in seconds; None for no such split.
        table: The main table, each row of which becomes one example; the snapshot's first one by default.
        reject: SQL conditions over the columns of ``prepare`` by the reason to reject the rows for which they hold.
        max_rejected: Share of the main table's rows that a single reason may reject.

    Raises:
        BadInput: an option is not of these.
    """

    prepare: str
    label: str
    key: str | None = None
    time: str | None = None
    eval_percent: int = 20
    newest_s: float | None = None
    table: str | None = None
    reject: Mapping[str, str] = field(default_factory=dict)
    max_rejected: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.eval_percent <= 99:
            raise BadInput(f"eval_percent is {self.eval_percent}, expected 0 to 99")
        check_max_rejected(self.max_rejected)
        if self.newest_s is not None and self.time is None:
            raise BadInput("newest needs a time; name the column of the time, or leave newest out")
