"""Compares the reasons of captured requests with those of held-out rows, as the monitor compares features."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.skew import SkewOptions
from airflow_hops.extensions.explain.core.explanation import ShapleyOptions
from airflow_hops.extensions.explain.ml.rows import CountedPredictions, explainer_of
from airflow_hops.ml.distances.detect import side_of
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.metrics.scoring import ServedModel
from airflow_hops.ml.monitoring.captured.feature_rows import FeatureRows
from airflow_hops.ml.monitoring.skew.attribution import dense_rows
from airflow_hops.ml.stages.skew.compare import compare_rows
from airflow_hops.ml.stages.skew.fetch import fetch
from airflow_hops.ml.stages.skew.plan import plan_run
from airflow_hops.ml.stages.skew.stage import log_comparison, write_comparison
from airflow_hops.ml.step.context import StepContext


def run(
    context: StepContext,
    *,
    rows: int = 1000,
    background_rows: int = 100,
    pairs: int = 4,
    max_predictions: int = 50_000_000,
    **options: Any,
) -> Artifact:
    """Writes a ``skew`` artifact whose features are contributions.

    Parameters are those of ``ReasonSkewOperator``, and fields of ``SkewOptions``.

    Raises:
        BadInput: as the skew stage; fewer rows are to be explained than a verdict needs, or more predictions are needed
            than allowed.
    """
    values = SkewOptions(**options)
    shapley = ShapleyOptions(background_rows, pairs, max_predictions, values.seed)
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < values.rows_needed:
        raise BadInput(f"rows is {rows!r}, expected a whole number, {values.rows_needed} (min_rows) or more")
    plan = plan_run(context, values)
    trained, fetched = plan.trained, fetch(context, plan, values)
    if fetched.span.rows >= values.rows_needed:
        if trained.reference.sample is None:
            raise BadInput(f"{trained.origin.statistics}: there is no sample of rows; set sample_rows above 0")
        reasons = _Reasons(context, trained.model_served(), trained.reference.sample, shapley, rows)
        trained = replace(trained, reference=reasons.of(trained.reference.sample, "the reference"), schema=None)
        fetched = replace(fetched, rows=_ReasonRows(fetched.rows.files, fetched.rows.prefix, reasons=reasons))
    compared = compare_rows(trained, fetched, replace(values, predictions=False, attribute=False))
    log_comparison(compared)
    artifact = write_comparison(context, compared)
    if compared.current is not None:
        plan.commit()
    return artifact


class _Reasons:
    """Contributions of features to the predictions of sampled rows."""

    def __init__(
        self, context: StepContext, model: ServedModel, reference: pa.Table, options: ShapleyOptions, rows: int
    ) -> None:
        self.inputs, self._rows, self._random = model.inputs, rows, np.random.default_rng(options.seed)
        background = self._sampled(reference, options.background_rows, "the reference")
        counted = CountedPredictions(context)
        self._explainer = explainer_of(context, model, options, counted, background)
        each = self._explainer.predictions_per_row
        counted.planned = counted.made + 2 * rows * each
        options.check_cost(counted.planned, f"2 × {rows:,} rows × {each:,}")

    def _sampled(self, table: pa.Table, rows: int, where: str) -> dict[str, Any]:
        chosen = self._random.permutation(table.num_rows)[:rows]
        return dense_rows(table.take(pa.array(np.sort(chosen))), self.inputs, where)

    def of(self, table: pa.Table, where: str) -> Side:
        """Returns the contributions to a sample of rows, a column for each feature."""
        explained = self._explainer.explain(self._sampled(table, self._rows, where))
        values = np.stack([each.values for each in explained])
        return side_of(pa.table(dict(zip(self._explainer.features, values.T, strict=True))))


@dataclass(frozen=True)
class _ReasonRows(FeatureRows):
    """Captured rows, of which contributions are compared."""

    reasons: _Reasons = field(kw_only=True)

    def collect(self, features: Any) -> Side:
        sample = FeatureRows(self.files, self.prefix, self.pool).collect(list(self.reasons.inputs)).sample
        assert sample is not None
        return self.reasons.of(sample, "the captured rows")
