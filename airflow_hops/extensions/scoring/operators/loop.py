"""DAG that scores a window of rows with the versions that serve, and hands the predictions on."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, DeltaDataIntervalTimetable

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.extensions import LOOPS, extensions
from airflow_hops.core.models.model_record import find_record
from airflow_hops.core.names import suggestion
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.scoring.operators.run_windows import RunWindow, run_window, silent_after
from airflow_hops.extensions.scoring.operators.score import ScoreOperator
from airflow_hops.operators.base import HopsOperator, airflow_error, arguments_of, skipped
from airflow_hops.operators.ingest import IngestOperator
from airflow_hops.operators.prepare import PrepareOperator
from airflow_hops.operators.retraining_loop import agreed, dag_of
from airflow_hops.runner.arguments import BadArgument, is_output
from airflow_hops.runner.runtime import RuntimeHook

Arguments = Mapping[str, Any]
CONN_ID = "hops_batch"
"""Connection of the loop's tasks: unless it is configured, ``hops_default`` with the kind ``batch``."""
_TASKS: Mapping[str, type[HopsOperator]] = {
    "ingest": IngestOperator,
    "prepare": PrepareOperator,
    "score": ScoreOperator,
}
_OWN = ("rows", "to", "asset", "partition_length", *_TASKS, "write")
_OF_LABELS = ("label", "newest", "eval_percent", "problem", "classes", "weight", "more_labels")
_WINDOW = "{{ run_window(dag_run).%s }}"


@dataclass(frozen=True)
class ScoringDag:
    """The DAG, and what its monitor needs.

    Attributes:
        scored: Asset that is updated with each scored window.
        silent_after: Time without scored rows after which the monitor fails.
    """

    dag: DAG
    scored: Asset
    silent_after: timedelta | None


def scoring_dag(
    where: str, model_name: str, sources: Any, prepare: Arguments, score: Arguments, shared: Arguments, file: str
) -> ScoringDag:
    """Returns the DAG ``<model_name>_scoring``: ``ingest``, ``prepare``, ``score`` and, with a table, ``write``.

    Args:
        where: Beginning of messages.
        model_name: The deployed model.
        sources: Those of the training; tables that ``rows`` does not name are read from them.
        prepare: Arguments of the training's ``PrepareOperator``, of which those for labels are left out.
        score: As of :func:`~airflow_hops.operators.training_loop`.
        shared: Arguments of the training's DAG that are this DAG's, too.
        file: The DAG file.

    Raises:
        BadArgument: an argument is unknown or missing, contradicts another, or has no effect.
    """
    where = f"{where}score: "
    own = {name: score.get(name) or {} for name in (*_TASKS, "write")}
    _check(where, score, own)
    table, late = score.get("to"), [name for name, value in (("sources", sources), *own.items()) if is_output(value)]
    if late:
        raise BadArgument(f"{where}{late[0]} is the output of a task; expected a mapping, or write the DAG by hand")
    schedule = _timetable(score.get("schedule", "@daily"))
    prepared = {**{name: value for name, value in prepare.items() if name not in _OF_LABELS}, **own["prepare"]}
    tables = _tables(where, sources, score["rows"], prepared.get("table"))
    main = tables[prepared.get("table") or next(iter(tables))]
    key, time = prepared.get("key"), prepared.get("time")
    if key is None and not own["score"].get("shadow"):
        raise BadArgument(
            f"{where}there is no key, by which a canary gets its share of the rows; give the loop a key, or "
            "score={'score': {'shadow': True}}, with which a canary scores all rows and hands nothing on"
        )
    has_time = not is_output(main) and row_source("rows", main).time_column is not None
    window_of = partial(
        run_window, schedule=schedule, partition_length=score.get("partition_length"), has_time=has_time
    )
    asset = score.get("asset") or Asset(f"{model_name}_scored")
    arguments = {name: value for name, value in score.items() if name not in _OWN}
    made = dag_of(
        file,
        **{
            "dag_id": f"{model_name}_scoring", "max_active_runs": 1, "catchup": False, "tags": ["hops"], **shared,
            **arguments, "schedule": schedule,
            "user_defined_macros": {**(arguments.get("user_defined_macros") or {}), "run_window": window_of},
        },
    )  # fmt: skip
    writer = extensions(LOOPS)["write"].load() if table is not None else None
    last: Arguments = {"outlets": [asset], "post_execute": partial(_announce, asset, window_of)}
    begin = partial(_check_run, model_name, table is not None, window_of)
    ends = {"window_start": _WINDOW % "start", "window_end": _WINDOW % "end", "pre_execute": begin}
    columns = [name for name in (key, time) if name is not None]
    with made:
        raw = IngestOperator(
            **{"task_id": "ingest", "sources": tables, **agreed(f"{where}ingest", own["ingest"], ends)}
        )
        rows = PrepareOperator(
            **{"task_id": "prepare", "tables": raw.output, **agreed(f"{where}prepare", prepared, {"label": None})}
        )
        settled = {"model_name": model_name, **(last if writer is None else {})}
        scores = ScoreOperator(
            **{
                "task_id": "score", "examples": rows.output, **({"columns": columns} if columns else {}),
                **agreed(f"{where}score", own["score"], settled),
            }
        )  # fmt: skip
        if writer is not None:
            settled = {"table": table, **last}
            batch = {"task_id": "write", "rows": scores.output, "batch": _WINDOW % "key"}
            writer(**{**batch, **agreed(f"{where}write", own["write"], settled)})
    scored = next(each for each in scores.outlets if isinstance(each, Asset) and each != asset)
    return ScoringDag(made, scored, silent_after(schedule))


