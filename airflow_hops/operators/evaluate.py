"""Evaluation of a model, overall and by slice, against the champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LineageLink, ModelsLink
from airflow_hops.store.model_records import read_record

if TYPE_CHECKING:
    from airflow.sdk import Context


class EvaluateOperator(HopsOperator):
    """Scores an exported model on raw examples and blesses it, or says why not.

    The champion, if there is one, is scored on the very same rows. The artifact ``evaluation`` holds
    ``evaluation.json`` and is published blessed or not: its properties ``blessed`` and ``reasons`` say so.

    Args:
        model: The output of ``HorovodTrainOperator`` (templated).
        examples: The output of ``PrepareOperator``, or of ``PrepareImagesOperator`` (templated).
        model_name: Name under which the model is served, whose champion it is compared with (templated).
        splits: Splits to evaluate on; None for all of the examples but ``train``, which are ``eval`` and, where there
            is one, ``newest``. The first must have labels that differ (templated).
        slices: Columns by whose values the figures are given too (templated).
        metric: By which candidate and champion are compared: of two classes ``auc``, ``accuracy``, ``log_loss`` or
            ``brier``; of several also ``balanced_accuracy``, ``macro_f1`` or ``weighted_f1``; of a regression ``rmse``,
            ``mae``, ``r2`` or ``median_absolute_error``; or one of ``metrics``. None for the problem's own: ``auc``,
            ``log_loss``, ``rmse``.
        minimum: Worst figure allowed by metric, on every split; for a loss the greatest. None for
            ``{"auc": 0.6}``, of a regression ``{"r2": 0}``. Of a further label, its name and the metric:
            ``{"minutes/rmse": 20}``; the label's own are asked besides, unless others are named.
        max_regression: How much worse than the champion the model may be on a split, beyond chance: the lower end of
            the 95% interval of its gain must not lie below minus this. One figure, or one by split; None for 0.01, and
            of a metric in the label's units, or of ``metrics``, for a hundredth of the champion's figure.
        min_improvement: How much better it must be on at least one split, beyond chance; None asks for no improvement.
        metrics: Metrics of your own: by name ``module:function`` of labels, predictions and weights, beside the DAG
            file, and whether ``"lower"`` or ``"higher"`` is better.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.runtime.evaluate.stage:run"
    output_kind = "evaluation"
    operator_extra_links = (ModelsLink(), LineageLink())
    template_fields: Sequence[str] = (
        *HopsOperator.template_fields,
        "model",
        "examples",
        "model_name",
        "splits",
        "slices",
    )

    def __init__(
        self,
        *,
        model: Any,
        examples: Any,
        model_name: str,
        splits: Sequence[str] | None = None,
        slices: Sequence[str] = (),
        metric: str | None = None,
        minimum: Mapping[str, float] | None = None,
        max_regression: float | Mapping[str, float] | None = None,
        min_improvement: float | None = 0.0,
        metrics: Mapping[str, tuple[str, str]] | None = None,
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

    def step_inputs(self) -> Mapping[str, Any]:
        """Model and examples."""
        return {"model": self.model, "examples": self.examples}

    def step_params(self, context: Context) -> dict[str, Any]:
        """What to score and what to ask of it."""
        return {
            "model_name": self.model_name,
            "splits": None if self.splits is None else list(self.splits),
            "slices": list(self.slices),
            "metric": self.metric,
            "minimum": None if self.minimum is None else dict(self.minimum),
            "max_regression": self.max_regression,
            "min_improvement": self.min_improvement,
            "metrics": None if self.metrics is None else {name: list(of) for name, of in self.metrics.items()},
        }

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """The champion: another one asks for another comparison."""
        champion = read_record(hook.store, self.model_name).champion
        return {"champion": champion.fingerprint if champion else "none"}
