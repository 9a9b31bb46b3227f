"""Repetition of recorded runs whose step cannot simply be run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.contract.run_record import RunRecord
from airflow_hops.core.store import ArtifactStore


@dataclass(frozen=True)
class LoggedRun:
    """A training run.

    Attributes:
        name: Its id, for messages.
        dag_run_id: Run of the DAG.
        task: Task, as :attr:`~airflow_hops.core.contract.artifacts.Producer.task`.
        tags: Its tags.
    """

    name: str
    dag_run_id: str
    task: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Repeat:
    """The step that repeats a run, and the values compared besides its artifact.

    Attributes:
        record: Record of the step.
        metrics: Metrics of the run; None for those of its artifact or training run.
        params: Best parameters of the run; None if it did not search.
        returned_metric: Name of the metric that the step's function returned as a number; None for no such function.
    """

    record: RunRecord
    metrics: Mapping[str, float] | None = None
    params: Mapping[str, Any] | None = None
    returned_metric: str | None = None


class Repeats:
    """Says how runs of a stage are repeated. Register a subclass under ``airflow_hops.repeats``."""

    def repeat_of(
        self, store: ArtifactStore, record: RunRecord, artifact: Artifact | None, logged: LoggedRun | None
    ) -> Repeat | None:
        """Returns how a run is repeated; None for runs of other stages, and for those that are simply run again.

        Args:
            store: The artifact store.
            record: Record of the run's step.
            artifact: The run's artifact; None if it made none, or the artifact is gone.
            logged: The training run; None if it was named by its artifact.

        Raises:
            BadInput: the run cannot be repeated.
        """
        raise NotImplementedError