def _check(where: str, score: Arguments, own: Mapping[str, Any]) -> None:
    """Raises BadArgument for an unknown argument, one of another type, and one that is missing or has no effect."""
    known = (*_OWN, *inspect.signature(DAG).parameters)
    for name in score:
        if name not in known:
            tasks = [task for task, operator in _TASKS.items() if name in arguments_of([operator])]
            place = f"; it is one of the task {tasks[0]!r}: score={{{tasks[0]!r}: {{{name!r}: …}}}}" if tasks else ""
            raise BadArgument(f"{where}there is no argument {name!r}{place or suggestion(name, known)}")
    for name, value in own.items():
        if not isinstance(value, Mapping) and not is_output(value):
            raise BadArgument(f"{where}{name} is {value!r}, expected arguments of an operator by name, such as {{}}")
    if score.get("rows") is None:
        raise BadArgument(f"{where}rows is missing; expected the source of the rows to score, such as Source('s3://…')")
    if own["write"] and score.get("to") is None:
        raise BadArgument(f"{where}write has no effect without the table to write to; give it as 'to'")
    if score.get("to") is not None and "write" not in extensions(LOOPS):
        raise BadArgument(f"{where}to needs the extension 'tables', which this installation lacks")
    length, asset = score.get("partition_length"), score.get("asset")
    if length is not None and not (isinstance(length, timedelta) and length > timedelta(0)):
        raise BadArgument(f"{where}partition_length is {length!r}, expected a timedelta above 0")
    if asset is not None and not isinstance(asset, Asset):
        raise BadArgument(f"{where}asset is {asset!r}, expected an Asset")


def _timetable(schedule: Any) -> Any:
    """Returns a schedule whose runs have data intervals, where Airflow would give them none."""
    if isinstance(schedule, str):
        return CronDataIntervalTimetable(schedule, timezone="UTC")
    return DeltaDataIntervalTimetable(schedule) if isinstance(schedule, timedelta) else schedule


def _tables(where: str, sources: Arguments, rows: Any, table: str | None) -> dict[str, Any]:
    """Returns the training's sources with the rows to score instead of the main table, or of the tables they name."""
    if not isinstance(rows, Mapping) or not rows.keys() & sources.keys():
        return {**sources, table or next(iter(sources)): rows}
    if unknown := next((name for name in rows if name not in sources), None):
        raise BadArgument(f"{where}rows has a table {unknown!r}, which the sources lack{suggestion(unknown, sources)}")
    return {**sources, **rows}


def _check_run(model_name: str, writes: bool, window_of: Callable[[Any], RunWindow], context: Any) -> None:
    """Checks a run before it reads anything.

    Raises:
        AirflowSkipException: no version of the model was ever deployed.
        AirflowFailException: another DAG writes the window to the table.
    """
    task, dag_id = context["task"], context["ti"].dag_id
    try:
        store = RuntimeHook(task.hops_conn_id).find_store(lambda root: task._has_used(root, context))
        if find_record(store, model_name) is None:
            raise skipped(context["ti"], f"no version of model {model_name!r} was deployed yet")
        write = task.dag.get_task("write") if writes else None
        if write is not None:
            table, batch = task.render_template([write.table, write.batch], context)
            if batch:
                _claim(store, str(table["uri"] if isinstance(table, Mapping) else table), batch, f"{dag_id}.write")
    except HopsError as error:
        raise airflow_error(error) from error


def _claim(store: ArtifactStore, table: str, batch: str, task: str) -> None:
    """Records the one task that writes a window to a table. Raises BadInput if it is another one."""
    digests = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in (table, batch)]
    file = store.internal("_state", "scored_tables", *digests) + ".json"
    try:
        store.create_text(file, json.dumps({"task": task, "table": table, "batch": batch}))
    except FileExistsError:
        if (other := store.read_json(file)["task"]) != task:
            raise BadInput(
                f"table {table!r}: the window {batch!r} is written by {other}, so that {task} would replace its rows; "
                f"write to another table, or remove {file} if this DAG takes the place of that one"
            ) from None


def _announce(asset: Asset, window_of: Callable[[Any], RunWindow], context: Any, result: Any = None) -> None:
    """Updates the asset of the predictions, with the window as its partition."""
    window, event = window_of(context["dag_run"]), context["outlet_events"][asset]
    event.extra = {"uri": result["uri"], "window": [window.start, window.end]}
    if window.key and context["dag_run"].partition_key is None:  # which Airflow adds itself
        event.add_partitions(window.key)
