"""Record of an experiment in the store: ``Experiments/<app>/run.<n>/``."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.redaction import masked
from airflow_hops.core.times import now
from airflow_hops.extensions.experiments.core.studies import app_id, study_folder
from airflow_hops.extensions.experiments.ml.project import Project, remove

RECORD_NAME = "experiment.json"
LOCK_NAME = "requirements.txt"
_NAME_BYTES = 200


@dataclass(frozen=True)
class ExperimentRecord(JsonFields):
    """Content of ``experiment.json``, with the fields of Hopsworks's experiments.

    Attributes:
        _id: ``<app_id>.run.<n>``.
        started: ISO 8601 UTC.
        finished: ISO 8601 UTC; None while it runs.
        status: ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``.
        module: ``experiment``.
        function: Name of the module's function, such as ``grid_search``.
        hyperparameter: Parameters of the best or only trial: ``learning_rate=0.001.dropout=0.7``.
        metric: Metric of that trial; None if the function did not return a number.
        app_id: ``<dag>@<run>@<task>``.
        executors: Number of simultaneous processes.
        cuda: CUDA version that TensorFlow was built for, or None.
        versioned_resources: Names of the files stored with it.
        study: Study of its trials in the store.
        task_instance: IDs of DAG, run and task.
        trials: Number of trials that are ``complete``, ``failed`` or ``stopped``.
        error: Reason why it failed or was ended.
    """

    _id: str
    user: str
    name: str
    started: str
    function: str
    app_id: str
    study: str
    task_instance: Sequence[str]
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
    trials: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


class ExperimentFolder:
    """Folder of an experiment's run.

    Attributes:
        run: Name of the run.
        study: Folder of the trials' record.
        is_new: Whether this try created it.
    """

    def __init__(self, project: Project, number: int) -> None:
        producer = project.spec.producer
        self.project, self.app_id = project, app_id(project.spec.producer)
        self.run = f"run.{number}"
        self.uri = project.store.internal("Experiments", self.app_id, self.run)
        self.path = project.path(self.uri)
        self.task_instance = [producer.dag_id, producer.run_id, producer.task]
        study = f"{producer.run_id}.{self.run}"
        self.study = study_folder(project.store, producer.dag_id, producer.task, study)
        self.study_name, self.is_new = study, True

    @classmethod
    def claim(cls, project: Project, number: int) -> ExperimentFolder:
        """Claims the folder of a run: a task resumes that of an earlier try; programs and kernels get a new one.

        ``number`` is that of the run; for a program or a kernel the lowest possible.
        """
        # A restarted kernel begins a new run; a retried task resumes its run.
        is_interactive = project.spec.producer.dag_id == Producer.dag_id
        runs = project.store.internal("Experiments", app_id(project.spec.producer))
        taken = set(project.store.names(runs)) if is_interactive else ()
        while True:
            folder = cls(project, number)
            number += 1
            if is_interactive and (folder.run in taken or folder.study.read() is not None):
                continue
            with contextlib.suppress(FileExistsError):
                project.store.create_text(
                    f"{folder.uri}/{RECORD_NAME}", json.dumps({"task_instance": folder.task_instance})
                )
                return folder
            if not is_interactive:
                folder.is_new = False
                return folder

    @property
    def seed(self) -> int:
        """Returns the seed, which is equal for all tries of the task."""
        return zlib.crc32(f"{self.uri.split('/')[-2]}/{self.run}".encode())

    def write(self, record: ExperimentRecord) -> None:
        """Writes the record."""
        self.project.store.write_text(f"{self.uri}/{RECORD_NAME}", json.dumps(record.to_dict(), indent=1) + "\n")

    def begin(self, record: ExperimentRecord, resources: Mapping[str, bytes], *, anew: bool) -> None:
        """Writes the record, the lock of the environment, and the user's resources.

        ``anew`` removes files of an earlier try with other code.
        """
        store = self.project.store
        for name in store.names(self.uri) if anew else ():
            if name != RECORD_NAME:
                remove(self.project.files, f"{self.path}/{name}")
        for name, content in {LOCK_NAME: environment_lock().encode(), **resources}.items():
            store.files.write(f"{self.uri}/{name}", content)
        self.write(record)

    def keep(self, name: str, output: Path) -> None:
        """Stores a trial's output, with the contents of its log folder moved to its top level."""
        logdir = output / "tensorboard"
        for path in logdir.iterdir() if logdir.is_dir() else ():
            if not (output / path.name).exists():
                path.rename(output / path.name)
        for folder in (logdir, output / "checkpoints"):
            with contextlib.suppress(OSError):  # not empty, or missing
                folder.rmdir()
        if output.is_dir():
            remove(self.project.files, f"{self.path}/{name}")  # left by a killed try
            self.project.files.put(f"{output}/", f"{self.path}/{name}/", recursive=True)


