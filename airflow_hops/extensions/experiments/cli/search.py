"""``airflow hops search``: copies a hyperparameter search to a database of Optuna."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.search import StudyRecord
from airflow_hops.extensions.experiments.core.studies import recorded_studies
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def search(args: Namespace) -> None:
    """Exports a study."""
    hook = RuntimeHook(args.hops_conn_id)
    record, storage = _find(hook.store, args), args.optuna
    if (path := storage.removeprefix("sqlite:///")) != storage and path:
        storage = f"sqlite:///{Path(path).absolute()}"  # the step has a working directory of its own
    names = {"dag_id": record.dag_id, "task_id": record.task_id, "study": record.name, "storage": storage}
    spec = StepSpec("export", "airflow_hops.extensions.experiments.ml.search.optuna_export:run", params=names)
    exported = hook.run(spec, cache=False, on_line=lambda line: None).value
    print(f"Exported {exported['trials']} trials as study {exported['name']}; show them: optuna-dashboard {storage}")


def _find(store: ArtifactStore, args: Namespace) -> StudyRecord:
    """Returns the named study; BadInput if there is none, or the name is ambiguous."""
    studies, damaged = recorded_studies(store, args.dag_id)
    for error in damaged:
        print(f"A damaged study is left out: {error}", file=sys.stderr)
    known = [record for _, record in studies if args.task in (None, record.task_id)]
    results = [record for record in known if record.name == args.study]
    if not results:
        names = ", ".join(sorted(record.name for record in known)[:8])
        where = "" if args.task is None else f" of task {args.task!r}"
        raise BadInput(
            f"DAG {args.dag_id!r} has no study {args.study!r}{where} in {store.root}; it has {names or 'none'}"
        )
    if len(results) > 1:
        tasks = ", ".join(sorted(record.task_id for record in results))
        raise BadInput(f"several tasks have a study {args.study!r}: {tasks}; name one of them by --task")
    return results[0]
