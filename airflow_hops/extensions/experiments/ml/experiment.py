"""Runs an experiment: a search of one or more trials over a function of this process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import cache_key
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.redaction import masked
from airflow_hops.core.steps.protocol import check_json, format_record
from airflow_hops.core.times import now
from airflow_hops.core.training.options import SINGLE, TrainingOptions
from airflow_hops.extensions.experiments.core.search import SearchOptions, TrialRecord
from airflow_hops.extensions.experiments.core.search.options import Sampler
from airflow_hops.extensions.experiments.ml.program import (
    CALL,
    TRAIN,
    arguments,
    check_takes,
    function_name,
    identity,
    running,
)
from airflow_hops.extensions.experiments.ml.project import Project
from airflow_hops.extensions.experiments.ml.record import (
    LOCK_NAME,
    RECORD_NAME,
    ExperimentFolder,
    ExperimentRecord,
    folder_names,
    new_record,
    read_resources,
    trial_name,
)
from airflow_hops.extensions.experiments.ml.search.attributes import new_study
from airflow_hops.extensions.experiments.ml.search.optuna_study import OptunaStudy
from airflow_hops.extensions.experiments.ml.search.processes import TrialProcesses
from airflow_hops.extensions.experiments.ml.search.running import RunningTrial, returned_numbers
from airflow_hops.extensions.experiments.ml.search.search import Search
from airflow_hops.extensions.experiments.ml.search.slots import divide
from airflow_hops.extensions.experiments.ml.search.tracking import StudyRuns
from airflow_hops.extensions.experiments.ml.search.trial import TrialWork
from airflow_hops.ml.tracking import TrackedTraining
from airflow_hops.ml.training.devices import get_num_gpus
from airflow_hops.ml.training.gang import LocalRanks
from airflow_hops.ml.training.gang.forked import check_forkable
from airflow_hops.ml.training.stage import Training
from airflow_hops.ml.training.stage.rank_group import all_ranks, cpu_ranks
from airflow_hops.ml.training.stage.step import metrics_of

log = logging.getLogger(__name__)

SECONDS = "seconds"
"""Metric of an experiment that is not a search: the seconds of the training, which always exist."""

_numbers: dict[str, int] = {}


@dataclass(frozen=True)
class Experiment:
    """Description of an experiment.

    Attributes:
        called: Name of the function of ``hops.experiment``.
        space: Search space; None for an experiment with one call, or with explicit arguments.
        rows: Those arguments, a mapping for each call.
        metric: Metric that a search optimizes; otherwise the entry of the result that the record names.
        direction: ``max`` or ``min``.
        sampler: Sampler of the search.
        make_sampler: Makes a sampler of Optuna from a seed, instead of ``sampler``.
        trials: Number of trials of a search; None for all of a grid.
        training: Options of each training: ``strategy``, ``np``, ``parameter_servers``.
        executors: Number of simultaneous processes; None for as many as fit on this machine.
        versioned_resources: Files to store with the experiment.
    """

    function: Callable[..., Any]
    called: str
    space: Mapping[str, Any] | None = None
    rows: Sequence[Mapping[str, Any]] = ({},)
    metric: str = "metric"
    direction: str = "min"
    sampler: Sampler = "random"
    make_sampler: Callable[[int], Any] | None = None
    trials: int | None = None
    training: Mapping[str, Any] = field(default_factory=lambda: {"strategy": SINGLE, "np": 1})
    executors: int | None = None
    name: str = "no-name"
    description: str | None = None
    versioned_resources: Sequence[str] = ()

    @property
    def points(self) -> list[Mapping[str, object]] | None:
        """Returns the parameters of each trial, or None if a sampler proposes them."""
        if self.space is None:
            return [{CALL: number, **values} for number, values in enumerate(self.rows)]
        return [*self.options().points()] if self.sampler == "grid" else None

    def options(self) -> SearchOptions:
        """Returns the options of the search; raises ``BadInput`` if they are invalid."""
        directions = {"max": "maximize", "min": "minimize"}
        if str(self.direction).lower() not in directions:
            raise InvalidArgument("direction", self.direction, ", expected 'max' or 'min'")
        return SearchOptions(
            training=TrainingOptions(train=TRAIN, any_value=True, **self.training).to_dict(),
            space={CALL: list(range(len(self.rows)))} if self.space is None else self.space,
            metrics=[SECONDS if self.space is None else self.metric],
            directions=[directions[str(self.direction).lower()]],  # type: ignore[list-item]
            trials=self.trials,
            sampler="grid" if self.space is None else self.sampler,
            reuse=False,
            max_failures=0 if self.space is None else None,
        )


Best = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The experiment's folder in the store, the best hyperparameters, and the function's results for them, by name.

Without a search, the parameters are those of the only call; of several calls there are none, and the results are those
of each by the name of its folder.
"""