def read_file(project: Project, path: str) -> bytes:
    """Reads a file of the project, or one beside the user's code; raises ``BadInput`` if it does not exist."""
    for folder in ("", *project.spec.code_paths):
        if (Path(folder) / path).is_file():
            return (Path(folder) / path).read_bytes()
    whole = project.path(path)
    if not project.files.isfile(whole):
        raise BadInput(f"{path}: no such file, neither in the project ({whole}) nor beside the DAG file")
    return bytes(project.files.cat_file(whole))


def read_resources(project: Project, paths: Sequence[str]) -> dict[str, bytes]:
    """Reads files of the project or the user's code to store with an experiment, by name.

    Raises:
        BadInput: a file does not exist, or has the name of another one.
    """
    results: dict[str, bytes] = {}
    for path in paths:
        name, content = Path(path).name, read_file(project, path)
        if name in (RECORD_NAME, LOCK_NAME) or results.get(name, content) != content:
            raise BadInput(
                f"versioned_resources: {path} would be stored as {name}, like another file of the experiment; rename it"
            )
        results[name] = content
    return results


def new_record(folder: ExperimentFolder, **described: Any) -> ExperimentRecord:
    """Returns the record of an experiment that begins now; ``described`` are further fields."""
    import tensorflow as tf

    return ExperimentRecord(
        _id=f"{folder.app_id}.{folder.run}",
        user=getpass.getuser(),
        started=now(),
        app_id=folder.app_id,
        cuda=tf.sysconfig.get_build_info().get("cuda_version"),
        study=folder.study_name,
        task_instance=folder.task_instance,
        **described,
    )


def trial_name(params: Mapping[str, object]) -> str:
    """Returns a trial's name in Hopsworks's form: ``learning_rate=0.001.dropout=0.7``."""
    return ".".join(f"{key}={value}" for key, value in masked(params).items())


def folder_names(names: Sequence[str] | None, taken: Collection[str]) -> Callable[[str, int], str]:
    """Returns a function that names trials' folders: by the trial's name, and its number unless all names are unique.

    ``names`` are those of all trials, if known in advance, ``taken`` those of other things in the experiment's folder.
    """
    plain = [_safe(name) for name in names or ()]
    is_unique = names is not None and len({*plain, *taken}) == len(plain) + len(set(taken))
    is_unique = is_unique and all(len(name.encode()) <= _NAME_BYTES for name in plain)

    def folder_name(name: str, number: int) -> str:
        safe = _safe(name)
        return safe if is_unique else f"{safe.encode()[:_NAME_BYTES].decode(errors='ignore')}.{number}"

    return folder_name


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+@=,-]", "_", name).lstrip(".") or "no-name"


def environment_lock() -> str:
    """Returns the libraries of this environment in the format of ``pip freeze``."""
    # Setuptools puts its vendored packages on the path; they are not installed ones.
    own = [each for each in distributions() if "_vendor" not in Path(str(each.locate_file(""))).parts]
    metadata = [each.metadata for each in own]  # a property that reads a file
    results = {f"{each['Name']}=={each['Version']}" for each in metadata if each["Name"]}
    return "\n".join(sorted(results, key=str.lower)) + "\n"
