"""Statistics of examples, by TFDV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.operators.base import HopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class StatisticsOperator(HopsOperator):
    """Computes the TFDV statistics of every split of ``examples``.

    The artifact ``statistics`` holds ``<split>/FeatureStats.pb`` and ``<split>/statistics.json``.

    Args:
        examples: The output of ``PrepareOperator`` (templated).
        splits: Splits to look at; None for all (templated).
        workers: Processes; None for as many as pay at the number of rows.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.runtime.statistics:run"
    output_kind = "statistics"
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "examples", "splits")

    def __init__(
        self, *, examples: Any, splits: Sequence[str] | None = None, workers: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.examples = examples
        self.splits = splits
        self.workers = workers

    def step_inputs(self) -> Mapping[str, Any]:
        """The examples."""
        return {"examples": self.examples}

    def step_params(self, context: Context) -> dict[str, Any]:
        """The splits, and how many processes."""
        return {"splits": list(self.splits) if self.splits else None, "workers": self.workers}
