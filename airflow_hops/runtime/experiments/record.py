"""What is kept of an experiment in the store: ``Experiments/<app>/run.<n>/``."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_hops.contract.artifacts import BadInput, Producer
from airflow_hops.contract.json_fields import JsonFields
from airflow_hops.contract.times import now
from airflow_hops.runtime.experiments.project import Project
from airflow_hops.runtime.tracking.training_run import environment_lock

RECORD_NAME = "experiment.json"
_NAME_CHARACTERS = 200


@dataclass(frozen=True)
class ExperimentRecord(JsonFields):
    """``experiment.json``, with the fields that Hopsworks gives an experiment.

    Attributes:
        _id: ``<app_id>.run.<n>``.
        user: Who runs it.
        name: Given by the user.
        started: ISO 8601 UTC.
        finished: ISO 8601 UTC; None while it runs.
        status: ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
        module: ``experiment``.
        function: Which of its functions: ``grid_search``.
        hyperparameter: Of the best trial, or the only one: ``learning_rate=0.001.dropout=0.7``.
        metric: Its metric, a number; None where the function returned none.
        app_id: ``<dag>.<run>.<task>``.
        description: Given by the user.
        executors: Number of processes that ran at once.
        gpus_per_executor: GPUs of each.
        cuda: The version of CUDA that TensorFlow was built for; None for none.
        versioned_resources: Files that were kept with it, by their names.
        study: The study of its trials in the store.
        error: Why it failed.
    """

    _id: str
    user: str
    name: str
    started: str
    function: str
    app_id: str
    study: str
    executors: int
    gpus_per_executor: int
    cuda: str | None = None
    status: str = "RUNNING"
    module: str = "experiment"
    description: str | None = None
    finished: str | None = None
    hyperparameter: str | None = None
    metric: float | None = None
    versioned_resources: Sequence[str] = ()
    error: str | None = None


class ExperimentFolder:
    """The folder of an experiment's run.

    Args:
        project: Where it lies.
        number: Of the run within its app; a new one by default.
    """

    def __init__(self, project: Project, number: int) -> None:
        self.project, self.app_id = project, app_id(project)
        if is_interactive(project):  # a kernel that is started anew begins anew
            taken = project.store.names(project.store.uri("Experiments", self.app_id))
            while f"run.{number}" in taken:
                number += 1
        self.run = f"run.{number}"
        self.uri = project.store.uri("Experiments", self.app_id, self.run)
        self.path = project.path(self.uri)

    def write(self, record: ExperimentRecord) -> None:
        """Writes the record."""
        self.project.store.write_text(f"{self.uri}/{RECORD_NAME}", json.dumps(record.to_dict(), indent=1) + "\n")

    def begin(self, record: ExperimentRecord, resources: Sequence[str]) -> ExperimentRecord:
        """Keeps the lock of the environment, and what the user wants to have kept.

        Args:
            record: Of the experiment.
            resources: Addresses of files in the project, or paths of the step's files.

        Raises:
            BadInput: one of them is not there.
        """
        named = {}
        for resource in dict.fromkeys(resources):
            named[Path(resource).name] = read_file(self.project, resource)
        self.project.store.write_text(f"{self.uri}/requirements.txt", environment_lock())
        for name, content in named.items():
            self.project.store.files.write(f"{self.uri}/{name}", content)
        record = replace(record, versioned_resources=tuple(named))
        self.write(record)
        return record

    def keep(self, name: str, output: Path) -> None:
        """Keeps what a trial has written: what it put into its log folder lies in its own.

        Args:
            name: The trial's folder.
            output: What its training has written.
        """
        logdir = output / "tensorboard"
        for path in logdir.iterdir() if logdir.is_dir() else ():
            if not (output / path.name).exists():
                path.rename(output / path.name)
        for folder in (logdir, output / "checkpoints"):
            with contextlib.suppress(OSError):  # it is not empty, or not there
                folder.rmdir()
        if output.is_dir():
            self.project.files.put(f"{output}/", f"{self.path}/{name}/", recursive=True)


def app_id(project: Project) -> str:
    """What Hopsworks calls the application: here the task of a DAG's run."""
    producer = project.spec.producer
    task = producer.task_id if producer.map_index < 0 else f"{producer.task_id}@{producer.map_index}"
    return f"{producer.dag_id}.{producer.run_id}.{task}"


def is_interactive(project: Project) -> bool:
    """Whether it is no task of Airflow's, which would go on with its experiments when it is tried again."""
    return project.spec.producer.dag_id == Producer.dag_id


def read_file(project: Project, path: str) -> bytes:
    """A file of the project, or one that lies with the user's code.

    Raises:
        BadInput: there is none.
    """
    for folder in ("", *project.spec.code_paths):
        if (Path(folder) / path).is_file():
            return (Path(folder) / path).read_bytes()
    whole = project.path(path)
    if not project.files.isfile(whole):
        raise BadInput(f"{path}: no such file, neither in the project ({whole}) nor beside the DAG file")
    return bytes(project.files.cat_file(whole))


def new_record(
    folder: ExperimentFolder, function: str, name: str, description: str | None, executors: int, gpus: int, study: str
) -> ExperimentRecord:
    """The record of an experiment that begins now."""
    import tensorflow as tf

    return ExperimentRecord(
        _id=f"{folder.app_id}.{folder.run}",
        user=getpass.getuser(),
        name=name,
        started=now(),
        function=function,
        app_id=folder.app_id,
        description=description,
        executors=executors,
        gpus_per_executor=gpus,
        cuda=tf.sysconfig.get_build_info().get("cuda_version"),
        study=study,
    )


def trial_name(params: Mapping[str, Any]) -> str:
    """A trial's name as Hopsworks has it: ``learning_rate=0.001.dropout=0.7``."""
    return ".".join(f"{key}={value}" for key, value in params.items())


def folder_name(name: str, number: int, *, unique: bool) -> str:
    """The name of a trial's folder.

    Args:
        name: The trial's, or the experiment's.
        number: The trial's number, which is added to a name that is cut, or that others may have.
        unique: Whether no other trial has the name.
    """
    safe = re.sub(r"[^\w.+@=,-]", "_", name).lstrip(".") or "no-name"
    return safe if unique and len(safe) <= _NAME_CHARACTERS else f"{safe[:_NAME_CHARACTERS]}.{number}"
