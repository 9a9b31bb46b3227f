"""``airflow hops search``: hyperparameter searches in the terminal, like the Runs page."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning, yaml
from airflow_hops.core.errors import BadInput
from airflow_hops.core.redaction import masked
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.search import StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder, recorded_studies
from airflow_hops.extensions.experiments.hooks import ended_without_record
from airflow_hops.runner.runtime import RuntimeHook

_FAILURES = 5
"""Number of newest failures that are shown with their reasons."""


@suppress_logs_and_warning
def search(args: Namespace) -> None:
    """Lists a DAG's studies; shows or exports one."""
    hook = RuntimeHook(args.hops_conn_id)
    store = hook.store
    if args.study is None and args.optuna is None:
        _list(store, args)
        return
    folder, record = _find(store, args)
    if args.optuna is not None:
        _export(hook, record, args.optuna)
    else:
        _show(folder, record, args.output)


def _export(hook: RuntimeHook, record: StudyRecord, storage: str) -> None:
    if (path := storage.removeprefix("sqlite:///")) != storage and path:
        storage = f"sqlite:///{Path(path).absolute()}"  # the step has a working directory of its own
    names = {"dag_id": record.dag_id, "task_id": record.task_id, "study": record.name, "storage": storage}
    spec = StepSpec("export", "airflow_hops.extensions.experiments.ml.search.optuna_export:run", params=names)
    exported = hook.run(spec, cache=False, on_line=lambda line: None).value
    print(f"Exported {exported['trials']} trials as study {exported['name']}; show them: optuna-dashboard {storage}")


def _list(store: ArtifactStore, args: Namespace) -> None:
    rows = [
        {
            "study": record.name,
            "task": record.task_id,
            "state": _state(record),
            "trials": f"{record.done}/{record.trials}",
            **{state: record.counts.get(state, 0) for state in ("running", "pruned", "failed")},
            "best": _values(record, record.best_values),
            "started": record.started,
        }
        for _, record in sorted(_studies(store, args), key=lambda each: each[1].started, reverse=True)
    ]
    AirflowConsole().print_as(rows, output=args.output)


def _studies(store: ArtifactStore, args: Namespace) -> list[tuple[StudyFolder, StudyRecord]]:
    """Returns the DAG's studies; prints the errors of damaged ones."""
    result, damaged = recorded_studies(store, args.dag_id)
    for error in damaged:
        print(f"A damaged study is left out: {error}", file=sys.stderr)
    return result


def _find(store: ArtifactStore, args: Namespace) -> tuple[StudyFolder, StudyRecord]:
    """Returns the named study, or the newest; BadInput if there is none, or the name is ambiguous."""
    known = [each for each in _studies(store, args) if args.task in (None, each[1].task_id)]
    results = [each for each in known if args.study in (None, each[1].name)]
    if not results:
        names = ", ".join(sorted(record.name for _, record in known)[:8])
        what = "no study" if args.study is None else f"no study {args.study!r}"
        where = "" if args.task is None else f" of task {args.task!r}"
        raise BadInput(f"DAG {args.dag_id!r} has {what}{where} in {store.root}; it has {names or 'none'}")
    if args.study is not None and len(results) > 1:
        tasks = ", ".join(sorted(record.task_id for _, record in results))
        raise BadInput(f"several tasks have a study {args.study!r}: {tasks}; name one of them by --task")
    return max(results, key=lambda each: each[1].started)


def _show(folder: StudyFolder, record: StudyRecord, output: str) -> None:
    trials = folder.trials()
    if output in ("json", "yaml"):
        report = {**record.to_dict(), "state": _state(record), "all_trials": [trial.to_dict() for trial in trials]}
        print(json.dumps(report) if output == "json" else yaml.dump(report, sort_keys=False))
        return
    print("\n".join(_lines(record, trials)))


def _lines(record: StudyRecord, trials: list[TrialRecord]) -> list[str]:
    """Describes a study: state, progress, best trial, failures."""
    results = [f"{record.name}, task {record.task_id}: {_state(record)}", _progress(record)]
    if record.best is not None:
        reached = _values(record, record.best_values)
        results.append(f"Best: trial {record.best}, {reached}, with {_params(record.best_params)}")
    if record.pareto:
        results.append(f"Pareto front: trials {', '.join(map(str, record.pareto))}")
    if record.importance:
        ordered = sorted(record.importance.items(), key=lambda each: -each[1])
        results.append(f"Importance: {', '.join(f'{name} {share:.0%}' for name, share in ordered)}")
    failed = [trial for trial in trials if trial.state == "failed"]
    if len(failed) > _FAILURES:
        results.append(f"{len(failed)} trials failed; the last {_FAILURES}:")
    results += [f"Failed: trial {trial.number}: {trial.reason}" for trial in failed[-_FAILURES:]]
    if record.error:
        results.append(f"Error: {record.error}")
    return results


def _progress(record: StudyRecord) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in record.counts.items())
    reached = "" if record.best is None else f"; best {_values(record, record.best_values)} (trial {record.best})"
    return f"{record.done} of {record.trials} trials: {counts or 'none yet'}{reached}"


def _state(record: StudyRecord) -> str:
    """Returns the state of the search, or of its task if that ended without recording one."""
    ended = _killed(record)
    return record.state if ended is None else f"killed (its task is {ended})"


def _killed(record: StudyRecord) -> str | None:
    """Returns the state of the task if it ended without recording the end of the search."""
    try:
        return ended_without_record(record)
    except SQLAlchemyError:
        return None  # no access to Airflow's database, as on workers: only the record is known


def _values(record: StudyRecord, values: Sequence[float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in zip(record.metrics, values, strict=False))


def _params(params: Mapping[str, object]) -> str:
    words = {name: f"{value:.5g}" if isinstance(value, float) else str(value) for name, value in masked(params).items()}
    return ", ".join(f"{name}={word}" for name, word in words.items())
