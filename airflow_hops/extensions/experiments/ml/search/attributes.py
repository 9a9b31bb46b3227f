"""A study's and its trials' records in Optuna's study: in its attributes, as far as Optuna does not know them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.times import now
from airflow_hops.extensions.experiments.core.search import SearchOptions, StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.search.space import Dimension
from airflow_hops.extensions.experiments.ml.search.distributions import encoded

STATES = {
    "waiting": TrialState.WAITING,
    "running": TrialState.RUNNING,
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "stopped": TrialState.FAIL,
}
_FIXED = ("space", "metrics", "directions")


def study_record(study: Study) -> StudyRecord:
    """Returns the record in Optuna's study. Raises TypeError if a field is missing or has another type."""
    directions = [direction.name.lower() for direction in study.directions]
    return StudyRecord.from_dict({**study.user_attrs, "name": study.study_name, "directions": directions})


def trial_record(trial: FrozenTrial) -> TrialRecord:
    """Returns the record in Optuna's trial; one that others have added, or a kill left half-written, has no key.

    Raises:
        TypeError: a field has another type.
    """
    fields = {"params": trial.params, "started": "", "key": "", "run_id": "", **trial.user_attrs}
    # Attributes are written before the state, and a kill may come between them.
    state = next(name for name in (trial.user_attrs.get("state", ""), *STATES) if STATES.get(name) == trial.state)
    values = trial.values if trial.state == TrialState.COMPLETE else []
    return TrialRecord.from_dict({**fields, "number": trial.number, "state": state, "values": values})


def frozen_trial(
    trial: TrialRecord, dimensions: Mapping[str, Dimension] | None, distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """Converts a trial that a version without journals has recorded, with more fields than today's.

    Args:
        trial: The trial.
        dimensions: Dimensions of the space; None if a function defines it: then trials have their distributions.
        distributions: Distributions of the dimensions that Optuna chooses.
    """
    own = {name: json_to_distribution(text) for name, text in trial.more.get("distributions", {}).items()}
    used = {name: each for name, each in (own or distributions).items() if name in trial.params}
    frozen = create_trial(
        state=STATES[trial.state],
        values=list(trial.values) if trial.state == "complete" else None,
        params={name: encoded(dimensions, name, trial.params[name]) for name in used},
        distributions=used,
        intermediate_values={int(step): value for step, value in trial.more.get("intermediate", ())},
        user_attrs=replace(trial, more={}).to_dict(),
        system_attrs=dict(trial.more.get("pruner_state", {})),
    )
    frozen.datetime_start = _local(trial.started)
    frozen.datetime_complete = _local(trial.ended or trial.started) if frozen.state.is_finished() else None
    return frozen


def _local(time: str) -> datetime:
    """Returns a time as Optuna has it: on this machine's clock, without a zone."""
    return datetime.fromisoformat(time).astimezone().replace(tzinfo=None)


def differing_fields(one: StudyRecord, other: StudyRecord) -> list[str]:
    """Returns the names of fields that a study must not change, but that differ."""
    values, others = one.to_dict(), other.to_dict()
    return [name for name in _FIXED if values[name] != others[name]]


def trial_key(base: str, params: Mapping[str, object]) -> str:
    """Returns the key of a trial, which changes with code, data, options and parameters."""
    return hashlib.sha256(f"{base}{json.dumps(dict(params), sort_keys=True)}".encode()).hexdigest()[:16]


def new_study(options: SearchOptions, program: str, base: str, producer: Producer) -> StudyRecord:
    """Returns the record of a new search."""
    return StudyRecord(
        name=options.study or producer.run_id,
        dag_id=producer.dag_id,
        task_id=producer.task,
        run_id=producer.run_id,
        state="running",
        program=program,
        space=options.space,
        metrics=options.metrics,
        directions=options.directions,
        sampler=options.sampler,
        pruner=options.pruner,
        trials=options.wanted,
        parallel=options.parallel,
        seed=options.seed,
        started=now(),
        base=base,
        choose=options.choose,
    )
