"""Scores all rows of examples in Spark's executors, with a trained model or the versions of a deployed one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, FileEntry, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import MULTICLASS, OUTPUTS
from airflow_hops.core.errors import BadInput, HopsError, InvalidArgument, MissingColumn, ModelNotFound
from airflow_hops.core.models.model_record import deployed_model, read_record
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.scoring.core import PredictionsProperties
from airflow_hops.extensions.scoring.ml.batches import (
    VERSION,
    ScoredBy,
    ScoreSummary,
    ScoringPlan,
    SignatureModel,
    class_column,
    empty_predictions,
    score_part,
)
from airflow_hops.extensions.scoring.ml.captured import ScoredWindow
from airflow_hops.ml.metrics.scoring import BATCH_BLOBS, BATCH_ROWS
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder
from airflow_hops.ml.spark.pools import (
    Pool,
    SplitSummary,
    count_rows,
    remove_leftovers,
    run_parts,
    step_pool,
    uploaded_files,
)
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.transform.batches import plan_parts

log = logging.getLogger(__name__)


def run(
    context: StepContext,
    *,
    model_name: str | None = None,
    version: int | str | None = None,
    shadow: bool = False,
    signature: str = "serving_default",
    splits: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    batch_rows: int | None = None,
) -> Artifact:
    """Writes the artifact ``predictions``.

    Parameters are those of ``ScoreOperator``. Inputs are ``examples`` and, unless ``model_name`` is set,
    ``model``.

    Raises:
        BadInput: a value is invalid, model and examples do not match, or the model does not exist.
        HopsError: Spark failed.
    """
    _check_values(splits, columns)
    source, captured_at = ExamplesProperties.of(context.input("examples")), datetime.now(UTC)
    window = ScoredWindow.of(context.store, model_name or "", context.spec.producer, source.window)
    live: tuple[ScoredBy, ...] = ()
    if model_name is None:
        model, number = context.input("model"), None
    elif version is None and not ServerAddress.of(context.spec.services).has_process:
        live = _live(context.store, model_name, shadow=shadow, key=source.key)
        model, number = live[0].model, live[0].version
    else:
        model, number = deployed_model(context.store, model_name, version or "champion")
    if shadow and not live:
        raise BadInput(
            "shadow is True, but only versions that score tables have a shadow: give model_name without a version, and "
            "a connection of the kind 'batch'"
        )
    folder_of_model = model_folder(context.store, model)
    others = {"canary": live[1].model} if len(live) > 1 else {}
    with (
        step_pool(context, "local[*]") as pool,
        _capture_folder(context, pool, window) if live else contextlib.nullcontext() as captures,
        context.output(model=model, **others) as writer,
    ):
        folders = _folders(context)
        is_empty = not folders and context.input("examples").metrics.get("rows") == 0
        files = {} if is_empty else pool.splits(context, "examples", splits or source.splits or folders)
        loaded = SignatureModel(folder_of_model, signature)
        retained = tuple(columns) if columns is not None else tuple(filter(None, [source.key]))
        trained = ModelProperties.of(context.store.manifest(model.uri))
        classes = _classes(trained, loaded)
        labels = [class_column(output) for output in classes]
        _check(loaded, files, retained, [*((VERSION,) if live else ()), *(set(labels) - loaded.outputs.keys())])
        for other in live[1:]:
            canary = SignatureModel(model_folder(context.store, other.model), signature)
            _check_canary(canary if shadow else loaded, canary, other, files)
        context.progress(0.1, f"{signature} of {model.uri}: {len(loaded.inputs)} inputs to {', '.join(loaded.outputs)}")
        first = [scan.schema(those[0]) for those in files.values()][:1]
        has_bytes = any(pa.types.is_binary(field.type) for schema in first for field in schema)
        plan = ScoringPlan(
            model=model,
            store=context.store,
            signature=signature,
            folder=pool.folder(context, writer),
            columns=retained,
            batch_rows=batch_rows or (BATCH_BLOBS if has_bytes else BATCH_ROWS),
            live=live,
            shadow=shadow,
            model_name=model_name,
            key=source.key if live else None,
            captured=captures,
            captured_at=captured_at,
            window=window.name,
            classes=classes,
        )
        parts = plan_parts([(split, file) for split, those in files.items() for file in those])
        summaries = run_parts(pool, score_part, plan, parts, ScoreSummary, context.progress)
        writer.add(uploaded_files(summaries))
        counts = count_rows(files, summaries) or {name: RowCounts(0, 0) for name in source.splits}
        for split, those in files.items():
            if not counts[split].rows_out:
                log.warning("split %r of %s has no rows: its predictions have none", split, window.name)
                (writer.path / split).mkdir(parents=True, exist_ok=True)
                write_parquet(empty_predictions(loaded, plan, those[0]), writer.path / split / "part-00000.parquet")
            remove_leftovers(writer.path / split)
        scored = _by_version(live, summaries)
        artifact = writer.commit(
            rows=counts,
            metrics={
                "rows": sum(count.rows_out for count in counts.values()),
                **{f"rows_version_{version}": float(each["rows"]) for version, each in scored.items()},
                **{f"failed_rows_version_{v}": float(each["failed"]) for v, each in scored.items() if each["failed"]},
                **{f"not_finite_rows_{name}": float(rows) for name, rows in _not_finite(summaries).items()},
            },
            properties=PredictionsProperties(
                model=model.uri,
                model_fingerprint=model.fingerprint,
                model_name=model_name,
                version=number,
                signature=signature,
                splits=tuple(counts),
                columns=retained,
                outputs={name: "string" if d.kind == "O" else d.name for name, (d, _) in loaded.outputs.items()}
                | dict.fromkeys(labels, "string"),
                key=source.key,
                window=source.window,
                problem=trained.problem,
                classes=trained.classes,
                more_labels=trained.more_labels,
            ).to_dict(),
        )
        if captures is not None:
            captured = _fetched(context, captures, summaries, scored)
            window.commit(
                context.spec.services, captured, scored, captured_at, live[1].version if shadow and others else None
            )
    return artifact


def _folders(context: StepContext) -> list[str]:
    """Returns the folders of the examples that have Parquet files."""
    paths = [PurePosixPath(entry.path) for entry in context.store.manifest(context.input("examples").uri).files]
    return sorted({path.parts[0] for path in paths if len(path.parts) == 2 and path.suffix == ".parquet"})


def _live(store: ArtifactStore, model_name: str, *, shadow: bool, key: str | None) -> tuple[ScoredBy, ...]:
    """Returns the champion, and the canary if it scores rows.

    Raises:
        BadInput: no version serves, or the examples have no key by which a canary gets its share.
    """
    record = read_record(store, model_name)
    champion, challenger = record.champion, record.challenger
    if champion is None:
        raise ModelNotFound(model_name, "champion")
    first = ScoredBy(champion.model, champion.version)
    if challenger is None or not (shadow or challenger.traffic_percent):
        return (first,)
    canary = ScoredBy(challenger.model, challenger.version, challenger.traffic_percent)
    if shadow:
        return (first, canary)
    if key is None:
        raise BadInput(
            f"model {model_name!r}: version {challenger.version} is a canary, which scores "
            f"{challenger.traffic_percent}% of the keys, and the examples have no key; give PrepareOperator a key, or "
            "score with shadow=True"
        )
    ours, theirs = ModelProperties.of(challenger.model), ModelProperties.of(champion.model)
    for name in ("problem", "classes", "more_labels"):
        if getattr(ours, name) != getattr(theirs, name):
            raise BadInput(
                f"model {model_name!r}: {name} of the canary, version {challenger.version}, is "
                f"{getattr(ours, name)!r}, of the champion {getattr(theirs, name)!r}; both write the same columns, so "
                "deploy it with canary_percent=100, or score with shadow=True"
            )
    return (first, canary)


def _check_canary(
    champion: SignatureModel, canary: SignatureModel, by: ScoredBy, files: Mapping[str, Sequence[File]]
) -> None:
    """Raises BadInput if the canary's outputs are not the champion's, or the examples lack its inputs."""
    if canary.outputs != champion.outputs:
        raise BadInput(
            f"version {by.version}, the canary, has the outputs {canary.outputs}, and the champion {champion.outputs}; "
            "expected the same names, types and shapes, as both write the same columns"
        )
    for file in (file for those in files.values() for file in those):
        canary.check(file)


@contextlib.contextmanager
def _capture_folder(context: StepContext, pool: Pool, window: ScoredWindow) -> Iterator[OutputFolder]:
    """Yields the folder for captured rows until they are published: here, or in the store if executors write to it."""
    if pool.runs_here and not pool.reads_store:
        yield OutputFolder(str(context.scratch / "captured"))
        return
    context.store.remove_folder(window.staging)
    try:
        yield OutputFolder(window.staging, context.store if pool.reads_store else None)
    finally:
        context.store.remove_folder(window.staging)


def _fetched(
    context: StepContext,
    folder: OutputFolder,
    summaries: Sequence[ScoreSummary],
    scored: Mapping[int, Mapping[str, int]],
) -> dict[int, dict[Path, str]]:
    """Returns the files of captured rows of each version on this machine, in the order of the parts, with digests.

    Raises:
        HopsError: rows are missing, as executors do not share the store's folder with this machine.
    """
    local = Path(folder.path) if folder.store is None else context.scratch / "captured"
    for entry in (entry for summary in summaries for entry in summary.captured):
        (local / entry["path"]).parent.mkdir(parents=True, exist_ok=True)
        assert folder.store is not None
        folder.store.fetch(folder.path, FileEntry(**entry), local / entry["path"])
    digests = {path: digest for summary in summaries for path, digest in summary.digests.items()}
    files = {
        version: {local / path: digests[path] for path in sorted(digests) if path.startswith(f"v{version}/")}
        for version in scored
    }
    for version, paths in files.items():
        rows = sum(scan.footer(path).num_rows for path in paths if path.exists())
        if rows != scored[version]["rows"]:
            raise HopsError(
                f"version {version} scored {scored[version]['rows']} rows, of which {rows} are in {local}; the "
                "executors must see the store's folder, as this machine does"
            )
    return files


def _by_version(live: Sequence[ScoredBy], summaries: Sequence[ScoreSummary]) -> dict[int, dict[str, int]]:
    """Returns the rows that each version scored, and those on which it failed."""
    counts = {
        each.version: {"rows": sum(part.by_version.get(str(each.version), 0) for part in summaries), "failed": 0}
        for each in live
    }
    if failed := sum(part.failed for part in summaries):
        counts[live[1].version]["failed"] = failed
        why = next(part.failure for part in summaries if part.failure)
        log.warning(
            "version %d, the canary, failed on %d rows, which the champion scored: %s", live[1].version, failed, why
        )
    return counts


def _check_values(splits: Sequence[str] | None, columns: Sequence[str] | None) -> None:
    if splits is not None and not splits:
        raise BadInput("splits is []; expected at least one, or None for all")
    for name, values in (("splits", splits or ()), ("columns", columns or ())):
        if isinstance(values, str) or len(set(values)) != len(values):
            raise InvalidArgument(name, values, "; expected a list of names, each once")


def _check(
    model: SignatureModel, files: Mapping[str, Sequence[File]], columns: Sequence[str], added: Sequence[str]
) -> None:
    both = [name for name in (*columns, *added) if name in model.outputs or (name in columns and name in added)]
    if both:
        raise BadInput(f"columns name {both[0]!r}, which is an output of the scoring too; leave it out")
    for file in (file for those in files.values() for file in those):
        model.check(file)
        names = scan.schema(file).names
        for name in columns:
            if name not in names:
                raise MissingColumn(file, name, f", which columns name; there are {', '.join(names)}")


def _classes(trained: ModelProperties, model: SignatureModel) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes, by output with the probabilities of several."""
    if not trained.label:
        return {}
    target, output = trained.target, OUTPUTS[MULTICLASS]
    several = [each for each in target.all if each.problem == MULTICLASS]
    names = {target.output_prefix(each.label) + output: each.classes or () for each in several}
    return {name: classes for name, classes in names.items() if name in model.outputs}


def _not_finite(summaries: Sequence[SplitSummary]) -> dict[str, int]:
    """Returns the rows with NaN or infinity by output, and warns of them."""
    totals: dict[str, int] = {}
    for summary in summaries:
        for name, rows in summary.not_finite.items():
            totals[name] = totals.get(name, 0) + rows
    for name, rows in totals.items():
        log.warning("output %r is NaN or infinite in %d rows", name, rows)
    return totals
