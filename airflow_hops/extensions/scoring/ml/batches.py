"""Scores a part of a split: runs a signature of one or two versions on its Arrow batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.target import CLASS, MULTICLASS, OUTPUTS
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.captured.scored import SCORED, as_key
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.models.loaded_models import LoadedModel, model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, fetched
from airflow_hops.ml.readers.joined_types import is_string
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.spark.pools import SplitSummary, StagedFiles
from airflow_hops.ml.transform.batches import TransformPart
from airflow_hops.serving.capture.rows import captured_table

Array = np.ndarray
VERSION = "version"
"""Column of the version that scored a row."""
_loaded: dict[tuple[str, str], SignatureModel] = {}


@dataclass(frozen=True)
class ScoredBy:
    """A version of a deployed model.

    Attributes:
        percent: Its share of the keys.
    """

    model: Artifact
    version: int
    percent: int = 100


@dataclass(frozen=True)
class ScoringPlan:
    """Plan that every part gets.

    Attributes:
        model: The model's artifact.
        store: Store from which executors fetch the model.
        folder: Folder to write to, with a subfolder per split.
        columns: Columns of the examples that are copied beside the predictions.
        batch_rows: Rows per call of the model.
        live: The champion, and the canary, if any; empty for a model that is not asked as it serves.
        shadow: Whether the canary scores all rows beside the champion, and its answers are only captured.
        model_name: Name of the model, if it was deployed.
        key: Column of the key.
        captured: Folder for the captured rows, ``v<version>/<split>/``; None to capture nothing.
        captured_at: Their time, that of the look at the versions that serve.
        window: Name of the window, which is part of the captured rows' IDs.
        classes: Names of the classes, by output with the probabilities of several.
    """

    model: Artifact
    store: ArtifactStore
    signature: str
    folder: OutputFolder
    columns: tuple[str, ...]
    batch_rows: int
    live: tuple[ScoredBy, ...] = ()
    shadow: bool = False
    model_name: str | None = None
    key: str | None = None
    captured: OutputFolder | None = None
    captured_at: datetime | None = None
    window: str = ""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def canary(self) -> ScoredBy | None:
        """Returns the canary, if any."""
        return self.live[1] if len(self.live) > 1 else None


def canary_side(keys: pa.Array, fingerprint: str, percent: int) -> Array:
    """Returns which keys, texts, a canary scores, bools ``[rows]``.

    A key stays on its side while the share is the same, and on the canary's when it grows; another canary gets other
    keys. ``fingerprint`` is the canary's.
    """
    salted, limit = hashlib.blake2b(digest_size=8, key=fingerprint.encode()[-64:]), 2**64 * percent // 100

    def digest(key: bytes) -> bytes:
        each = salted.copy()
        each.update(key)
        return each.digest()

    digests = np.frombuffer(b"".join(map(digest, keys.cast(pa.binary()).to_pylist())), ">u8")
    return digests < np.uint64(limit) if limit < 2**64 else np.ones(len(keys), bool)


class SignatureModel:
    """Signature of a model of any format whose inputs are columns of the examples.

    Attributes:
        inputs: TensorFlow name of the dtype, by input.
        outputs: NumPy dtype, and whether a row has a single value, by output.

    Raises:
        BadInput: the model does not load, has no such signature, or an input's shape is neither ``[batch]`` nor
            ``[batch, width]``.
    """

    def __init__(self, path: Path, signature: str, *, threads: int = 0) -> None:
        self._model = LoadedModel(path, signature, threads=threads)
        for name, spec in self._model.inputs.items():
            if spec.shape is None or len(spec.shape) not in (1, 2) or spec.shape[0] is not None:
                raise BadInput(
                    f"{path}: input {name!r} of signature {signature!r} has shape {spec.shape}; expected [None] or "
                    "[None, width], to take a column of the examples"
                )
        self.inputs: dict[str, str] = {name: spec.dtype for name, spec in self._model.inputs.items()}
        self.outputs: dict[str, tuple[Any, bool]] = {
            name: (_wide(spec.numpy), spec.shape is not None and (len(spec.shape) == 1 or spec.shape[1:] == (1,)))
            for name, spec in self._model.outputs.items()
        }

    def check(self, file: File) -> None:
        """Compares a file's columns with the inputs.

        Raises:
            BadInput: a column is missing or has another type.
        """
        schema = scan.schema(file)
        # If the signature leaves the width of lists open, the first row determines it.
        report = {n: s.column for n, s in self._model.inputs.items() if "[" in s.column or not _is_list(schema, n)}
        check_columns(file, report, of="the model's signature")

    def arrays(self, batch: pa.RecordBatch, where: str) -> dict[str, Array]:
        """Returns the inputs, arrays of shape ``[rows, ...]``. Raises BadInput if a value is none of its input."""
        return {name: self._array(name, batch, where) for name in self.inputs}

    def answer(self, arrays: dict[str, Array], rows: int, where: str) -> dict[str, Array]:
        """Runs the signature on inputs of :meth:`arrays`; returns arrays of shape ``[rows, ...]`` by output.

        Half floats become float32, which holds them exactly.

        Raises:
            BadInput: the model fails on the values, or an output does not have one entry per row.
        """
        try:
            outputs = self._model.run(arrays)
        except BadInput as error:
            raise BadInput(f"{where}: the model fails on a batch of {rows} rows: {error}") from None
        for name, values in outputs.items():
            if not values.ndim or len(values) != rows:
                raise BadInput(
                    f"{where}: output {name!r} has shape {list(values.shape)} for a batch of {rows} rows; "
                    f"expected [{rows}, ...]"
                )
        return {name: values.astype(_wide(values.dtype), copy=False) for name, values in outputs.items()}

    def _array(self, name: str, batch: pa.RecordBatch, where: str) -> Array:
        spec = self._model.inputs[name]
        column = batch.column(batch.schema.get_field_index(name))
        dtype = spec.column
        if is_list(column.type) and "[" not in dtype:
            lengths = pc.list_value_length(column).drop_null()
            if not len(lengths) or not lengths[0].as_py():
                raise BadInput(
                    f"{where}: column {name!r} has {'an empty list first' if len(lengths) else 'no list'} in "
                    f"{batch.num_rows} rows, and the signature leaves the lists' length open; export the model with "
                    "an input [None, length], or leave out such rows"
                )
            dtype += f"[{lengths[0].as_py()}]"
        values: Array = dense_arrays(pa.RecordBatch.from_arrays([column], [name]), {name: dtype}, where)[name]
        if spec.shape is not None and len(spec.shape) == 2:
            return values.reshape(len(values), -1)
        return values[:, 0] if values.shape[1:] == (1,) else values


@dataclass
class ScoreSummary(SplitSummary):
    """Summary of a part of scores.

    Attributes:
        by_version: Number of rows by version.
        failed: Number of rows on which the canary failed.
        failure: Its first failure.
        captured: Files of captured rows that were written to a remote store, as fields of their entries.
        digests: Digests of captured rows without their time, by the file's path.
    """

    by_version: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    failure: str = ""
    captured: list[Mapping[str, Any]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def score_part(plan: ScoringPlan, part: TransformPart) -> str:
    """Scores a part; returns its :class:`ScoreSummary` as JSON."""
    summary = ScoreSummary(part.split)
    name = f"part-{part.number:05d}.parquet"
    where = f"split {part.split!r} ({part.file})"
    with summary.recording_errors(plan.folder.path):
        models = [_load(plan, each.model) for each in plan.live] or [_load(plan, plan.model)]
        columns = dict.fromkeys([*(each for model in models for each in model.inputs), *plan.columns])
        columns |= {plan.key: None} if plan.key else {}
        captured, digests = plan.captured or OutputFolder(""), dict[str, Any]()
        with (
            fetched(part.file) as path,
            plan.folder.writing(summary.uploaded) as folder,
            captured.writing(summary.captured) as captured_folder,
            StagedFiles() as files,
        ):
            for batch in scan.batches(path, [*columns], rows=plan.batch_rows, row_groups=part.row_groups):
                keys = key_texts(plan.key, batch, where) if plan.key else None
                answers = _answers(plan, models, batch, keys, where, summary)
                for answer in answers:
                    version = answer.by.version
                    summary.by_version[str(version)] = summary.by_version.get(str(version), 0) + len(answer.rows)
                    if plan.captured is not None:
                        ids = _ids(plan, keys, batch.num_rows, f"{part.split}-{part.number}", summary.rows)
                        rows, target = answer.captured(plan, batch, ids), f"v{version}/{part.split}/{name}"
                        files.write_rows(captured_folder / target, rows)
                        digests.setdefault(target, hashlib.sha256()).update(_content(rows))
                handed_on = answers[:1] if plan.shadow else answers
                scored = _in_order([each.scored(plan, batch) for each in handed_on])
                files.write_rows(folder / part.split / name, scored)
                for answer in handed_on:
                    summary.count_not_finite(answer.outputs)
                summary.rows += batch.num_rows
        summary.digests = {target: each.hexdigest()[:16] for target, each in digests.items()}
    return summary.to_json()


@dataclass(frozen=True)
class _Answer:
    """Rows of a batch that one version scored.

    Attributes:
        rows: Their numbers in the batch, int64 ``[rows]``.
        inputs: Arrays of shape ``[rows, ...]``.
        outputs: Likewise.
    """

    by: ScoredBy
    rows: Array
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def scored(self, plan: ScoringPlan, batch: pa.RecordBatch) -> tuple[Array, pa.RecordBatch]:
        """Returns the numbers of the rows, and the rows as they are handed on."""
        columns = {name: self._own(batch.column(batch.schema.get_field_index(name))) for name in plan.columns}
        columns |= {name: _as_column(values) for name, values in self.outputs.items()}
        columns |= {class_column(name): _likeliest(self.outputs[name], names) for name, names in plan.classes.items()}
        if plan.live:
            columns[VERSION] = pa.array(np.full(len(self.rows), self.by.version, np.int64))
        return self.rows, pa.RecordBatch.from_arrays([*columns.values()], [*columns])

    def captured(self, plan: ScoringPlan, batch: pa.RecordBatch, ids: pa.Array) -> pa.RecordBatch:
        """Returns the rows as a model server captures them; ``ids`` are of the batch's rows."""
        facts = {
            "request_id": self._own(ids),
            "row": 0,
            "model": plan.model_name,
            "version": self.by.version,
            "signature": plan.signature,
            "api": SCORED,
            "captured_at": plan.captured_at,
            "latency_ms": None,
        }
        columns = {
            f"input.{name}": _like(_as_column(values), batch.schema.field(name).type)
            for name, values in sorted(self.inputs.items())
        }
        columns |= {f"output.{name}": _as_column(values) for name, values in sorted(self.outputs.items())}
        return captured_table(len(self.rows), facts, columns).combine_chunks().to_batches()[0]

    def _own(self, column: pa.Array) -> pa.Array:
        """Returns the version's rows of a column of the batch."""
        return column if len(self.rows) == len(column) else column.take(pa.array(self.rows))


