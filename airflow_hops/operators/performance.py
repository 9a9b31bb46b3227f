"""Operator that measures the performance of served models with labels that arrive later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.monitor_reports import note_report
from airflow_hops.core.performance import REQUEST_KEYS, PerformanceOptions, PerformanceProperties
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.operators.base import HopsOperator, producer_of, skipped
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.operators.skew import skip_until_served
from airflow_hops.runner.arguments import ModelName, Time, is_output
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class PerformanceOperator(HopsOperator):
    """Measures the quality of a model's captured predictions with labels that arrive later.

    The report has, for each version, metrics with 95% intervals by period and over the window, the completeness of
    labels, and the loss of quality since the held-out split of its training. Metrics of classifiers are also estimated
    from calibrated probabilities, without labels, and marked as estimates. The task is skipped while no version serves,
    and fails if nothing was captured in the window. The property ``notes`` lists problems with the labels.

    The artifact ``performance`` holds ``performance.json``.

    Example::

        PerformanceOperator(
            task_id="performance", model_name="flights", time_feature="scheduled_at", window=timedelta(days=28),
            labels=Source("s3://raw/arrivals/*.parquet"), keys=["flight", "scheduled_at"], label_time="arrived_at",
        )

    Args:
        model_name: The served model. (templated)
        labels: The labels: a :class:`~airflow_hops.core.sources.sources.Source`, its URI or its fields; or the output
            of ``IngestOperator`` or ``PrepareOperator``. None for feedback that was sent to the model server.
            (templated)
        captured: Output of ``IngestOperator``: captured requests, such as a window of the topic that the model server
            sends them to, instead of the captured files; with ``labels``. (templated)
        table: The table of the labels' snapshot, or the split of the examples, if there are several. (templated)
        of_label: The predicted label to measure; None for the first, which a policy's ``Performance`` usually means.
            Use a separate task for each further label.
        label_column: Column of the label; None for a column with the label's name.
        keys: Columns of the labels that together identify a prediction: ``request_id`` and ``row``, or inputs of the
            model. Without a column ``row``, labels by request id belong to the request's first row. One that is not an
            input stands for the key of rows that ``ScoreOperator`` scored.
        label_time: Column with the time at which a label became known, a timestamp or seconds since the epoch: the last
            of several labels counts, and delays can be measured. Feedback has its own time.
        horizon: timedelta after a prediction in which its label becomes known, if the keys name several predictions,
            such as those of a customer: the last label from the prediction to its end counts. None if they name one.
        time_feature: The model's input that holds the row's time, in seconds since the epoch, which determines the age
            and period of a prediction; None for the time of the request, or the end of the window that was scored.
        as_of: End of the window, ISO 8601; later predictions and labels are ignored. None for the time of the newest
            prediction. (templated)
        window: Length of the window; None for everything that was captured.
        period: timedelta of the periods that are measured separately.
        label_delay: timedelta below which predictions are ignored, since early labels may not be typical.
        ages: Ages for which the completeness of labels is reported.
        min_rows: Labelled predictions required for metrics; two classes also require ten of each.
        estimates: Whether to estimate metrics without labels.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.ml.performance.stage:run"
    output_kind = "performance"
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)
    input_arguments = ("captured", "labels")
    template_fields: Sequence[str] = (*HopsOperator.template_fields, *input_arguments, "model_name", "table", "as_of")
    cacheable: ClassVar[bool] = False  # captured rows are not among the inputs

    def __init__(
        self,
        *,
        model_name: ModelName,
        labels: Any = None,
        captured: Any = None,
        table: str | None = None,
        of_label: str | None = None,
        label_column: str | None = None,
        keys: Sequence[str] = REQUEST_KEYS,
        label_time: str | None = None,
        horizon: timedelta | None = None,
        time_feature: str | None = None,
        as_of: Time | None = None,
        window: timedelta | None = None,
        period: timedelta = timedelta(days=1),
        label_delay: timedelta = timedelta(0),
        ages: Sequence[timedelta] = (timedelta(days=1), timedelta(days=7), timedelta(days=30)),
        min_rows: int = 100,
        estimates: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.labels = labels
        self.captured = captured
        self.table = table
        self.of_label = of_label
        self.label_column = label_column
        self.keys = keys
        self.label_time = label_time
        self.horizon = horizon
        self.time_feature = time_feature
        self.as_of = as_of
        self.window = window
        self.period = period
        self.label_delay = label_delay
        self.ages = ages
        self.min_rows = min_rows
        self.estimates = estimates
        self.check_arguments(PerformanceOperator)
        # An output of another task is an artifact or an address; only its value shows which.
        is_final = labels is None or is_output(labels) or _is_artifact(labels)
        if captured is not None and labels is None:
            raise ValueError(
                f"{self.task_id}: captured needs labels; ingest the topic of labels, which has the feedback"
            )
        self.labels = labels if is_final else row_source("labels", labels).to_dict()
        self._options(source=None, as_of=None)  # templates are not rendered yet

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the measurement's options."""
        is_source = self.labels is not None and not _is_artifact(self.labels)
        source = row_source("labels", self.labels).to_dict() if is_source else None
        return self._options(source=source, as_of=self.as_of).to_dict()

    def _options(self, **rendered: Any) -> PerformanceOptions:
        return PerformanceOptions.of(self, **rendered, label=self.of_label)

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the captured requests, and the labels if they are an artifact."""
        return {**super().step_inputs(), "labels": self.labels if _is_artifact(self.labels) else None}

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Runs the step; skips the task while no version of the model serves, and for ``captured`` without rows."""
        skip_until_served(hook.store, self.model_name, context)
        if self.captured is not None:
            snapshot = self.step_inputs()["captured"]
            rows = hook.store.manifest(Artifact.from_dict(snapshot).uri).rows
            if rows and not any(counts.rows_out for counts in rows.values()):
                raise skipped(context["ti"], "no request was captured in the window")
        result = super().run_step(hook, context)
        report = Artifact.from_dict(result.value)
        properties = PerformanceProperties.of(report)
        versions = [each.version for each in properties.versions]
        note_report(hook.store, self.model_name, report, versions, properties.as_of or None, producer_of(context))
        return result


def _is_artifact(value: Any) -> bool:
    return isinstance(value, Mapping) and "kind" in value
