"""Plans a run over captured rows: the files of its window, and the champion's training data to compare them with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from airflow_hops.core.errors import BadInput, ModelNotFound, UnreadableFile
from airflow_hops.core.models.model_record import ServedVersion, read_record
from airflow_hops.core.schema.history import schema_in_force
from airflow_hops.core.skew import ComparedFiles, NameRange, SkewOptions, SkewReference
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.plans import Plans
from airflow_hops.core.store.task_state import task_state
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.captured.snapshot import captured_requests
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.step.context import StepContext

_RUNS_KEPT = 100


@dataclass(frozen=True)
class CapturedWindow:
    """Captured files that a run compares.

    Attributes:
        names: Their names, oldest first.
        store: Artifact store of the task's :class:`ComparedFiles`; None for a snapshot, which is compared as a whole.
        uri: Address of these.
        until: Name of the file at which the window ends; None without files.
    """

    names: Sequence[str]
    store: ArtifactStore | None = None
    uri: str = ""
    until: str | None = None

    def commit(self) -> None:
        """Records, once the artifact is committed, that the files were compared: the next run begins behind them.

        A kill before that makes the next run compare them again, but skips none.
        """
        if self.store is not None and self.until is not None:
            compared = _compared_files(self.store, self.uri)
            if compared.until is None or self.until > compared.until:
                self.store.write_text(self.uri, json.dumps({**compared.to_dict(), "until": self.until}, indent=1))


@dataclass(frozen=True)
class ComparisonPlan:
    """Captured rows that a run compares.

    Attributes:
        names: Names of all captured files, oldest first.
        window: Those that this run compares.
        champion: The version that the rows are compared with.
        trained: Its training data.
    """

    requests: CapturedRequests
    names: Sequence[str]
    window: CapturedWindow
    champion: ServedVersion
    trained: Trained


def one_run(context: StepContext) -> AbstractContextManager[None]:
    """Holds the task's position in the captured requests: runs at the same time would compare the same rows.

    Raises:
        LockHeld: another run has held it for ten minutes.
    """
    if context.has_input("captured"):
        return nullcontext()
    return Plans(context.store, task_state(context.store, context.spec.producer, "comparing")).held()


def plan_run(context: StepContext, options: SkewOptions) -> ComparisonPlan:
    """Plans a run over the input ``captured``, a snapshot, or over the requests captured since the last run.

    A run's window is fixed when the run first asks for it: a retry or rerun sees the same rows.

    Raises:
        BadInput: no version serves, its statistics were deleted, or no files can be read.
        HopsError: the store of captured requests does not answer.
    """
    store, name = context.store, str(options.model_name)
    requests = captured_requests(context, name)
    champion, trained = trained_champion(store, name, options.split)
    names = requests.names()
    return ComparisonPlan(requests, names, window_of_run(context, name, names), champion, trained)


def trained_champion(store: ArtifactStore, name: str, split: str) -> tuple[ServedVersion, Trained]:
    """Returns the champion of a model with its training data, of which rows are compared with ``split``.

    Raises:
        BadInput: no version serves, or its statistics were deleted.
    """
    champion = read_record(store, name).champion
    if champion is None or not champion.statistics or not champion.schema:
        raise ModelNotFound(name, "champion").with_text(
            f"no champion of model {name!r} with statistics and schema; deploy one first"
        )
    stored = store.manifest(champion.statistics).reference(champion.statistics)
    origin = SkewReference(stored.uri, stored.fingerprint, champion.schema, name, champion.version)
    schema = schema_in_force(store, champion.schema)
    return champion, Trained.read(store, split, champion.model, stored, schema, origin)


def window_of_run(context: StepContext, model: str, names: Sequence[str]) -> CapturedWindow:
    """Returns the files of a model that a run compares, of the ``names`` of all: those after the last run's.

    A run's first try records its window before it reads a row, so that its other tries compare the same files.

    Raises:
        BadInput: the run has ended so long ago that its window is not remembered.
    """
    if context.has_input("captured"):
        return CapturedWindow(names)
    store, run_id = context.store, context.spec.producer.run_id
    uri = task_state(store, context.spec.producer, "captured.json")
    compared = _compared_files(store, uri)
    if run_id not in compared.runs:
        is_full = len(compared.runs) == _RUNS_KEPT
        if is_full and (output := context.spec.output) is not None and store.exists(output.uri):
            raise BadInput(
                f"run {run_id!r}: the captured files that it has compared are not remembered after {_RUNS_KEPT} later "
                f"runs, so that it would compare those of the next run; {output.uri} stays as it is"
            )
        runs = {**compared.runs, run_id: NameRange(compared.until, max(names, default=compared.until))}
        models = tuple(sorted({*compared.models, model}))
        compared = ComparedFiles(compared.until, dict([*runs.items()][-_RUNS_KEPT:]), models)
        store.write_text(uri, json.dumps(compared.to_dict(), indent=1))
    window = compared.runs[run_id]
    after, until = window.after or "", window.until or ""
    return CapturedWindow([name for name in names if after < name <= until], store, uri, window.until)


def _compared_files(store: ArtifactStore, uri: str) -> ComparedFiles:
    try:
        return ComparedFiles.from_dict({"models": [], **store.read_json(uri)})
    except FileNotFoundError:
        return ComparedFiles(None, {}, ())
    except (ValueError, TypeError) as error:
        raise UnreadableFile(
            uri, f": not a cursor ({type(error).__name__}: {error}); delete it to look at all captured rows"
        ) from error