def _answers(
    plan: ScoringPlan,
    models: Sequence[SignatureModel],
    batch: pa.RecordBatch,
    keys: pa.Array | None,
    where: str,
    summary: ScoreSummary,
) -> list[_Answer]:
    """Returns the champion's answers, then the canary's; where the canary fails, the champion answers.

    Raises:
        BadInput: the champion fails, the values do not fit its inputs, or a key is missing where it decides.
    """
    everything = np.arange(batch.num_rows)
    live = plan.live or (ScoredBy(plan.model, 0),)
    if plan.canary is None:
        return [_answer(live[0], models[0], batch, everything, where)]
    if plan.shadow:
        side = np.ones(batch.num_rows, bool)
    else:
        assert keys is not None
        if keys.null_count:
            raise BadInput(
                f"{where}: column {plan.key!r}, the key, is null in {keys.null_count} of {batch.num_rows} rows; the "
                "canary gets its share of the rows by it: leave these rows out in prepare"
            )
        side = canary_side(keys, plan.canary.model.fingerprint, plan.canary.percent)
    tried = []
    try:
        if side.any():
            tried = [_answer(plan.canary, models[1], batch, everything[side], where)]
    except BadInput as error:
        summary.failed += int(side.sum())
        summary.failure = summary.failure or str(error)
        side = np.zeros(batch.num_rows, bool)
    rest = everything if plan.shadow else everything[~side]
    own = [_answer(live[0], models[0], batch, rest, where)] if len(rest) else []
    return [*own, *tried]


