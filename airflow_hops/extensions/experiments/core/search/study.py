"""Records of a study and of its trials: attributes of Optuna's, and a summary for readers without Optuna.

The summary is in the store (:mod:`airflow_hops.extensions.experiments.core.studies`). Only the search's job writes it;
each file is written atomically.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_hops.core.json_fields import CheckedFields

TrialState = Literal["waiting", "running", "complete", "pruned", "failed", "stopped"]
StudyState = Literal["running", "complete", "failed", "stopped"]


@dataclass(frozen=True)
class TrialRecord(CheckedFields):
    """A trial, which is a line of the summary.

    Attributes:
        number: Number within the study, from 0.
        state: ``waiting``: somebody has queued it with Optuna; ``running``; ``complete``: it has values; ``pruned`` by
            the pruner; ``failed``; ``stopped`` by a person.
        params: Parameters by name, including constants.
        values: Final values of the study's metrics in their order; empty unless complete.
        metrics: All final metrics of a complete trial by name.
        reason: Reason of a failure, pruning or stop, with the person; empty otherwise.
        started: Start of the trial, ISO 8601 UTC.
        ended: End of the trial, or None.
        seconds: Duration; 0 for a reused trial; None while it runs.
        key: Key of code, data, options and parameters; trials with equal keys have the same values. Empty if somebody
            has added the trial with Optuna: it guides the sampler, but cannot win.
        run_id: The DAG run that made it.
        tries: Number of starts; more than one if the search was killed during the trial.
        taken_from: ``study#number`` of the reused trial, or None.
        has_model: Whether it made a model, not only values.
        training: Id of its record among the training runs; None before it has ended.
    """

    number: int
    state: TrialState
    params: Mapping[str, Any]
    started: str
    key: str
    run_id: str
    values: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    ended: str | None = None
    seconds: float | None = None
    tries: int = 1
    taken_from: str | None = None
    has_model: bool = False
    training: str | None = None


@dataclass(frozen=True)
class StudyRecord(CheckedFields):
    """A study; ``study.json`` in the summary.

    Attributes:
        name: Name of the study, unique in the task.
        dag_id: The DAG of the task that searches.
        task_id: The task; as :attr:`~airflow_hops.core.artifacts.artifact.Producer.task`.
        run_id: The DAG run that works on it, or the last one.
        state: ``running``; ``complete``; ``failed``: see ``error``; ``stopped`` by a person.
        program: The user's function or script.
        trials: Number of trials of this run.
        first_trial: Number of this run's first trial; earlier runs that share the study made those before.
        started: Start of the search, ISO 8601 UTC.
        ended: End of the search, or None.
        counts: Number of trials by state, including earlier runs of a shared study.
        done: Number of this run's ended trials, without those that failed or were stopped before its task was cleared.
        best: Number of the best trial so far, by the metric that chooses; None before the first complete one.
        best_values: The best trial's metrics, in the study's order.
        base: Key of code, data and options, which a trial's key extends with its parameters.
        choose: The metric that determines the winner.
        training: Id of the search's record among the training runs, or None.
        error: Reason of the search's failure, or None.
        stopped_by: Person who stopped the search, or None.
        published: Whether the task has returned the winner; if not, a retry publishes it without further trials.
    """

    name: str
    dag_id: str
    task_id: str
    run_id: str
    state: StudyState
    program: str
    space: Mapping[str, Any] | str
    metrics: Sequence[str]
    directions: Sequence[str]
    sampler: str
    pruner: str
    trials: int
    parallel: int
    seed: int
    started: str
    base: str
    first_trial: int = 0
    ended: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    done: int = 0
    best: int | None = None
    best_values: Sequence[float] = ()
    best_params: Mapping[str, Any] = field(default_factory=dict)
    choose: str | None = None
    training: str | None = None
    error: str | None = None
    stopped_by: str | None = None
    published: bool = False
