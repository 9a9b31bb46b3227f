"""Repeats a recorded run: finds its record, checks its data, unpacks its code, runs its step."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput, Producer
from airflow_hops.core.contract.protocol import Line, Output, StepResult, StepSpec
from airflow_hops.core.contract.redaction import REDACTED
from airflow_hops.core.contract.run_record import (
    FILE_PARAMS,
    REPRODUCED,
    REPRODUCED_APP,
    TRAIN_ENTRY,
    RunRecord,
    app_id,
    record_key,
)
from airflow_hops.core.contract.times import now
from airflow_hops.core.extensions import REPEATS, load_all
from airflow_hops.core.repeats import LoggedRun, Repeat, Repeats
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.model_records import read_record as read_model_record
from airflow_hops.core.store.run_records import read_code, read_record
from airflow_hops.core.store.training_records import find_training
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.launchers.base import Launcher

_OF_WHAT_WAS_CAPTURED = ("skew", "performance")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_VERSION = re.compile(r"(?P<model>[^/]+)/v?(?P<version>\d+)")


@dataclass(frozen=True)
class RecordedRun:
    """A run to reproduce.

    Attributes:
        name: Name in messages.
        record: Record of its step.
        artifact: Its artifact; None if it made none, or the artifact is gone.
        experiment: Folder of an experiment of the package ``hops``.
        best: Best parameters of the run.
        returned_metric: Name of the metric that the step's function returned as a number.
        lacking: Unknown parts of the record, for a run without one.
    """

    name: str
    record: RunRecord
    artifact: Artifact | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    experiment: str | None = None
    best: Mapping[str, Any] | None = None
    returned_metric: str | None = None
    lacking: tuple[str, ...] = ()


def find_run(hook: RuntimeHook, name: str, *, incomplete: bool = False) -> RecordedRun:
    """Finds a run.

    Args:
        hook: The connection.
        name: Id of a training run, ``<model>/<version>``, or an artifact's URI or path in the store.
        incomplete: Whether to derive a missing record from the files that a training wrote.

    Raises:
        BadInput: the run or its record does not exist.
    """
    store = hook.store
    logged = _look_up(store, name)
    artifact = _artifact_of(store, logged) if logged else None
    if not logged:
        uri = store.place(Path(name).as_uri() if Path(name).is_absolute() else name)
        artifact = store.manifest(uri).reference(uri)
    dag_id, key = logged.get("dag_id", ""), logged.get("record")
    own = (each for each in logged.get("metrics", {}).items() if each[0].startswith("model."))
    metrics: Mapping[str, float] = {metric.removeprefix("model."): value for metric, value in own}
    if artifact is not None:
        manifest = store.manifest(artifact.uri)
        key = record_key(manifest.cache_key_parts, manifest.inputs)
        dag_id, metrics = manifest.producer.dag_id, manifest.metrics
    record = read_record(store, dag_id, key) if key else None
    if record is None:
        if not incomplete or artifact is None:
            what = f"its {artifact.kind} artifact {artifact.uri}" if artifact else "nothing but its figures"
            raise BadInput(
                f"{name}: the store has no record of this run (an older version of this package made it, or it was "
                "removed): its code, its environment and the options of its step are unknown; known are: "
                f"{what}. Give --incomplete to train again with the parameters of its training.json, and the present "
                "code and environment"
            )
        return _from_training(store, name, artifact)
    if record.output_kind in _OF_WHAT_WAS_CAPTURED and record.params.get("model_name"):
        raise BadInput(
            f"{name}: this step measured requests captured until then, which its record does not contain; only "
            "steps whose inputs are artifacts or sources can be reproduced"
        )
    training = LoggedRun(name, logged["dag_run_id"], logged["task"], logged["tags"]) if "record" in logged else None
    repeat = Repeat(record)
    for repeats in load_all(REPEATS, Repeats).values():
        repeat = repeats.repeat_of(store, record, artifact, training) or repeat
    return RecordedRun(
        name,
        repeat.record,
        artifact,
        metrics if repeat.metrics is None else repeat.metrics,
        logged.get("experiment"),
        repeat.params,
        repeat.returned_metric,
    )


def data_problems(store: ArtifactStore, record: RunRecord) -> Iterator[str]:
    """Yields descriptions of a record's input artifacts that are missing or changed."""
    for role, artifacts in record.artifacts().items():
        for artifact in artifacts:
            try:
                result, manifest = store.find(artifact)
                if (damage := store.damage(result.uri, manifest)) is not None:
                    yield f"input {role!r}: {damage}"
            except BadInput as error:
                yield f"input {role!r}: {error}"