def _answer(by: ScoredBy, model: SignatureModel, batch: pa.RecordBatch, rows: Array, where: str) -> _Answer:
    """Returns a version's answer to rows of a batch."""
    part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
    inputs = model.arrays(part, where)
    return _Answer(by, rows, inputs, model.answer(inputs, part.num_rows, where))


def _in_order(parts: Sequence[tuple[Array, pa.RecordBatch]]) -> pa.RecordBatch:
    """Returns the rows of all parts, in the batch's order."""
    if len(parts) == 1:
        return parts[0][1]
    table = pa.Table.from_batches([batch for _, batch in parts])
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    return table.take(pa.array(order)).combine_chunks().to_batches()[0]


def key_texts(key: str, batch: pa.RecordBatch, where: str) -> pa.Array:
    """Returns the keys of a batch as texts. Raises BadInput if they have none."""
    column = batch.column(batch.schema.get_field_index(key))
    try:
        return as_key(column).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadInput(
            f"{where}: column {key!r}, the key, is {column.type}, which does not become text ({error}); make it an "
            "integer or a string in prepare"
        ) from None


def _ids(plan: ScoringPlan, keys: pa.Array | None, rows: int, part: str, first: int) -> pa.Array:
    """Returns the IDs of a batch's rows, ``<key>@<window>``; without a key, its place is that of the row's number."""
    if keys is None or keys.null_count:
        names = pa.array([f"{part}-{row}" for row in range(first, first + rows)], pa.string())
        keys = names if keys is None else pc.coalesce(keys, names)
    return pc.binary_join_element_wise(keys, plan.window, "@")


