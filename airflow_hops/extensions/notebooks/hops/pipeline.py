"""The store, artifacts and stages of a pipeline, in a notebook.

``from airflow_hops.extensions.notebooks import pipeline`` works in the notebook of a ``NotebookOperator``, and in
notebooks that ``airflow hops notebook`` opens. An argument that is an artifact may be the role of one of the notebook's
inputs, a reference, or an address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import StatisticsProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import STAGES, find_extension
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.steps.protocol import Output, check_json
from airflow_hops.extensions.notebooks.ml import session, views
from airflow_hops.extensions.notebooks.ml.views import View
from airflow_hops.ml.spark.context import let_workers_import
from airflow_hops.ml.step.context import StepContext, resolve

if TYPE_CHECKING:
    from airflow_hops.core.store import ArtifactStore

Data = Any
"""A pandas DataFrame, or an artifact in any of the forms of :data:`AnyArtifact`."""

AnyArtifact = Artifact | Mapping[str, Any] | str
"""A reference, a reference as XCom holds it, the role of an input, or an address."""

_RESULT_CHARACTERS = 32_000


def inputs() -> dict[str, tuple[Artifact, ...]]:
    """Returns the input artifacts of the operator, by role."""
    return dict(session.current_context().spec.inputs)


def store() -> ArtifactStore:
    """Returns the artifact store of the connection."""
    return session.current_context().store


def artifact(which: AnyArtifact) -> Artifact:
    """Returns an artifact.

    Args:
        which: The role of an input, the address of the artifact's folder in the store, or a reference.

    Raises:
        BadInput: the input does not exist, or the role has several artifacts.
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
    """Returns a local folder with the files of an artifact, after comparing them with its manifest."""
    return store().local(artifact(which))


def frame(which: AnyArtifact, split: str | None = None, *, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns the rows of an artifact, of shape ``[rows, columns]``.

    Args:
        which: An artifact with Parquet files in folders: ``examples``, ``snapshot``, ``predictions``, …; of
            ``statistics``, the sample of the rows.
        split: Folder to read: a split or a table; may be None if there is only one.
        columns: Names of the columns to read; None for all.

    Raises:
        BadInput: the split does not exist, or is None although there are several.
    """
    from airflow_hops.ml.readers import scan

    folder = path(which)
    splits = sorted({str(file.parent.relative_to(folder)) for file in folder.rglob("*.parquet")})
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        raise BadInput(f"{artifact(which).uri}: split is {split!r}; expected one of {splits}")
    files = sorted((folder / split).glob("*.parquet"))
    return scan.table(files, columns).to_pandas()


def statistics(data: Data, split: str | None = None) -> Any:
    """Returns TFDV's statistics of a frame or an artifact; those of a ``statistics`` artifact are read, not computed.

    Args:
        data: A frame, or an artifact.
        split: Split of the artifact.

    Returns:
        ``tensorflow_metadata.proto.v0.statistics_pb2.DatasetFeatureStatisticsList``.

    Raises:
        BadInput: the artifact or split does not exist, or statistics of a column cannot be computed.
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
    """Returns a table of features with their distributions, like Facets Overview, for display in a notebook cell.

    Args:
        data: A frame, or an artifact; may be a ``statistics`` artifact.
        split: Split of the artifact.

    Raises:
        BadInput: as :func:`statistics`.
    """
    from airflow_hops.ml.statistics.summary import summarize

    return views.overview(summarize(statistics(data, split)))


def dive(data: Data, split: str | None = None, *, seed: int = 0) -> View:
    """Returns rows as dots, placed and coloured by columns that the reader selects, like Facets Dive.

    Args:
        data: A frame, or an artifact as :func:`frame` reads it.
        split: Split of the artifact.
        seed: Seed of the sample of 2,000 rows that is drawn if there are more.

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
    **params: object,
) -> Any:
    """Runs a stage in this process, with the inputs and parameters that the stage's operator would pass.

    Stages on Spark use the notebook's session, or start one on this machine.

    Args:
        stage: Name of a registered stage (``"statistics"``, ``"schema"``, ``"evaluate"``), or ``module:function``.
        kind: Kind of the artifact that the stage writes (the operator's ``output_kind``); None if it writes none.
        name: Name to save the artifact under, beside those of the notebook's task; by default the stage's. A second
            call with the same name replaces the artifact.
        inputs: Input artifacts of the stage, by role.
        **params: Parameters of the stage's ``run``.

    Returns:
        The artifact, or the stage's other result.

    Raises:
        BadInput: the stage does not exist, or rejects its inputs.
    """
    spec = session.current_context().spec
    entry = stage if ":" in stage else find_extension(STAGES, stage).value
    name = name or stage.partition(":")[0].rpartition(".")[2]
    producer = replace(spec.producer, task_id=f"{spec.producer.task_id}.{name}")
    output = None if kind is None else Output(store().address(producer, kind), kind)
    values = {role: (artifact(which),) for role, which in inputs.items()}
    described = replace(spec, step=name, entry=entry, params=params, inputs=values, output=output, producer=producer)
    let_workers_import()
    with temporary_folder("step", name) as scratch:
        return resolve(entry)(StepContext(described, scratch), **params)


def result(value: object) -> None:
    """Outputs a small value, which the task pushes as its XCom ``result``; the last call wins.

    Args:
        value: A JSON value of at most 32,000 characters.

    Raises:
        BadInput: the value is not JSON, or is larger.
    """
    from IPython.display import display

    check_json(value, "the notebook's result")
    size = len(json.dumps(value))
    if size > _RESULT_CHARACTERS:
        raise BadInput(f"the notebook's result has {size} characters as JSON, expected {_RESULT_CHARACTERS} at most")
    display({session.RESULT_MIME: value, "text/plain": f"result: {value!r}"}, raw=True)
