"""``airflow hops search``: hyperparameter searches in the terminal, like the Runs page."""

from __future__ import annotations

import getpass
import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning, yaml
from airflow_hops.core.errors import BadInput
from airflow_hops.core.redaction import masked
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import seconds_since
from airflow_hops.extensions.experiments.core.search import StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder, recorded_studies
from airflow_hops.extensions.experiments.hooks import check_runs, ended_without_record
from airflow_hops.runner.runtime import RuntimeHook

_POLL_S = 2.0
_FAILURES = 5
"""Number of newest failures that are shown with their reasons."""
_LOG_LINES = 20


@suppress_logs_and_warning
def search(args: Namespace) -> None:
    """Lists a DAG's studies; shows, follows, stops or exports one."""
    hook = RuntimeHook(args.hops_conn_id)
    store = hook.store
    if args.study is None and args.stop is None and not args.follow and args.optuna is None:
        _list(store, args)
        return
    folder, record = _find(store, args)
    if args.optuna is not None:
        _export(hook, record, args.optuna)
        return
    if args.stop is not None:
        # Without numbers, the search itself is stopped.
        numbers = args.stop
        ended = _killed(record)
        for each in numbers or (None,):
            check_runs(folder, record, ended, each)
        for each in numbers or (None,):
            folder.request_stop(each, getpass.getuser())
        subject = f"trial {', '.join(map(str, numbers))}" if numbers else "the search"
        print(f"Asked to stop {subject} of study {record.name}; the search checks every few seconds.", file=sys.stderr)
    if args.follow:
        _follow(folder)
    elif args.stop is None:
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
    print("\n".join([*_lines(record, trials), *_log_lines(folder, trials)]))


def _follow(folder: StudyFolder) -> None:
    """Prints the progress whenever it changes, until the search has ended; exits with 1 if it failed."""
    last = ""
    for record in _states(folder):
        line = _progress(record)
        if line != last:
            print(line, flush=True)
        last = line
    state = _state(record)
    if state not in ("complete", "stopped"):
        raise SystemExit(f"study {record.name!r}: {record.error or state}")


def _states(folder: StudyFolder) -> Iterator[StudyRecord]:
    """Yields the study's record repeatedly until the search has ended."""
    while True:
        record = folder.read()
        if record is None:
            raise BadInput(f"{folder.uri}: the study was removed")
        yield record
        if record.state != "running" or _killed(record):
            return
        time.sleep(_POLL_S)


def _lines(record: StudyRecord, trials: list[TrialRecord]) -> list[str]:
    """Describes a study: state, progress, best trial, running trials, failures."""
    results = [f"{record.name}, task {record.task_id}: {_state(record)}", _progress(record)]
    if record.best is not None:
        reached = _values(record, record.best_values)
        results.append(f"Best: trial {record.best}, {reached}, with {_params(record.best_params)}")
    if record.pareto:
        results.append(f"Pareto front: trials {', '.join(map(str, record.pareto))}")
    if record.importance:
        ordered = sorted(record.importance.items(), key=lambda each: -each[1])
        results.append(f"Importance: {', '.join(f'{name} {share:.0%}' for name, share in ordered)}")
    for trial in trials:
        if trial.state == "running":
            last = trial.intermediate[-1] if trial.intermediate else None
            reported = "" if last is None else f", {record.metrics[0]} {last[1]:.5g} at step {last[0]:g}"
            try:
                seconds = seconds_since(trial.started)
                since = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
            except (ValueError, TypeError):  # not a time, or without a time zone
                since = f"an unknown time (started {trial.started!r})"
            results.append(f"Running: trial {trial.number} for {since}{reported}, with {_params(trial.params)}")
    failed = [trial for trial in trials if trial.state == "failed"]
    if len(failed) > _FAILURES:
        results.append(f"{len(failed)} trials failed; the last {_FAILURES}:")
    results += [f"Failed: trial {trial.number}: {trial.reason}" for trial in failed[-_FAILURES:]]
    if record.error:
        results.append(f"Error: {record.error}")
    return results


def _log_lines(folder: StudyFolder, trials: list[TrialRecord]) -> list[str]:
    """Returns the last log lines of the last failed trial."""
    number = max((trial.number for trial in trials if trial.state == "failed"), default=None)
    text = None if number is None else folder.log(number)
    return [f"The last lines of trial {number}:", *text.splitlines()[-_LOG_LINES:]] if text else []


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