def _content(rows: pa.RecordBatch) -> memoryview:
    """Returns the bytes of captured rows without their time."""
    columns = {name: rows.column(index) for index, name in enumerate(rows.schema.names) if name != "captured_at"}
    return memoryview(pa.RecordBatch.from_arrays([*columns.values()], [*columns]).serialize())


def _load(plan: ScoringPlan, model: Artifact) -> SignatureModel:
    """Returns a model of the plan, which a process loads once."""
    key = (model.fingerprint, plan.signature)
    if key not in _loaded:
        wanted = {(each.model.fingerprint, plan.signature) for each in plan.live}
        for other in _loaded.keys() - wanted:
            del _loaded[other]
        _loaded[key] = SignatureModel(model_folder(plan.store, model), plan.signature, threads=1)
    return _loaded[key]


def empty_predictions(model: SignatureModel, plan: ScoringPlan, file: File) -> Any:
    """Returns an empty table with the columns of the predictions."""
    schema = scan.schema(file)
    types = {name: schema.field(name).type for name in plan.columns}
    for name, (dtype, scalar) in model.outputs.items():
        item = pa.binary() if dtype.kind == "O" else pa.from_numpy_dtype(dtype)
        types[name] = item if scalar else pa.list_(item)
    types |= {class_column(name): pa.string() for name in plan.classes} | ({VERSION: pa.int64()} if plan.live else {})
    return pa.schema([*types.items()]).empty_table()


def class_column(output: str) -> str:
    """Returns the column with the likeliest of several classes, for the output with their probabilities."""
    return output.removesuffix(OUTPUTS[MULTICLASS]) + CLASS


def _likeliest(values: Array, names: Sequence[str]) -> pa.Array:
    """Returns the name of each row's likeliest class; null if one of its probabilities is NaN.

    Raises:
        BadInput: there are more or fewer probabilities than names.
    """
    if values.shape[1:] != (len(names),):
        raise BadInput(f"the model has probabilities of the shape {values.shape}; expected {len(names)} a row: {names}")
    return pa.array(names, pa.string()).take(pa.array(values.argmax(axis=1), mask=np.isnan(values).any(axis=1)))


def _as_column(values: Array) -> Any:
    """Converts an output to a column: a scalar per row if it has a single value, else a list."""
    if values.ndim == 1:
        return pa.array(values, type=pa.binary()) if values.dtype == object else pa.array(values)
    if values.ndim == 2 and values.shape[1] == 1:
        return _as_column(values[:, 0])
    width = values.shape[1]
    items = np.ascontiguousarray(values).reshape(-1, *values.shape[2:])
    offsets: Any = np.arange(len(values) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), _as_column(items))


def _like(column: pa.Array, source: pa.DataType) -> pa.Array:
    """Returns strings for bytes that come from a column of strings, also within lists."""
    if is_list(source) and pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, _like(column.values, source.value_type))
    return column.cast(pa.string()) if is_string(source) and pa.types.is_binary(column.type) else column


def _wide(dtype: np.dtype) -> np.dtype:
    """Returns float32 for float16 and bfloat16, of which Arrow has no columns, and other types as they are."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def _is_list(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and is_list(schema.field(name).type)
