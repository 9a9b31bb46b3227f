"""DAG that scores a window of rows with the versions that serve, and hands the predictions on."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, DeltaDataIntervalTimetable

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import CLASS, MULTICLASS, OUTPUTS
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.extensions import LOOPS, extensions
from airflow_hops.core.models.model_record import find_record
from airflow_hops.core.names import suggestion
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import exclusive
from airflow_hops.core.times import sortable, window_time
from airflow_hops.extensions.scoring.operators.run_windows import RunWindow, run_window, silent_after
from airflow_hops.extensions.scoring.operators.score import ScoreOperator
from airflow_hops.operators.base import airflow_error, arguments_of, skipped
from airflow_hops.operators.ingest import IngestOperator
from airflow_hops.operators.prepare import PrepareOperator
from airflow_hops.operators.retraining_loop import agreed, dag_of
from airflow_hops.runner.arguments import BadArgument, check_arguments, is_output
from airflow_hops.runner.runtime import RuntimeHook

Arguments = Mapping[str, Any]
CONN_ID = "hops_batch"
"""Connection of the loop's tasks: unless it is configured, ``hops_default`` with the kind ``batch``."""
_TASKS = {"ingest": IngestOperator, "prepare": PrepareOperator, "score": ScoreOperator}
_OF_LABELS = ("label", "newest", "eval_percent", "problem", "classes", "weight", "more_labels")
_LOCK_S = 300.0
_WINDOW = "{{ run_window(dag_run).%s }}"


def scoring_dag(
    model_name: str,
    file: str,
    shared: Arguments,
    sources: Any,
    training: Arguments,
    /,
    *,
    rows: Any = None,
    to: Any = None,
    asset: Asset | None = None,
    schedule: Any = "@daily",
    ingest: Arguments | None = None,
    prepare: Arguments | None = None,
    score: Arguments | None = None,
    write: Arguments | None = None,
    **dag: Any,
) -> tuple[Asset, timedelta | None]:
    """Makes the DAG ``<model_name>_scoring``: ``ingest``, ``prepare``, ``score`` and, with a table, ``write``.

    The keywords are as of :func:`~airflow_hops.operators.training_loop`. ``shared`` are arguments of the training's DAG
    that are this one's, too; tables that ``rows`` does not name are read from the training's ``sources``; of
    ``training``, its arguments of ``PrepareOperator``, those for labels are left out.

    Returns:
        The asset of scored rows, and the time without them after which a monitor should fail.

    Raises:
        BadArgument: an argument is unknown or missing, contradicts another, or has no effect.
    """
    own = {"ingest": ingest, "prepare": prepare, "score": score, "write": write}
    _check_values({**own, "asset": asset}, rows, to, dag)
    if isinstance(schedule, str):  # for which Airflow would make runs without data intervals
        schedule = CronDataIntervalTimetable(schedule, timezone="UTC")
    elif isinstance(schedule, timedelta):
        schedule = DeltaDataIntervalTimetable(schedule)
    prepared = {**{name: value for name, value in training.items() if name not in _OF_LABELS}, **(prepare or {})}
    tables = _tables(sources, rows, prepared.get("table"))
    main = tables[prepared.get("table") or next(iter(tables))]
    columns = [prepared[name] for name in ("key", "time") if prepared.get(name)]
    if prepared.get("key") is None and not (score or {}).get("shadow"):
        raise BadArgument(
            "there is no key, by which a canary gets its share of the rows; give the loop a key, or "
            "score={'score': {'shadow': True}}, with which a canary scores all rows and hands nothing on"
        )
    has_time = not is_output(main) and row_source("rows", main).time_column is not None
    by_time = getattr(schedule, "timetable", schedule)  # of assets or times
    window_of = partial(run_window, schedule=by_time, has_time=has_time)
    asset = asset or Asset(f"{model_name}_scored")
    begin: dict[str, Any] = {"window_start": _WINDOW % "start", "window_end": _WINDOW % "end"}
    writer = None if to is None else (write or {}).get("task_id", "write")
    begin["pre_execute"] = partial(_check_run, model_name, writer, window_of, has_time)
    end = {"outlets": [asset], "post_execute": partial(_announce, asset, window_of)}
    macros = {**(dag.pop("user_defined_macros", None) or {}), "run_window": window_of}
    settings = {"dag_id": f"{model_name}_scoring", "max_active_runs": 1, "catchup": False, "tags": ["hops"]}
    with dag_of(file, **{**settings, **shared, **dag}, schedule=schedule, user_defined_macros=macros):
        raw = IngestOperator(**{"task_id": "ingest", "sources": tables, **agreed("ingest", ingest or {}, begin)})
        examples = {"tables": raw.output, **agreed("prepare", prepared, {"label": None})}
        scored = {"examples": PrepareOperator(**{"task_id": "prepare", **examples}).output, "columns": columns or None}
        settled = {"model_name": model_name, **(end if to is None else {})}
        task = ScoreOperator(**{"task_id": "score", **scored, **agreed("score", score or {}, settled)})
        if to is not None:
            written = {"task_id": "write", "rows": task.output, "batch": _WINDOW % "key"}
            extensions(LOOPS)["write"].load()(**{**written, **agreed("write", write or {}, {"table": to, **end})})
    return next(each for each in task.outlets if each != asset), silent_after(by_time)


