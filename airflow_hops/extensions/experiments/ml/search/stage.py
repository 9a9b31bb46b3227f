"""Searches hyperparameters, and publishes the model of the best trial."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import CUT_SHORT, MANIFEST_NAME, Artifact, cache_key
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_files import read_json
from airflow_hops.core.redaction import masked
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.extensions.experiments.core.search import SearchOptions, StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder, study_folder, study_names
from airflow_hops.extensions.experiments.ml.search.attributes import new_study
from airflow_hops.extensions.experiments.ml.search.optuna_study import OptunaStudy
from airflow_hops.extensions.experiments.ml.search.processes import TrialProcesses, Trials, TrialThreads
from airflow_hops.extensions.experiments.ml.search.search import Search
from airflow_hops.extensions.experiments.ml.search.slots import divide
from airflow_hops.extensions.experiments.ml.search.tracking import StudyRuns
from airflow_hops.extensions.experiments.ml.search.trial import Assignment, TrialWork, check_program
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import TrackedTraining
from airflow_hops.ml.training.gang import RankLauncher
from airflow_hops.ml.training.stage import Training
from airflow_hops.ml.training.stage.program import program_name
from airflow_hops.ml.training.stage.rank_group import all_ranks
from airflow_hops.ml.training.stage.step import launcher_of, prepare_training, publish

_BEST = "best"
_EARLIER_STUDIES = 50
_LEFT_OUT = ("checkpoints",)
_NOT_OF_THE_KEY = ("stall_timeout_s", "export")

log = logging.getLogger(__name__)


def run(context: StepContext, **options: Any) -> Any:
    """Runs trials, each a training, and publishes the winner's model.

    Args:
        context: The step.
        options: Fields of :class:`airflow_hops.extensions.experiments.core.search.SearchOptions`.

    Returns:
        The model artifact; if the function returns no model, the best trial's parameters, values and metrics.

    Raises:
        BadInput: the search is impossible: a retry would fail again.
        HopsError: too many trials failed, or the store was unavailable.
    """
    settings = SearchOptions(**options)
    trained = replace(TrainingOptions(**settings.training), any_value=True, export=not settings.refit)
    launcher = launcher_of(context, trained)
    slots = divide(launcher, settings.parallel, all_ranks(trained))
    dimensions = settings.dimensions()
    _check_refit(settings, trained, launcher)
    most = max(trained.np, settings.refit_np or 1)
    training = prepare_training(context, trained, context.scratch / "trials", launcher, most)
    if launcher.is_forkable:
        check_program(training, None if dimensions is None else list(dimensions), context.scratch / "check")
    producer, store = context.spec.producer, context.store
    record = new_study(
        settings, program_name(trained), base_key(context.spec.cache_key_parts, trained, context), producer
    )
    folder = study_folder(store, record.dag_id, record.task_id, record.name)
    work = TrialWork(training, slots)
    trials = TrialProcesses(work) if launcher.is_forkable else TrialThreads(work)
    names = ("metrics", "directions", "sampler", "pruner", "parallel", "seed", "space")
    chosen = {name: getattr(settings, name) for name in names}
    counts = {"trials": settings.wanted, "np": training.options.np}
    run = TrackedTraining(context.spec, {"train": program_name(trained), **counts, **chosen})
    lease, held = folder.lease(producer.run_id), ExitStack()
    try:
        held.enter_context(lease.held())
        shared = settings.study is not None
        study = OptunaStudy(folder, record, settings, shared=shared, reuse=settings.reuse, lease=lease)
        study.update(training=run.record.run_id)
        runs = StudyRuns(run, record)
        search = Search(settings, trained.np, study, folder, trials, runs, training.output)
        if settings.reuse and any(context.spec.inputs.values()):  # a key does not include data that code reads itself
            search.earlier = earlier_trials(store, record)
        if not settings.refit:
            search.keep = lambda trial, output, summary: _keep(context, folder, trial, output, summary)
        search.say = context.progress
        winner = search.run()
        summary_text = f"the best of {len(study.trials)} trials is #{winner.number}: {dict(winner.params)}"
        context.progress(settings.trials_share, summary_text)
        artifact, summary = _outcome(context, settings, training, study, winner, trials, search.cut_short)
        if search.cut_short is not None:
            log.warning("%s: the step cache does not store this result", search.cut_short)
        study.update(published=True)
        try:
            study.save(final=True)
        except HopsError as error:
            log.warning("the winner is published, but the record of the search was not updated: %s", error)
    except BaseException as error:
        run.fail(error, context.cost())
        raise
    finally:
        trials.close()
        held.close()
    run.finish(artifact, context.cost())
    return summary["value"] if artifact is None else artifact


def base_key(parts: Mapping[str, str], training: TrainingOptions, context: StepContext) -> str:
    """Returns the key of code, data and options, which all trials of a search share."""
    same = {name: value for name, value in parts.items() if name != "parameters"}
    inputs = {f"data {role}": ",".join(a.fingerprint for a in items) for role, items in context.spec.inputs.items()}
    how = {name: v for name, v in training.to_dict().items() if name not in _NOT_OF_THE_KEY}
    return cache_key({**same, **inputs, "training": json.dumps(how, sort_keys=True)})[:16]


def earlier_trials(store: ArtifactStore, study: StudyRecord) -> dict[str, tuple[str, TrialRecord]]:
    """Returns complete trials by key, from the task's latest studies with the same code, data and options."""
    complete: dict[str, tuple[str, TrialRecord]] = {}
    names = sorted(study_names(store, study.dag_id, study.task_id), key=lambda name: name.rpartition("__")[2])
    for name in names[-_EARLIER_STUDIES:]:
        folder = study_folder(store, study.dag_id, study.task_id, name)
        try:
            earlier = folder.read()
            trials = [] if earlier is None or earlier.base != study.base else folder.trials()
        except BadInput as error:
            log.warning("the trials of an earlier study are not reused: %s", error)
            continue
        for trial in trials:
            if earlier is not None and trial.state == "complete" and trial.key and not trial.taken_from:
                complete[trial.key] = (earlier.name, trial)
    return complete