def run_experiment(experiment: Experiment) -> Best:
    """Runs an experiment, or resumes that of an earlier try of the same task.

    Raises:
        BadInput: it cannot run, and a retry would not help.
        HopsError: too many trials failed, or this process, which has to be forked, already runs TensorFlow.
    """
    check_forkable()
    options, function, project = experiment.options(), experiment.function, Project.current()
    for values in experiment.rows if experiment.space is None else [dict.fromkeys(experiment.space)]:
        check_takes(function, values)
        check_json(dict(values), f"the arguments of {function_name(function)}()")
    notebook = project.spec.params.get("notebook")
    there = isinstance(notebook, str) and any((Path(p) / notebook).is_file() for p in project.spec.code_paths)
    resources = read_resources(project, [*experiment.versioned_resources, *([str(notebook)] if there else [])])
    named = {Path(path).name: resources[Path(path).name] for path in experiment.versioned_resources}
    trained, gpus = TrainingOptions(**options.training), get_num_gpus()
    ranks, launcher = all_ranks(trained), LocalRanks(cpu_ranks=len(cpu_ranks(trained)))
    if not gpus:
        launcher = LocalRanks(max(launcher.slots, ranks))
    room = max(1, (experiment.executors or launcher.slots) // ranks)
    _numbers[project.spec.step] = number = _numbers.get(project.spec.step, 0) + 1
    folder = ExperimentFolder.claim(project, number)
    options = replace(options, parallel=min(room, options.wanted), seed=folder.seed)
    record = new_record(
        folder,
        name=experiment.name,
        function=experiment.called,
        description=experiment.description,
        executors=options.parallel * ranks,
        gpus_per_executor=min(1, gpus),
        versioned_resources=tuple(resources),
    )
    with temporary_folder("step", "experiment") as scratch, _running(function), _raised_when_asked_to_end():
        slots = divide(launcher, options.parallel, ranks)
        trials = TrialProcesses(TrialWork(Training(trained, None, scratch, launcher=launcher), slots))
        try:
            study = _study(folder, experiment, options, named)
            folder.begin(record, resources, anew=not study.trials)
            return _search(experiment, options, study, trials, folder, record)
        except BaseException as error:
            failed = isinstance(error, Exception) and not isinstance(error.__cause__, _Stopped)
            status = "FAILED" if failed else "KILLED"
            folder.write(replace(record, status=status, finished=now(), error=str(error)))
            raise
        finally:
            trials.close()


class _Stopped(Exception):
    """Cause of an error if a person stopped the experiment."""


def _study(
    folder: ExperimentFolder, experiment: Experiment, options: SearchOptions, resources: Mapping[str, bytes]
) -> OptunaStudy:
    """Returns the trials' study, without trials whose folders are gone or whose code differs."""
    name = function_name(experiment.function)
    parts = {name: hashlib.sha256(content).hexdigest() for name, content in resources.items()}
    calls = json.dumps([experiment.rows, options.training], sort_keys=True)
    base = cache_key({**parts, "/function": f"{name}\n{identity(experiment.function)}", "/arguments": calls})[:16]
    record = replace(new_study(options, name, base, folder.project.spec.producer), name=folder.study_name)
    if folder.is_new:
        folder.study.clear()
    points = experiment.points if experiment.space is None else None
    return OptunaStudy(folder.study, record, options, make_sampler=experiment.make_sampler, points=points)


def _search(
    experiment: Experiment,
    options: SearchOptions,
    study: OptunaStudy,
    trials: TrialProcesses,
    folder: ExperimentFolder,
    record: ExperimentRecord,
) -> Best:
    name = function_name(experiment.function)
    report = {"train": name, "name": experiment.name, "function": experiment.called, "run": folder.run}
    run = TrackedTraining(folder.project.spec, report, folder.study_name)
    study.update(training=run.record.run_id)
    runs = StudyRuns(run, study.record)
    name_of = _namer(experiment, record)

    def measured(trial: RunningTrial) -> dict[str, float]:
        assert trial.result is not None
        reported = {**trial.metrics, **metrics_of(trial.result)}
        returned = returned_numbers(trial.result["value"], experiment.metric)
        if experiment.space is None:
            return {**returned, **reported}
        # The metric of a search only comes from the function's return value.
        reported.pop(experiment.metric, None)
        return {**reported, **returned}

    with temporary_folder("step", "trials") as scratch:
        search = Search(options, options.training["np"], study, folder.study, trials, runs, scratch)
        search.ended = lambda trial, output: folder.keep(name_of(trial), output)
        search.measured = measured
        search.say = _say
        try:
            winner = search.run()
        except BaseException as failure:
            run.fail(failure)
            if isinstance(failure, BadInput):
                raise failure from _Stopped() if search.cut_short else None
            raise
    record = replace(record, trials=dict(Counter(trial.state for trial in study.own)))
    params, returned = arguments(winner.params), _returned(folder, name_of(winner), winner)
    if experiment.space is None:
        stopped = [trial for trial in study.own if trial.state != "complete"]
        if missing := len(experiment.rows) - len(study.own) + len(stopped):
            study.update(published=True)  # resumed when the task is cleared
            study.save(final=True)
            why = search.cut_short or "; ".join(f"trial {trial.number}: {trial.reason}" for trial in stopped)
            error = BadInput(f"{missing} of {len(experiment.rows)} calls have not ended: {why}")
            run.fail(error)
            raise error from _Stopped()
        if len(study.own) > 1:  # there is no best trial
            params = {}
            returned = {name_of(trial): _returned(folder, name_of(trial), trial) for trial in study.own}
    metric = returned_numbers(returned, experiment.metric).get(experiment.metric, math.nan)
    ended = {"status": "FINISHED"} if search.cut_short is None else {"status": "KILLED", "error": search.cut_short}
    named = {"hyperparameter": trial_name(params) or None, "metric": metric if math.isfinite(metric) else None}
    folder.write(replace(record, finished=now(), **ended, **named))  # type: ignore[arg-type]
    if record.trials.keys() - {"complete"} or search.cut_short:
        log.warning("%s: %s: %s", folder.path, search.cut_short or "not all calls count", record.trials)
    run.finish(None)
    return folder.path, params, returned


def _namer(experiment: Experiment, record: ExperimentRecord) -> Callable[[TrialRecord], str]:
    """Returns the function that names trials' folders."""

    def name_of(params: Mapping[str, object]) -> str:
        return trial_name(arguments(params)) or experiment.name

    names = None if experiment.points is None else [name_of(params) for params in experiment.points]
    named = folder_names(names, [RECORD_NAME, LOCK_NAME, *record.versioned_resources])
    return lambda trial: named(name_of(trial.params), trial.number)


@contextlib.contextmanager
def _running(function: Callable[..., Any]) -> Iterator[None]:
    """Makes the function available to processes forked inside the ``with`` block."""
    if running:
        raise BadInput(
            "an experiment is already running in this process; an experiment's function cannot start another"
        )
    running.append(function)
    try:
        yield
    finally:
        running.pop()


@contextlib.contextmanager
def _raised_when_asked_to_end() -> Iterator[None]:
    """Turns SIGTERM into an exception, so that ``except`` and ``finally`` of the ``with`` block run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit("the step was asked to end"))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _returned(folder: ExperimentFolder, name: str, trial: TrialRecord) -> Mapping[str, object]:
    """Returns the return value of the function in a trial, whose folder remains."""
    uri = f"{folder.uri}/{name}/training.json"
    try:
        summary = folder.project.store.read_json(uri)
    except FileNotFoundError:
        summary = {"params": None}
    if len({json.dumps(params, sort_keys=True) for params in (summary["params"], masked(trial.params))}) > 1:
        raise BadInput(
            f"{uri} does not belong to trial {trial.number}, {dict(trial.params)}, or is missing; remove "
            f"{folder.path} to repeat its calls"
        )
    value = summary["value"]
    return value if isinstance(value, Mapping) else {} if value is None else {"metric": value}


def _say(fraction: float, text: str) -> None:
    if "JPY_PARENT_PID" in os.environ:
        print(text)
    else:
        print(format_record(text, progress=round(min(max(fraction, 0.0), 1.0), 4)), flush=True)
