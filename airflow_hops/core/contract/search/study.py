"""The record of a study and of its trials, for readers that have no Optuna.

It lies in the store (:mod:`airflow_hops.core.store.studies`). One process writes it, the search's job; readers find
each file whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from airflow_hops.core.contract.json_fields import CheckedFields

TrialState = Literal["running", "complete", "pruned", "failed", "stopped"]
StudyState = Literal["running", "complete", "failed", "stopped"]

MAX_INTERMEDIATE = 100
"""How many intermediate values of a trial its record keeps, the first and the last among them."""


@dataclass(frozen=True)
class TrialRecord(CheckedFields):
    """A trial, a line of the study's files.

    Attributes:
        number: Counted from 0 within the study.
        state: ``running``; ``complete``: it has values; ``pruned``: the pruner ended it; ``failed``; ``stopped``:
            a person ended it.
        params: Its parameters by name, constants included.
        values: The metrics' final values, in the study's order; empty unless it is complete.
        metrics: All final metrics of a complete trial by name.
        intermediate: Pairs ``[step, value]`` of the first metric, at most :data:`MAX_INTERMEDIATE`, by step.
        reason: Why it failed, was pruned, or was stopped, and by whom; empty otherwise.
        started: When it began, ISO 8601 UTC.
        ended: When it ended, or None.
        seconds: How long it took; 0 for one that was taken over; None while it runs.
        key: Of code, data, options and parameters: a trial of the same key would give the same values.
        run_id: The DAG run that made it.
        slot: Which of the parallel slots it had.
        tries: How often it was begun: more than once where the search was killed while it ran.
        taken_from: ``study#number`` of the earlier trial whose values these are, or None.
        has_model: Whether it made a model, not values alone.
        mlflow_run: Id of its MLflow run, or None.
        resources: What it ran on: ``host``, ``ranks``, ``threads``.
        distributions: Of a space that a function makes: Optuna's distributions as JSON, by parameter.
        pruner_state: What the pruner remembers of it.
    """

    number: int
    state: TrialState
    params: Mapping[str, Any]
    started: str
    key: str
    run_id: str
    values: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    intermediate: Sequence[Sequence[float]] = ()
    reason: str = ""
    ended: str | None = None
    seconds: float | None = None
    slot: int = 0
    tries: int = 1
    taken_from: str | None = None
    has_model: bool = False
    mlflow_run: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    pruner_state: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: a field is missing, or of another type.
        """
        trial = super().from_dict(value)
        for point in trial.intermediate:
            if len(point) != 2:
                raise TypeError(f"intermediate has {point!r}, expected pairs of a step and a value")
        return trial


@dataclass(frozen=True)
class StudyRecord(CheckedFields):
    """A study: ``study.json``.

    Attributes:
        name: Its name, unique in the task.
        dag_id: The DAG of the task that searches.
        task_id: The task; ``<task>@<index>`` of a mapped one.
        run_id: The DAG run that works on it, or was the last to do so.
        state: ``running``; ``complete``; ``failed``: see ``error``; ``stopped``: a person ended it.
        program: The user's function or script.
        space: As in :class:`SearchOptions`.
        metrics: The metrics' names.
        directions: For each metric.
        sampler: Of :data:`SAMPLERS`.
        pruner: Of :data:`PRUNERS`.
        trials: How many trials this run makes.
        first_trial: Number of the first trial of this run; those before are of earlier runs that shared the study.
        parallel: How many at once.
        seed: Of the sampler.
        started: When the search began, ISO 8601 UTC.
        ended: When it ended, or None.
        counts: Number of trials by state; those of earlier runs of a shared study included.
        done: How many of this run's trials have ended, as the search counts them: not those that failed or were
            stopped before its task was cleared.
        best: Number of the best trial so far, by the metric that chooses; None as long as none is complete.
        best_values: The best trial's metrics, in the study's order.
        best_params: The best trial's parameters.
        pareto: Of several metrics, numbers of the trials that no other one beats in all of them.
        importance: Share of each parameter in the variance of the first metric (fANOVA, Hutter et al. 2014); empty
            as long as too few trials are complete, or nothing varies.
        base: Key of code, data and options, the part of a trial's key that its parameters are added to.
        choose: The metric that chooses the winner.
        mlflow_run: Id of the search's MLflow run, or None.
        error: Why the search failed, or None.
        stopped_by: Who stopped the search, or None.
        published: Whether the task has returned the winner; a retry before that publishes it, and makes no trial.
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
    pareto: Sequence[int] = ()
    importance: Mapping[str, float] = field(default_factory=dict)
    choose: str | None = None
    mlflow_run: str | None = None
    error: str | None = None
    stopped_by: str | None = None
    published: bool = False
