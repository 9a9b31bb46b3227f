"""Operators that explain models and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from airflow_hops.core.models.model_record import read_record
from airflow_hops.extensions.explain.core.explanation import ShapleyOptions
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.operators.trained_or_deployed import TrainedOrDeployedOperator
from airflow_hops.runner.arguments import Count, ModelName, Version, WholeNumber
from airflow_hops.runner.runtime import RuntimeHook

_SHAPLEY = ("background_rows", "pairs", "max_predictions", "seed", "log_odds")


class ShapleyOperator(HopsOperator):
    """Arguments of both operators.

    Args:
        examples: Output of ``PrepareOperator``. (templated)
        background: Rows that predictions are compared with: the output of ``StatisticsOperator``, whose sample
            monitors use, or examples; None for ``examples``. Of its splits, ``train`` is taken, or else the first.
            (templated)
        background_rows: Rows of it, a uniform sample.
        pairs: Permutations of the features for each of these rows, each with its reverse, if there are more than eight
            features; more make the errors smaller.
        max_predictions: Predictions up to which the task begins; more are refused, with what they are for.
        seed: Seed of all samples: the result depends on nothing else, as on the number of cores.
        log_odds: Whether reasons add up to the log-odds of a class (of several, to the logarithm of its probability
            less the mean of those of all), not to its probability: exact for boosted trees, refused for other models.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.

    Example:
        >>> from airflow_hops.extensions.explain import ExplainOperator, ShapleyOperator
        >>> issubclass(ExplainOperator, ShapleyOperator)
        True
    """

    template_fields: Sequence[str] = (*HopsOperator.template_fields, "examples", "background")

    def __init__(
        self,
        *,
        examples: Any,
        background: Any = None,
        background_rows: Count = 100,
        pairs: Count = 4,
        max_predictions: Count = 50_000_000,
        seed: WholeNumber = 0,
        log_odds: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.examples = examples
        self.background = background
        self.background_rows = background_rows
        self.pairs = pairs
        self.max_predictions = max_predictions
        self.seed = seed
        self.log_odds = log_odds
        self.check_arguments(ShapleyOperator)
        ShapleyOptions.of(self)


class ExplainOperator(ShapleyOperator):
    """Explains a model on held-out rows through its served graph, with raw features: a category is one feature.

    The artifact ``explanation`` holds ``explanation.json``: the permutation importance of each feature with 95%
    intervals, the partial dependence on the leading ones with the density of their values, and the reasons of some
    predictions, from the lowest to the highest. The model's page shows it beside the champion's. A feature that carries
    the model alone is a warning.

    Example::

        ExplainOperator(task_id="explain", model=model.output, examples=examples.output, model_name="flights")

    Args:
        model: Output of a training, of any framework. (templated)
        model_name: Name under which it is served: the champion, if it is another model, is explained on the same rows.
            (templated)
        split: Split with the rows; None for the first one except ``train``. (templated)
        rows: Rows of it, a uniform sample.
        repeats: Shuffles of each feature.
        dependence: Number of leading features whose partial dependence is computed.
        explained: Number of rows whose reasons are computed.
        **kwargs: As :class:`ShapleyOperator`.
    """

    entry = "airflow_hops.extensions.explain.ml.explain:run"
    output_kind = "explanation"
    input_arguments = ("model", "examples", "background")
    param_arguments = ("model_name", "split", "rows", "repeats", "dependence", "explained", *_SHAPLEY)
    template_fields: Sequence[str] = (*ShapleyOperator.template_fields, "model", "model_name", "split")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        model: Any,
        model_name: ModelName | None = None,
        split: str | None = None,
        rows: Count = 5000,
        repeats: Count = 5,
        dependence: WholeNumber = 6,
        explained: WholeNumber = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.model_name = model_name
        self.split = split
        self.rows = rows
        self.repeats = repeats
        self.dependence = dependence
        self.explained = explained
        self.check_arguments(ExplainOperator)

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the champion to the key, since another champion requires another comparison."""
        champion = read_record(hook.store, self.model_name).champion if self.model_name else None
        return {"champion": champion.fingerprint if champion else "none"}


class ReasonsOperator(TrainedOrDeployedOperator, ShapleyOperator):
    """Explains each prediction: the strongest reasons in columns, in the order of the rows.

    The artifact ``reasons`` holds ``<split>/part-00000.parquet`` with ``prediction``, ``base``, for each reason
    ``reason_1`` (the feature), ``value_1``, ``contribution_1``, ``error_1`` and so on, and ``rest``. Base and all
    contributions add up to the prediction.

    Example::

        ReasonsOperator(task_id="reasons", examples=examples.output, model_name="flights", splits=["newest"])

    Args:
        model: Output of a training. (templated)
        model_name: Instead of ``model``: name of a deployed model. (templated)
        version: Its version: ``champion``, ``challenger``, or the number of one that serves or has served. (templated)
        splits: Splits to explain; None for all. (templated)
        columns: Columns of the examples to write beside the reasons; None for the key, if any. (templated)
        reasons: Number of reasons.
        **kwargs: As :class:`ShapleyOperator`.
    """

    entry = "airflow_hops.extensions.explain.ml.reasons:run"
    output_kind = "reasons"
    input_arguments = ("examples", "model", "background")
    param_arguments = ("model_name", "version", "splits", "columns", "reasons", *_SHAPLEY)
    template_fields: Sequence[str] = (
        *ShapleyOperator.template_fields,
        "model",
        "model_name",
        "version",
        "splits",
        "columns",
    )

    def __init__(
        self,
        *,
        model: Any = None,
        model_name: ModelName | None = None,
        version: Literal["champion", "challenger"] | Version = "champion",
        splits: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        reasons: Count = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.model_name = model_name
        self.version = version
        self.splits = splits
        self.columns = columns
        self.reasons = reasons
        self.check_arguments(ReasonsOperator)
        self._check_model()
