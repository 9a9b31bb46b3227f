"""Operator that evaluates a model, overall and by slice, against the champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from airflow_hops.core.metrics import METRICS, check_minimum_value
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.names import check_known
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.runner.arguments import FunctionName, ModelName, NotNegative
from airflow_hops.runner.runtime import RuntimeHook


class EvaluateOperator(HopsOperator):
    """Scores an exported model on raw examples, and blesses it or gives reasons for not doing so.

    The champion, if there is one, is scored on the same rows. The artifact ``evaluation`` holds ``evaluation.json`` and
    is published in either case; its properties ``blessed`` and ``reasons`` have the decision.

    Args:
        model: The output of the training task. (templated)
        examples: The output of ``PrepareOperator`` or ``PrepareImagesOperator``. (templated)
        model_name: Name under which the model is served; the model is compared with its champion. (templated)
        splits: Splits to evaluate on; None for all splits of the examples except ``train``. The first must have at
            least two different labels. (templated)
        slices: Columns; metrics are also reported by their values, up to 100 for each column. (templated)
        metric: The metric that compares candidate and champion. For two classes ``auc``, ``average_precision``,
            ``accuracy``, ``log_loss`` or ``brier``; for several ``log_loss``, ``accuracy``, ``balanced_accuracy``,
            ``macro_f1``, ``weighted_f1``, ``auc``, ``worst_auc`` or ``brier``; for a regression ``rmse``, ``mae``,
            ``r2`` or ``median_absolute_error``; or one of ``metrics``. None for the problem's default: ``auc``,
            ``log_loss``, ``rmse``.
        minimum: Worst allowed value by metric, on every split (for a loss, the greatest; of ``worst_auc``, see
            :doc:`/howto/evaluate`). None for ``{"auc": 0.6}``, or
            in a regression ``{"r2": 0}``. For a further label, prefix the metric with its name: ``{"minutes/rmse":
            20}``; the default of the first label then still applies, unless one of its metrics is named.
        max_regression: How much worse than the champion the model may be on a split, beyond chance: the lower end of
            the 95% interval of its gain must be at least minus this. One number, or one by split. None for 0.01, or
            for 1% of the champion's value if the metric has the label's units or is one of ``metrics``.
        min_improvement: How much better it must be on at least one split, beyond chance; None requires no improvement.
        metrics: Your own metrics by name: a function of labels, predictions and weights, in a module beside the DAG
            file, or its name, ``module:function``, and whether ``"lower"`` or ``"higher"`` is better.
        better_than_constant: Whether the model must be better than a constant answer, beyond chance, by log loss or
            squared error. False for outputs that are no probabilities or means, such as uncalibrated scores.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.ml.evaluate.stage:run"
    functions: ClassVar[Mapping[str, int]] = {"metrics": 3}
    output_kind = "evaluation"
    param_arguments = (
        "model_name", "splits", "slices", "metric", "minimum", "max_regression", "min_improvement", "metrics",
        "better_than_constant",
    )  # fmt: skip
    input_arguments = ("model", "examples")
    template_fields: Sequence[str] = (
        *HopsOperator.template_fields, *input_arguments, "model_name", "splits", "slices"
    )  # fmt: skip
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        model: Any,
        examples: Any,
        model_name: ModelName,
        splits: Sequence[str] | None = None,
        slices: Sequence[str] = (),
        metric: str | None = None,
        minimum: Mapping[str, float] | None = None,
        max_regression: NotNegative | Mapping[str, NotNegative] | None = None,
        min_improvement: float | None = 0.0,
        metrics: Mapping[str, tuple[FunctionName, Literal["higher", "lower"]]] | None = None,
        better_than_constant: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.examples = examples
        self.model_name = model_name
        self.splits = splits
        self.slices = slices
        self.metric = metric
        self.minimum = minimum
        self.max_regression = max_regression
        self.min_improvement = min_improvement
        self.metrics = metrics
        self.better_than_constant = better_than_constant
        self.check_arguments(EvaluateOperator)
        known = {*(name for names in METRICS.values() for name in names), *(metrics or ())}
        bounds = [
            (name if name in known else name.rpartition("/")[2], bound) for name, bound in (minimum or {}).items()
        ]
        where = f"{type(self).__name__} {self.task_id!r}: "
        for name in [*([metric] if metric is not None else []), *(name for name, _ in bounds)]:
            check_known(f"{where}metric", name, sorted(known))
        for name, bound in bounds:
            check_minimum_value(name, bound, name in (metrics or ()), where)

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the champion to the key, since another champion requires another comparison."""
        champion = read_record(hook.store, self.model_name).champion
        return {"champion": champion.fingerprint if champion else "none"}
