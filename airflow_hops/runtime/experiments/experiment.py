"""Runs an experiment: a search, of one trial or many, over a function of this very process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.protocol import format_record
from airflow_hops.contract.search import SearchOptions, TrialRecord
from airflow_hops.contract.times import now
from airflow_hops.contract.training import SINGLE, TrainingOptions
from airflow_hops.hops.devices import get_num_gpus
from airflow_hops.processes.temporary_folders import temporary_folder
from airflow_hops.runtime.experiments.program import ROWS, TRAIN, UserFunction, running
from airflow_hops.runtime.experiments.project import Project
from airflow_hops.runtime.experiments.record import (
    ExperimentFolder,
    ExperimentRecord,
    folder_name,
    new_record,
    trial_name,
)
from airflow_hops.runtime.gang import LocalRanks
from airflow_hops.runtime.gang.forked import check_forkable
from airflow_hops.runtime.search.ledger import Ledger, new_study
from airflow_hops.runtime.search.optuna_study import OptunaStudy
from airflow_hops.runtime.search.processes import TrialProcesses
from airflow_hops.runtime.search.search import Search
from airflow_hops.runtime.search.slots import divide
from airflow_hops.runtime.search.tracking import StudyRuns
from airflow_hops.runtime.search.trial import TrialWork
from airflow_hops.runtime.tracking import TrainingRun
from airflow_hops.runtime.train import Training
from airflow_hops.runtime.train.strategies import Roles
from airflow_hops.store.studies import StudyFolder, study_folder

log = logging.getLogger(__name__)

SECONDS = "seconds"
"""The metric of an experiment that is no search: the training's seconds, of which there always are some."""

_numbers: dict[str, int] = {}


