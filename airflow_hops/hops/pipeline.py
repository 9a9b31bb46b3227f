"""The store, artifacts and stages of a pipeline, in a notebook: ``from airflow_hops.hops import pipeline``.

It works in the notebook of a :class:`~airflow_hops.operators.notebook.NotebookOperator`, and in those that
``airflow hops notebook`` opens. Where an artifact is asked for, the role of one of the notebook's inputs will do, as
will its reference, or its address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.properties import StatisticsProperties
from airflow_hops.core.contract.protocol import Output, check_json
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.spark.context import let_workers_import
from airflow_hops.ml.stages.notebook import session, views
from airflow_hops.ml.stages.notebook.views import View
from airflow_hops.ml.step.context import StepContext, resolve

if TYPE_CHECKING:
    from airflow_hops.core.store import ArtifactStore

Data = Any
"""A pandas DataFrame, or an artifact in any of the forms of :data:`AnyArtifact`."""

AnyArtifact = Artifact | Mapping[str, Any] | str
"""A reference, one as XCom has it, the role of an input, or an address."""

_RESULT_CHARACTERS = 32_000


def inputs() -> dict[str, tuple[Artifact, ...]]:
    """The artifacts that the operator was given, by role."""
    return dict(session.current_context().spec.inputs)


def store() -> ArtifactStore:
    """The artifact store of the connection."""
    return session.current_context().store


def artifact(which: AnyArtifact) -> Artifact:
    """An artifact.

    Args:
        which: The role of an input, an address in the store (of its folder), or a reference.

    Raises:
        BadInput: there is none, or a role has several.
    """
    if isinstance(which, Artifact):
        return which
    if isinstance(which, Mapping):
        return Artifact.from_dict(which)
    context = session.current_context()
    if which in context.spec.inputs:
        return context.input(which)
    if "/" not in which:
        raise BadInput(f"there is no input {which!r} (there are: {', '.join(context.spec.inputs) or 'none'})")
    uri = which if "://" in which else f"{context.store.root}/{which}"
    return context.store.manifest(uri).reference(uri)


def path(which: AnyArtifact) -> Path:
    """A local folder with the files of an artifact, which are compared with its manifest."""
    return store().local(artifact(which))


def frame(which: AnyArtifact, split: str | None = None, *, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of an artifact.

    Args:
        which: An artifact that has Parquet files in folders: ``examples``, ``snapshot``, ``predictions``, ….
        split: The folder: a split, or a table; None if there is but one.
        columns: Names of the columns to read; None for all.

    Returns:
        Shape ``[rows, columns]``.

    Raises:
        BadInput: there is no such split, or there are several and none is given.
    """
    import pyarrow.parquet as pq

    folder = path(which)
    splits = sorted({str(file.parent.relative_to(folder)) for file in folder.rglob("*.parquet")})
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        raise BadInput(f"{artifact(which).uri}: split is {split!r}; expected one of {splits}")
    files = sorted((folder / split).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file, columns=columns) for file in files]).to_pandas()


def statistics(data: Data, split: str | None = None) -> Any:
    """TFDV's statistics of a frame or an artifact; those that a ``statistics`` artifact has are read.

    Args:
        data: A frame, or an artifact.
        split: Of the artifact.

    Returns:
        ``tensorflow_metadata.proto.v0.statistics_pb2.DatasetFeatureStatisticsList``.

    Raises:
        BadInput: there is no such artifact or split, or a column has no statistics.
    """
    from airflow_hops.ml.statistics import STATISTICS_FILE, generate_statistics, load_statistics

    if not isinstance(data, pd.DataFrame):
        results = artifact(data)
        if results.kind == "statistics":
            splits = StatisticsProperties.of(results).splits
            split = split or splits[0]
            if split not in splits:
                raise BadInput(f"{results.uri}: split is {split!r}; expected one of {splits}")
            return load_statistics(path(results) / split / STATISTICS_FILE)
        data = frame(results, split)
    try:
        table = pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadInput(f"the frame's columns are not of one type each: {error}") from error
    return generate_statistics(table)


def overview(data: Data, split: str | None = None) -> View:
    """A table of features with their distributions, as Facets Overview; a cell shows it as its last expression.

    Args:
        data: A frame, or an artifact, of statistics, too.
        split: Of the artifact.

    Raises:
        BadInput: as :func:`statistics`.
    """
    from airflow_hops.ml.statistics.summary import summarize

    return views.overview(summarize(statistics(data, split)))


def dive(data: Data, split: str | None = None, *, seed: int = 0) -> View:
    """Rows as dots, placed and coloured by columns that one chooses, as Facets Dive.

    Args:
        data: A frame, or an artifact with rows.
        split: Of the artifact.
        seed: Of the sample of 2,000 rows that is drawn of more.

    Raises:
        BadInput: as :func:`frame`.
    """
    rows = data if isinstance(data, pd.DataFrame) else frame(data, split)
    shown = rows.sample(views.MAX_DOTS, random_state=seed) if len(rows) > views.MAX_DOTS else rows
    plain = json.loads(shown.to_json(orient="split", date_format="iso", default_handler=str))
    return views.dive(
        dict(zip(map(str, shown.columns), map(list, zip(*plain["data"], strict=True)), strict=False)), len(rows)
    )


def step(
    stage: str,
    *,
    kind: str | None = None,
    name: str | None = None,
    inputs: Mapping[str, AnyArtifact] = {},
    **params: Any,
) -> Any:
    """Runs a stage in this process, with what the operator of that stage hands to it.

    Stages that run on Spark take the session of the notebook, or start one on this machine.

    Args:
        stage: A module of :mod:`airflow_hops.ml.stages` (``"statistics"``, ``"schema"``, ``"evaluate"``), or
            ``module:function``.
        kind: Kind of the artifact that it makes, the operator's ``output_kind``; None if it makes none.
        name: What the artifact is kept under, beside those of the notebook's task; by default the stage. The same
            name again replaces it.
        inputs: Artifacts by role, as the stage asks for them.
        **params: Of the stage's ``run``.

    Returns:
        The artifact, or what else the stage returns.

    Raises:
        BadInput: there is no such stage, or it cannot use what it was given.
    """
    spec = session.current_context().spec
    entry = stage if ":" in stage else f"airflow_hops.ml.stages.{stage}:run"
    name = name or stage.partition(":")[0].rpartition(".")[2]
    producer = replace(spec.producer, task_id=f"{spec.producer.task_id}.{name}")
    output = None if kind is None else Output(store().address(producer, kind), kind)
    values = {role: (artifact(which),) for role, which in inputs.items()}
    described = replace(spec, step=name, entry=entry, params=params, inputs=values, output=output, producer=producer)
    let_workers_import()
    with temporary_folder("step", name) as scratch:
        return resolve(entry)(StepContext(described, scratch), **params)


def result(value: Any) -> None:
    """Leaves a small value, which the task pushes as its XCom ``result``; the last one counts.

    Args:
        value: A JSON value of at most 32,000 characters.

    Raises:
        BadInput: it is none, or is larger.
    """
    from IPython.display import display

    check_json(value, "the notebook's result")
    size = len(json.dumps(value))
    if size > _RESULT_CHARACTERS:
        raise BadInput(f"the notebook's result has {size} characters as JSON, expected {_RESULT_CHARACTERS} at most")
    display({session.RESULT_MIME: value, "text/plain": f"result: {value!r}"}, raw=True)