def unpack_code(store: ArtifactStore, record: RunRecord, folder: Path) -> tuple[str, ...]:
    """Writes a record's user code to a folder and returns its code paths, in their order.

    Raises:
        BadInput: the code was not stored, or is damaged.
    """
    if record.code_left_out:
        left = ", ".join(record.code_left_out[:5])
        raise BadInput(f"{left} of the run's code is not stored: it was too large, or a link out of the code")
    for name, content in read_code(store, record).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    paths = [folder / str(number) for number in range(record.code_paths)]
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
    return tuple(map(str, paths))


def step_again(hook: RuntimeHook, run: RecordedRun, code: Path) -> StepSpec:
    """Returns the step of a run, with a separate output address, without a record and without MLflow.

    The user code is unpacked to ``code``; for an incomplete record, this folder must have the code.

    Raises:
        BadInput: a secret is unknown, or the code was not stored, or is damaged.
    """
    record, store = run.record, hook.store
    code_paths = (str(code),) if run.lacking else unpack_code(store, record, code)
    params = recorded_params(record, code)
    if not isinstance(params.get("np"), int | None) and run.artifact is not None:  # another number may be chosen
        params["np"] = store.manifest(run.artifact.uri).properties["ranks"]
    producer = Producer(REPRODUCED, f"{record.dag_id}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}", record.step)
    output = Output(store.address(producer, record.output_kind), record.output_kind) if record.output_kind else None
    repeated = {} if run.experiment is None else {REPRODUCED_APP: run.experiment.split("/")[-2]}
    return StepSpec(
        step=record.step,
        entry=record.entry,
        params=params,
        inputs=record.artifacts(),
        output=output,
        producer=producer,
        code_paths=code_paths,
        services={"tracking_uri": "", **repeated},
    )


def recorded_params(record: RunRecord, code: Path) -> dict[str, Any]:
    """Returns the parameters for repeating a step; raises BadInput if a secret is unknown."""
    params = dict(record.params)
    missing = []
    for path in record.secrets:
        place, _, variable = path.rpartition("/")
        if place == "env" and variable in os.environ:
            params["env"] = {**params["env"], variable: os.environ[variable]}
        elif place == "training/env" and variable in os.environ:
            env = {**params["training"]["env"], variable: os.environ[variable]}
            params["training"] = {**params["training"], "env": env}
        else:
            missing.append(path)
    if missing:
        raise BadInput(
            f"the record has no secrets, and the run was given {', '.join(missing)}; set those of 'env' as variables "
            "of this environment; others cannot be set: credentials of sources belong in the workers' environment, "
            "where their libraries find them, such as AWS_SECRET_ACCESS_KEY"
        )
    for name in FILE_PARAMS:
        if record.script is not None and params.get(name) not in (None, record.script.partition("/")[2]):
            params[name] = str(code / record.script)  # it was an absolute path, or one with '..'
    return params


def launcher_of(hook: RuntimeHook, record: RunRecord) -> Launcher | None:
    """Returns the launcher that repeats a step: Spark's if it ran on Spark; None for this machine."""
    params = record.params
    if "conf" not in record.parts and params.get("engine") != "spark":
        follows = params.get("engine") == "auto" and not params.get("processes") and not params.get("source")
        return hook.cluster_launcher() if follows else None
    conf = json.loads(record.parts.get("conf", "{}"))
    if secrets := sorted(name for name, value in conf.items() if REDACTED in str(value)):
        raise BadInput(
            f"the record has no secrets, and conf had {', '.join(secrets)}; credentials belong in the Spark "
            f"connection {hook.settings.spark_conn_id!r}, not in conf: run the step again with them there"
        )
    return hook.make_launcher("spark", conn_id=hook.settings.spark_conn_id, conf=conf)