def _check_values(typed: Arguments, rows: Any, to: Any, dag: Arguments) -> None:
    """Raises BadArgument for an argument that is unknown, of another type, missing or without effect."""
    check_arguments(scoring_dag, typed, ())
    known = [*inspect.getfullargspec(scoring_dag).kwonlyargs, *inspect.signature(DAG).parameters]
    for name in (name for name in dag if name not in known):
        tasks = [task for task, operator in _TASKS.items() if name in arguments_of([operator])]
        place = f"; it is one of the task {tasks[0]!r}: score={{{tasks[0]!r}: {{{name!r}: …}}}}" if tasks else ""
        raise BadArgument(f"there is no argument {name!r}{place or suggestion(name, known)}")
    if rows is None:
        raise BadArgument("rows is missing; expected the source of the rows to score, such as Source('s3://…')")
    if typed["write"] and to is None:
        raise BadArgument("write has no effect without the table to write to; give it as 'to'")
    if to is not None and "write" not in extensions(LOOPS):
        raise BadArgument("to needs the extension 'tables', which this installation lacks")


def _tables(sources: Any, rows: Any, table: str | None) -> dict[str, Any]:
    """Returns the training's sources with the rows to score instead of the main table, or of the tables they name."""
    if not isinstance(sources, Mapping):
        raise BadArgument("sources is the output of a task; expected a mapping, or write the DAG by hand")
    if not isinstance(rows, Mapping) or not rows.keys() & sources.keys():
        return {**sources, table or next(iter(sources)): rows}
    if unknown := next((name for name in rows if name not in sources), None):
        raise BadArgument(f"rows has a table {unknown!r}, which the sources lack{suggestion(unknown, sources)}")
    return {**sources, **rows}


def _check_run(
    model_name: str, writer: str | None, window_of: Callable[[Any], RunWindow], has_time: bool, context: Any
) -> None:
    """Checks a run before it reads anything; ``writer`` is the task that writes the table, if any.

    Raises:
        AirflowSkipException: no version of the model was ever deployed.
        AirflowFailException: the table lacks columns, or some of the window's rows are of another window or DAG.
    """
    task = context["task"]
    try:
        store = RuntimeHook(task.hops_conn_id).find_store(lambda root: task.has_used(root, context))
        record = find_record(store, model_name)
        if record is None:
            raise skipped(context["ti"], f"no version of model {model_name!r} was deployed yet")
        window = window_of(context["dag_run"])
        if has_time and window.start == window.end:
            return  # IngestOperator refuses it
        bounds, batches = (window.start, window.end) if has_time else ("", ""), dict[str, str]()
        if writer is not None:
            write = task.dag.get_task(writer)
            scored = write.rows.operator
            rendered = [write.table, write.batch, scored.columns, scored.version]
            table, batch, columns, version = task.render_template(rendered, context)
            problem = ModelProperties.of(record.champion.model).problem if record.champion else None
            outputs = [OUTPUTS[problem]] if problem in OUTPUTS and scored.signature == "serving_default" else []
            outputs += [CLASS] * (OUTPUTS[MULTICLASS] in outputs)
            server = ServerAddress.of(RuntimeHook(scored.hops_conn_id).settings.services)
            outputs += ["version"] * (version is None and not server.has_process)  # as in the stage
            if table is not None:  # else a task's output, which is not there yet
                write.check_table(table, [*(columns or ()), *outputs])
            if table is not None and batch:
                batches[f"table {str(table['uri'] if isinstance(table, Mapping) else table)!r}"] = batch
        if window.key:
            batches[f"captured rows of {task.dag_id!r}"] = window.key
        _claim(store, batches, bounds, task.dag_id)
    except HopsError as error:
        raise airflow_error(error) from error


def _claim(store: ArtifactStore, batches: Mapping[str, str], bounds: Sequence[str], dag_id: str) -> None:
    """Records the names of a window, by place to write to. Raises BadInput if some of its rows are of another one."""
    start, end = (sortable(bound) if window_time("the window", bound) else "" for bound in bounds)
    claims = dict[str, str]()
    with ExitStack() as locks:
        for place, batch in batches.items():
            folder = store.internal("_state", "scored_windows", _digest(place))
            locks.enter_context(exclusive(store, f"{folder}.lock", place, _LOCK_S))
            for name in (name for name in store.names(folder) if name.endswith(".json")):  # without what a kill left
                first, last, digest = name.removesuffix(".json").split("_")
                if digest != _digest(batch) and (first >= end or start >= last):
                    continue
                other = store.read_json(f"{folder}/{name}")
                if (other["batch"], other["dag_id"]) != (batch, dag_id):
                    raise BadInput(
                        f"{place}: the window {batch!r} of {dag_id} has rows that {other['dag_id']} writes as "
                        f"{other['batch']!r}; run the DAG of that window, or remove its rows and {folder}/{name}"
                    )
            claim = json.dumps({"dag_id": dag_id, "place": place, "batch": batch})
            claims[f"{folder}/{start}_{end}_{_digest(batch)}.json"] = claim
        for uri, claim in claims.items():  # none of them if one is refused
            store.write_text(uri, claim)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _announce(asset: Asset, window_of: Callable[[Any], RunWindow], context: Any, result: Any = None) -> None:
    """Updates the asset of the predictions, with the window as its partition."""
    window, event = window_of(context["dag_run"]), context["outlet_events"][asset]
    event.extra = {"uri": result["uri"], "window": [window.start, window.end]}
    if window.key and context["dag_run"].partition_key is None:  # which Airflow adds itself
        event.add_partitions(window.key)