@dataclass(frozen=True)
class Experiment:
    """What is to be run.

    Attributes:
        function: The user's function.
        called: The name of the function of ``hops.experiment``.
        space: Of a search; None for one that is called once, or with given arguments.
        rows: Those arguments, a mapping for each call.
        metric: What a search optimizes.
        direction: ``max`` or ``min``.
        sampler: Of :data:`airflow_hops.contract.search.SAMPLERS`.
        make_sampler: Makes a sampler of Optuna's in its place.
        trials: How many a search makes; None for all of a grid.
        training: Options of each training: ``strategy``, ``np``, ``parameter_servers``.
        executors: How many processes run at once; None for as many as this machine has room for.
        name: Given by the user.
        description: Given by the user.
        versioned_resources: Files to keep with it.
    """

    function: Callable[..., Any]
    called: str
    space: Mapping[str, Any] | None = None
    rows: Sequence[Mapping[str, Any]] = ({},)
    metric: str = SECONDS
    direction: str = "min"
    sampler: str = "random"
    make_sampler: Callable[[], Any] | None = None
    trials: int | None = None
    training: Mapping[str, Any] = field(default_factory=lambda: {"strategy": SINGLE, "np": 1})
    executors: int | None = None
    name: str = "no-name"
    description: str | None = None
    versioned_resources: Sequence[str] = ()

    @property
    def user_function(self) -> UserFunction:
        """The function, with its arguments where they are given."""
        return UserFunction(self.function, self.rows if self.space is None else None)

    def options(self) -> SearchOptions:
        """Those of the search that it is.

        Raises:
            BadInput: they cannot be.
        """
        directions = {"max": "maximize", "min": "minimize"}
        if str(self.direction).lower() not in directions:
            raise BadInput(f"direction is {self.direction!r}, expected 'max' or 'min'")
        return SearchOptions(
            training=TrainingOptions(train=TRAIN, any_value=True, **self.training).to_dict(),
            space=ROWS if self.space is None else self.space,
            metrics=[self.metric],
            directions=[directions[str(self.direction).lower()]],  # type: ignore[list-item]
            trials=len(self.rows) if self.space is None else self.trials,
            sampler=self.sampler,
            reuse=False,
            max_failures=0 if self.space is None else None,
        )


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment.

    Attributes:
        path: Its folder in the store.
        params: Of the best trial, or the only one; empty for several calls that are no search.
        returned: What the function returned in it, by name; a number alone is ``metric``; empty if nothing. Of several
            calls that are no search, these by the name of each call's folder.
    """

    path: str
    params: Mapping[str, Any]
    returned: Mapping[str, Any]


def run_experiment(experiment: Experiment) -> Outcome:
    """Runs an experiment; one that a try of the same task before has begun goes on.

    Raises:
        BadInput: it cannot be run; a retry would fail again.
        HopsError: too many trials failed, or TensorFlow runs already in this process, which is to be forked.
    """
    check_forkable()
    options, user, project = experiment.options(), experiment.user_function, Project.current()
    rows = user.rows or [dict.fromkeys(experiment.space or {})]
    for given in rows:
        user.check_takes(given)
    launcher = _launcher(options)
    ranks = Roles.of_training(TrainingOptions(**options.training)).ranks
    room = max(1, (experiment.executors or launcher.slots) // ranks)
    options = replace(options, parallel=min(room, options.wanted))
    _numbers[project.spec.step] = number = _numbers.get(project.spec.step, 0) + 1
    folder = ExperimentFolder(project, number)
    producer = project.spec.producer
    study = replace(
        new_study(options, user.name, _base(options, user), producer), name=f"{producer.run_id}.{folder.run}"
    )
    where = study_folder(project.store, study.dag_id, study.task_id, study.name)
    gpus = min(1, get_num_gpus())
    record = new_record(
        folder, experiment.called, experiment.name, experiment.description, options.parallel * ranks, gpus, study.name
    )
    with temporary_folder("step", "experiment") as scratch, _running(user), _raised_when_asked_to_end():
        trained = TrainingOptions(**options.training)
        slots = divide(launcher, options.parallel, ranks)
        trials = TrialProcesses(TrialWork(Training(trained, None, scratch, launcher=launcher), slots))
        try:
            record = folder.begin(record, [*experiment.versioned_resources, *_own_notebook(project)])
            return _search(experiment, options, Ledger(where, study, shared=False), where, trials, folder, record)
        except BaseException as error:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
            folder.write(replace(record, status=status, finished=now(), error=str(error)))
            raise
        finally:
            trials.close()


def _search(
    experiment: Experiment,
    options: SearchOptions,
    ledger: Ledger,
    where: StudyFolder,
    trials: TrialProcesses,
    folder: ExperimentFolder,
    record: ExperimentRecord,
) -> Outcome:
    user, spec = experiment.user_function, folder.project.spec
    run = TrainingRun(spec, where.uri)
    told = {"train": user.name, "name": experiment.name, "function": experiment.called, "run": folder.run}
    runs = StudyRuns(run, ledger.study, lambda: run.begin(told, None, None, spec.code_paths))
    sampler = experiment.make_sampler() if experiment.make_sampler is not None else None
    done = [trial.params for trial in ledger.current if trial.state in ("complete", "running")]
    running[-1].leave_out(done)
    study = OptunaStudy(options, ledger.trials, done, sampler)
    with temporary_folder("step", "trials") as scratch:
        search = Search(options, options.training["np"], study, ledger, where, trials, runs, scratch)
        search.ended = lambda trial, output: folder.keep(_folder_name(experiment, trial), output)
        search.say = _say
        winner = search.run()
    params, returned = user.arguments(winner.params), _returned(folder, _folder_name(experiment, winner))
    if len(ledger.own) > 1 and experiment.space is None:  # none of them is the best
        names = [_folder_name(experiment, trial) for trial in ledger.own]
        params, returned = {}, {name: _returned(folder, name) for name in names}
    metric = winner.values[0] if experiment.metric != SECONDS else returned.get("metric")
    folder.write(
        replace(record, status="FINISHED", finished=now(), hyperparameter=trial_name(params) or None, metric=metric)
    )
    run.finish(None, {"value": dict(returned), "params": dict(params)}, {f"{user.name}.py": user.source})
    return Outcome(folder.path, params, returned)


@contextlib.contextmanager
def _running(user: UserFunction) -> Iterator[None]:
    """The function is there for the processes that are forked within the ``with`` block."""
    if running:
        raise BadInput("an experiment runs already in this process; an experiment's function cannot start another")
    running.append(user)
    try:
        yield
    finally:
        running.pop()


@contextlib.contextmanager
def _raised_when_asked_to_end() -> Iterator[None]:
    """Code of the ``with`` block's ``except`` and ``finally`` runs, too, when the step is asked to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("the step was asked to end"))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _launcher(options: SearchOptions) -> LocalRanks:
    """This machine; where it has no GPUs, with room for a gang that is larger than it."""
    roles = Roles.of_training(TrainingOptions(**options.training))
    found = LocalRanks(cpu_ranks=len(roles.cpu_ranks))
    return found if get_num_gpus() else LocalRanks(max(found.slots, roles.ranks))


def _base(options: SearchOptions, user: UserFunction) -> str:
    """The key of code and options: where it is another one, nothing of an earlier try is taken over."""
    rows = json.dumps(user.rows, sort_keys=True, default=str)
    given = json.dumps(options.training, sort_keys=True)
    return hashlib.sha256(f"{user.name}\n{user.source}\n{rows}\n{given}".encode()).hexdigest()[:16]


def _folder_name(experiment: Experiment, trial: TrialRecord) -> str:
    name = trial_name(experiment.user_function.arguments(trial.params))
    names = [trial_name(row) for row in experiment.rows]
    unique = experiment.sampler == "grid" or (experiment.space is None and len(set(names)) == len(names))
    return folder_name(name or experiment.name, trial.number, unique=unique)


def _returned(folder: ExperimentFolder, name: str) -> Mapping[str, Any]:
    """What the function returned in a trial, whose folder is kept."""
    text = folder.project.store.read_text(f"{folder.uri}/{name}/training.json")
    value = json.loads(text)["value"]
    return value if isinstance(value, Mapping) else {} if value is None else {"metric": value}


def _own_notebook(project: Project) -> list[str]:
    """The notebook that this is, if it is one."""
    notebook = project.spec.params.get("notebook")
    there = isinstance(notebook, str) and any((Path(p) / notebook).is_file() for p in project.spec.code_paths)
    return [str(notebook)] if there else []


def _say(fraction: float, text: str) -> None:
    if "JPY_PARENT_PID" in os.environ:
        print(text)
    else:
        print(format_record(text, progress=round(min(max(fraction, 0.0), 1.0), 4)), flush=True)