def _check_refit(options: SearchOptions, training: TrainingOptions, launcher: RankLauncher) -> None:
    """Raises BadInput before the first trial if the winner's training would have too few slots."""
    if not options.refit or options.refit_np is None:
        return
    try:
        launcher.place(all_ranks(replace(training, np=options.refit_np)))
    except BadInput as error:
        raise BadInput(f"refit_np is {options.refit_np}: {error}") from error


def _keep(
    context: StepContext, folder: StudyFolder, trial: TrialRecord, output: Path, summary: Mapping[str, object]
) -> None:
    """Stores the model of the best trial so far with the study, for a retry."""
    if not _has_model(summary, output):
        return
    with context.store.create(f"{folder.uri}/{_BEST}", "model", context.spec.producer) as writer:
        shutil.copytree(output, writer.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        writer.commit(properties={"key": trial.key, "trial": trial.number})


def _kept(context: StepContext, study: StudyRecord, winner: TrialRecord) -> Path | None:
    """Returns a local folder with the winner's model, if it was stored with its own or its original study."""
    store = context.store
    for name in (study.name, (winner.taken_from or "").rpartition("#")[0]):
        uri = f"{study_folder(store, study.dag_id, study.task_id, name).uri}/{_BEST}" if name else ""
        if uri and store.exists(uri) and (manifest := store.manifest(uri)).properties.get("key") == winner.key:
            return store.local(manifest.reference(uri))
    return None


def _outcome(
    context: StepContext,
    options: SearchOptions,
    training: Training,
    study: OptunaStudy,
    winner: TrialRecord,
    trials: Trials,
    cut_short: str | None,
) -> tuple[Artifact | None, dict[str, Any]]:
    """Publishes the winner's model; returns the artifact, and the summary of its training."""
    np, record = training.options.np, study.record
    facts = {"study": record.name, "trial": winner.number, **({CUT_SHORT: cut_short} if cut_short else {})}
    with context.output() as writer:
        folder = None if options.refit else _kept(context, record, winner)
        is_anew = folder is None and (options.refit or winner.has_model)
        if is_anew:
            np = options.refit_np or np if options.refit else np
            text = f"training again with the parameters of trial {winner.number} on {np} ranks"
            context.progress(options.trials_share, text)
            folder = _train_anew(context.scratch / "winner", winner, np, trials)
        if folder is not None:
            shutil.copytree(folder, writer.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        summary = read_json(writer.path / "training.json") if folder is not None else {}
        if not _has_model(summary, writer.path):
            value = {**facts, "params": winner.params, "metrics": winner.metrics}
            return None, {**summary, "value": value}
        params = {**training.options.params, **winner.params}
        trained = replace(training, options=replace(training.options, params=params, np=np), output=writer.path)
        of_ranks = summary.get("gpu_usage", ())
        own = study.trials[record.first_trial :]  # the others are in the costs of earlier runs
        of_trial = islice(cycle(of_ranks), all_ranks(training.options))  # refit_np may be another number
        context.used_gpus(of_trial, sum(trial.seconds or 0.0 for trial in own))
        context.used_gpus(of_ranks if is_anew else (), summary["seconds"]["total"])
        return publish(writer, trained, summary, context.spec.inputs, **facts, params=masked(params)), summary


def _train_anew(output: Path, winner: TrialRecord, np: int, trials: Trials) -> Path:
    """Trains with the winner's parameters on the whole machine or all hosts, and returns the folder."""
    trials.start(Assignment(winner.number, None, dict(winner.params), np, str(output)))
    error: Mapping[str, Any] = {"message": "its process was ended", "retryable": True}
    while True:
        for event in trials.events(1.0):
            if event["type"] == "error":
                error = event
            elif event["type"] == "result":
                error = {}
            elif event["type"] == "ended" and not error:
                return output
            elif event["type"] == "ended":
                failure = HopsError if error.get("retryable", True) else BadInput
                raise failure(f"training the winner, trial {winner.number}, again: {error['message']}")


def _has_model(summary: Mapping[str, object], output: Path) -> bool:
    return summary.get("model") is not None or (output / "saved_model").is_dir()
