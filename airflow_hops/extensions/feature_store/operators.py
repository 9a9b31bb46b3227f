"""Operators of the feature store: register definitions, load the online store, join training sets, push rows.

They run in a named environment with Feast, by default ``features``, which
``airflow hops runtime create --name features --with "feast[duckdb]"`` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal

from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.runner.arguments import Time

PushTo = Literal["online", "offline", "online_and_offline"]
_START, _END = "{{ data_interval_start.isoformat() }}", "{{ data_interval_end.isoformat() }}"


class FeatureStoreOperator(HopsOperator):
    """Arguments of all operators of the feature store.

    Args:
        repository: The Feast repository, a folder with ``feature_store.yaml`` and modules of definitions, absolute or
            beside the DAG file. Its registry and online store must be in a place that all workers share. (templated)
        runtime: Name of an environment with Feast. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    input_kinds = {**HopsOperator.input_kinds, "definitions": ("feature_definitions",)}
    param_arguments: ClassVar[Sequence[str]] = ("repository",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "repository")

    def __init__(self, *, repository: str, runtime: str = "features", **kwargs: Any) -> None:
        super().__init__(runtime=runtime, **kwargs)
        self.repository = repository
        self.runtime = runtime
        self.check_arguments(FeatureStoreOperator)


class ApplyFeaturesOperator(FeatureStoreOperator):
    """Registers a repository's entities, feature views and services, as ``feast apply`` does.

    The log shows the plan first. The artifact ``feature_definitions`` holds the plan and the definitions; given to the
    other operators, it makes the definitions part of lineage and cache key.

    Example::

        defined = ApplyFeaturesOperator(task_id="definitions", repository="flights/features")

    Args:
        allow_deletes: Whether definitions that the repository no longer has are removed, with their values in the
            online store. By default such a plan fails the task, and changes nothing.
        **kwargs: As :class:`FeatureStoreOperator`.
    """

    entry = "airflow_hops.extensions.feature_store.ml.stages.apply_features:run"
    output_kind = "feature_definitions"
    param_arguments = ("repository", "allow_deletes")
    cacheable = False

    def __init__(self, *, allow_deletes: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.allow_deletes = allow_deletes
        self.check_arguments(ApplyFeaturesOperator)


class MaterializeOperator(FeatureStoreOperator):
    """Loads the values of a window into the online store. A retry, or a run that is cleared, loads them again.

    Args:
        definitions: The output of ``ApplyFeaturesOperator``, which must still match the registry. (templated)
        window_start: Start of the window, ISO 8601, UTC without a zone; by default that of the run's data interval.
            (templated)
        window_end: Its end; by default the end of the run's data interval. (templated)
        views: Names of the views; None for all that are online. (templated)
        **kwargs: As :class:`FeatureStoreOperator`.
    """

    entry = "airflow_hops.extensions.feature_store.ml.stages.materialize:run"
    output_kind = "materialization"
    input_arguments = ("definitions",)
    param_arguments = ("repository", "window_start", "window_end", "views")
    template_fields: Sequence[str] = (
        *FeatureStoreOperator.template_fields,
        "definitions",
        "window_start",
        "window_end",
        "views",
    )
    cacheable = False

    def __init__(
        self,
        *,
        definitions: Any = None,
        window_start: datetime | Time = _START,
        window_end: datetime | Time = _END,
        views: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.definitions = definitions
        self.window_start = _as_text(window_start)
        self.window_end = _as_text(window_end)
        self.views = views
        self.check_arguments(MaterializeOperator, window_start=window_start, window_end=window_end)


class TrainingDatasetOperator(FeatureStoreOperator):
    """Adds the feature store's values as of each example's time, on the engine of the repository's offline store.

    All rows stay, in their order and splits. A value that was created after the example's time is left out if the
    view's source has a created timestamp; Feast itself takes such values by default.

    Example::

        dataset = TrainingDatasetOperator(
            task_id="dataset",
            repository="flights/features",
            definitions=defined.output,
            examples=prepared.output,
            features=["carrier_delays:mean_delay_7d", "airport_weather:wind"],
        )

    Args:
        examples: The output of ``PrepareOperator`` with the labels, the entities' keys and the time. (templated)
        features: References ``view:feature``, or the name of a feature service. (templated)
        definitions: The output of ``ApplyFeaturesOperator``, which must still match the registry. (templated)
        full_names: Whether columns are named ``view__feature`` instead of ``feature``.
        as_created: Whether values that were created after an example's time are left out.
        drop_keys: Whether the keys of the entities are left out, so that the model does not use them as features.
        **kwargs: As :class:`FeatureStoreOperator`.
    """

    entry = "airflow_hops.extensions.feature_store.ml.stages.training_dataset:run"
    output_kind = "examples"
    input_arguments = ("examples", "definitions")
    param_arguments = ("repository", "features", "full_names", "as_created", "drop_keys")
    template_fields: Sequence[str] = (*FeatureStoreOperator.template_fields, "examples", "definitions", "features")
    operator_extra_links = (DATA_LINK, LINEAGE_LINK)
    cacheable = False

    def __init__(
        self,
        *,
        examples: Any,
        features: str | Sequence[str],
        definitions: Any = None,
        full_names: bool = False,
        as_created: bool = True,
        drop_keys: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.examples = examples
        self.features = features
        self.definitions = definitions
        self.full_names = full_names
        self.as_created = as_created
        self.drop_keys = drop_keys
        self.check_arguments(TrainingDatasetOperator)


class PushFeaturesOperator(FeatureStoreOperator):
    """Pushes rows to the views of a push source, as a stream does.

    Args:
        rows: A snapshot or examples, with the columns of the views and their times. (templated)
        push_source: Name of the push source. (templated)
        definitions: The output of ``ApplyFeaturesOperator``, which must still match the registry. (templated)
        table: Table or split with the rows; None for all.
        to: ``online``, ``offline``, or ``online_and_offline``. A retry appends rows to the offline store again, which
            changes no training set.
        **kwargs: As :class:`FeatureStoreOperator`.
    """

    entry = "airflow_hops.extensions.feature_store.ml.stages.push_features:run"
    output_kind = "feature_push"
    input_arguments = ("rows", "definitions")
    param_arguments = ("repository", "push_source", "table", "to")
    template_fields: Sequence[str] = (*FeatureStoreOperator.template_fields, "rows", "definitions", "push_source")
    cacheable = False

    def __init__(
        self,
        *,
        rows: Any,
        push_source: str,
        definitions: Any = None,
        table: str | None = None,
        to: PushTo = "online",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.push_source = push_source
        self.definitions = definitions
        self.table = table
        self.to = to
        self.check_arguments(PushFeaturesOperator)


def _as_text(time: datetime | str | None) -> str | None:
    return time.isoformat() if isinstance(time, datetime) else time