def run_again(
    hook: RuntimeHook, spec: StepSpec, on_line: Callable[[Line], None] | None, launcher: Launcher | None = None
) -> StepResult:
    """Runs the step, never from the cache, and ends it on KeyboardInterrupt."""
    try:
        return hook.run(spec, launcher=launcher, cache=False, on_line=on_line)
    except KeyboardInterrupt:
        hook.kill()
        raise


def _look_up(store: ArtifactStore, name: str) -> dict[str, Any]:
    """Returns the facts of a training run or of a version of a model; empty for other names.

    Raises:
        BadInput: there is no such run or version.
    """
    if (version := _VERSION.fullmatch(name)) is not None:
        event = read_model_record(store, version["model"]).registered().get(int(version["version"]))
        if event is None or not event.model:
            raise BadInput(f"{name}: model {version['model']!r} has no version {version['version']} that was deployed")
        return {"model": event.model, "fingerprint": event.fingerprint}
    if not _RUN_ID.fullmatch(name):
        return {}
    if (training := find_training(store, name)) is None:
        raise BadInput(f"{name}: no training in {store.root} has this id; the page Runs shows the ids")
    of, number = training.tags, training.params.get("run", "")
    producer = Producer(
        of["hops.dag_id"], training.dag_run_id, training.task_id, training.map_index, iteration=training.iteration
    )
    is_experiment = number.startswith("run.") and "hops.model" not in of
    return {
        "dag_id": producer.dag_id,
        "dag_run_id": producer.run_id,
        "task": producer.task,
        "metrics": {metric: at.last.value for metric, at in training.figures.items() if at.last.value is not None},
        "record": training.record,
        "tags": of,
        "model": of.get("hops.model"),
        "fingerprint": of.get("hops.fingerprint"),
        "experiment": store.internal("Experiments", app_id(producer), number) if is_experiment else None,
    }


def _artifact_of(store: ArtifactStore, logged: Mapping[str, Any]) -> Artifact | None:
    """Returns the model of a run or version; None if the model of a run is gone or was replaced.

    Raises:
        BadInput: the model of a registered version is gone; nothing else is known of it.
    """
    uri = logged.get("model")
    if uri is None or ("record" in logged and not store.exists(uri)):
        return None
    with suppress(BadInput):
        result, manifest = store.find(Artifact(uri, "model", str(logged.get("fingerprint"))))
        return manifest.reference(result.uri)
    if "record" not in logged:
        raise BadInput(f"{uri}: another model is stored there now; name the run that trained this one by its id")
    return None


def _from_training(store: ArtifactStore, name: str, model: Artifact) -> RecordedRun:
    """Derives a run from the ``training.json`` of a model without a run record.

    Raises:
        BadInput: the file does not describe the training of a function.
    """
    uri = f"{model.uri}/training.json"
    try:
        report = store.read_json(uri)
        train = {"script" if report["train"].endswith((".py", ".ipynb")) else "train": report["train"]}
        options = {option: report[option] for option in ("params", "seed", "deterministic", "strategy")}
        secrets = tuple(f"params/{param}" for param, value in report["params"].items() if REDACTED in json.dumps(value))
    except (FileNotFoundError, LookupError, TypeError, AttributeError) as error:
        raise BadInput(f"{uri}: not written by a training ({error!r}); {name} cannot be run again") from error
    manifest = store.manifest(model.uri)
    record = RunRecord(
        dag_id=manifest.producer.dag_id,
        step=manifest.producer.task_id,
        entry=TRAIN_ENTRY,
        params={**train, **options, "np": report["ranks"]},
        inputs={
            role: [store.manifest(a.uri).reference(a.uri).to_dict() | {"fingerprint": a.fingerprint} for a in values]
            for role, values in manifest.inputs.items()
        },
        parts=manifest.cache_key_parts,
        package_version="",
        python=str(report.get("versions", {}).get("python", "")),
        packages={},
        started=now(),
        secrets=secrets,
        output_kind=model.kind,
    )
    lacking = ("code", "environment", "options of the step other than params, seed, deterministic, strategy and ranks")
    return RecordedRun(name, record, model, manifest.metrics, lacking=lacking)
