"""Plans a run over captured rows: the files of its window, and the champion's training data to compare them with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from airflow_hops.core.errors import BadInput, ModelNotFound
from airflow_hops.core.models.model_record import ServedVersion
from airflow_hops.core.models.model_records import read_record
from airflow_hops.core.schema.history import schema_in_force
from airflow_hops.core.skew import SkewOptions, SkewReference
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import exclusive
from airflow_hops.core.store.task_state import task_state
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.step.context import StepContext

# The cursor file of a task has two parts: `until`, the name up to which rows were compared, and for each run its
# window. A run's first try writes its window (from `until` to the newest file) before it reads a row; tries after it
# read the same. commit() moves `until` after the artifact is committed; a kill in between makes the next run begin at
# the old position, so rows may be compared twice, but none are skipped. One run of a task compares at a time.

_RUNS_KEPT = 100
_MOST_WAIT_S = 600.0


@dataclass(frozen=True)
class ComparisonPlan:
    """Captured rows that a run compares.

    Attributes:
        names: Names of all captured files, oldest first.
        window: Names of those that this run compares.
        champion: The version that the rows are compared with.
        trained: Its training data.
        cursor: Address of the file that holds the position up to which rows have been compared; None for a snapshot,
            which is compared as a whole. Each task has its own, which names its models for the garbage collection.
        until: Name of the file at which the window ends; None without files.
    """

    requests: CapturedRequests
    names: Sequence[str]
    window: Sequence[str]
    champion: ServedVersion
    trained: Trained
    cursor: str | None = None
    until: str | None = None

    def commit(self) -> None:
        """Moves the cursor behind the window, whose artifact is committed: the next run begins there."""
        if self.cursor is not None:
            commit_window(self.trained.store, self.cursor, self.until)


def one_run(context: StepContext) -> AbstractContextManager[None]:
    """Holds the task's position in the captured requests: runs at the same time would compare the same rows.

    Raises:
        LockHeld: another run has held it for ten minutes.
    """
    if context.has_input("captured"):
        return nullcontext()
    producer = context.spec.producer
    folder = task_state(context.store, producer, "comparing")
    return exclusive(context.store, folder, f"the comparison of task {producer.task_id!r}", _MOST_WAIT_S)


def plan_run(context: StepContext, options: SkewOptions) -> ComparisonPlan:
    """Plans a run over the input ``captured``, a snapshot, or over the requests captured since the last run.

    A run's window is fixed when the run first asks for it: a retry or rerun sees the same rows.

    Raises:
        BadInput: no version serves, its statistics were deleted, or no files can be read.
        HopsError: the store of captured requests does not answer.
    """
    store, name = context.store, str(options.model_name)
    requests = captured_requests(context, name)
    champion = read_record(store, name).champion
    if champion is None or not champion.statistics or not champion.schema:
        raise ModelNotFound(name, "champion").with_text(
            f"no champion of model {name!r} with statistics and schema; deploy one first"
        )
    stored = store.manifest(champion.statistics).reference(champion.statistics)
    origin = SkewReference(stored.uri, stored.fingerprint, champion.schema, name, champion.version)
    schema = schema_in_force(store, champion.schema)
    trained = Trained.read(store, options.split, champion.model, stored, schema, origin)
    names = requests.names()
    if context.has_input("captured"):
        return ComparisonPlan(requests, names, names, champion, trained)
    window, cursor, until = window_of_run(context, name, names)
    return ComparisonPlan(requests, names, window, champion, trained, cursor, until)


def window_of_run(context: StepContext, name: str, names: Sequence[str]) -> tuple[Sequence[str], str, str | None]:
    """Returns the files of a model that a run compares, the cursor of its task, and the name at which they end.

    ``names`` are those of all captured files.
    """
    store, producer = context.store, context.spec.producer
    cursor = task_state(store, producer, "captured.json")
    state = _read_cursor(store, cursor)
    if producer.run_id not in state["runs"]:
        window = {"after": state["until"], "until": max(names, default=state["until"])}
        state["runs"] = dict([*state["runs"].items(), (producer.run_id, window)][-_RUNS_KEPT:])
        state["models"] = sorted({*state["models"], name})
        store.write_text(cursor, json.dumps(state, indent=1))
    after, until = (state["runs"][producer.run_id][bound] for bound in ("after", "until"))
    return [file for file in names if (after or "") < file <= (until or "")], cursor, until


def commit_window(store: ArtifactStore, cursor: str, until: str | None) -> None:
    """Moves a cursor behind a window that was compared, whose last file is ``until``; None without files."""
    if until is not None:
        state = _read_cursor(store, cursor)
        if state["until"] is None or until > state["until"]:
            state["until"] = until
            store.write_text(cursor, json.dumps(state, indent=1))


def _read_cursor(store: ArtifactStore, uri: str) -> dict[str, Any]:
    try:
        state = store.read_json(uri)
        return {"until": state["until"], "runs": dict(state["runs"]), "models": state.get("models", [])}
    except FileNotFoundError:
        return {"until": None, "runs": {}, "models": []}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{uri}: not a cursor ({type(error).__name__}: {error}); delete it to look at all captured rows"
        ) from error
