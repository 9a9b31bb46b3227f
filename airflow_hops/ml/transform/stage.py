"""Transforms examples: traces the preprocessing function to a graph, and runs the graph on parts in parallel."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties, TransformedExamplesProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.lineage import CONSTANTS
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs, OutputSpec, read_raw_features
from airflow_hops.ml.features.raw_features import check_columns
from airflow_hops.ml.features.transform_graph import Preprocess, trace_transform
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, packed
from airflow_hops.ml.spark.pools import (
    Pool,
    SplitSummary,
    count_rows,
    remove_leftovers,
    run_parts,
    step_pool,
    uploaded_files,
)
from airflow_hops.ml.step.context import StepContext, resolve
from airflow_hops.ml.transform.batches import TransformPlan, plan_parts, shapes_differ, transform_part

log = logging.getLogger(__name__)


def run(context: StepContext, *, preprocess: str, extra_inputs: Sequence[str] = ()) -> Artifact:
    """Writes the artifact ``transformed_examples``.

    Parameters are those of ``TransformOperator``. Inputs are ``examples``, ``statistics`` (with the split ``train``),
    ``schema``, and ``constants``, if the constants come from other statistics.

    Raises:
        BadInput: examples, statistics and schema do not match, or the preprocessing function fails.
        HopsError: Spark failed.
    """
    examples = context.input("examples")
    facts = ExamplesProperties.of(examples)
    target = facts.target
    with step_pool(context) as pool, context.output() as writer:
        specs = FeatureSpecs(
            read_raw_features(
                context.local("schema") / "schema.pbtxt",
                label=target.label,
                key=facts.key,
                time=facts.time,
                weight=target.weight,
                more_labels=target.more_labels or (),
            ),
            target.label,
            facts.key,
            facts.time,
            outputs={},
            classes=target.classes,
            extra_inputs=tuple(extra_inputs),
            problem=target.problem,
            weight=target.weight,
            more_labels=target.more_labels,
        )
        if unknown := [name for name in extra_inputs if name not in specs.inputs]:
            raise BadInput(
                f"extra_inputs names {unknown[0]!r}, which is neither a raw feature nor the time; there are "
                f"{', '.join(specs.inputs)}"
            )
        source = CONSTANTS if context.has_input(CONSTANTS) else "statistics"
        constants = Constants.read(context.local(source) / TRAIN / "FeatureStats.pb")
        splits = pool.splits(context, "examples", facts.splits)
        specs, summaries = transform_examples(
            resolve(preprocess),
            splits,
            writer.path,
            specs,
            constants,
            pool,
            folder=pool.folder(context, writer),
            name=preprocess,
            progress=context.progress,
        )
        writer.add(uploaded_files(summaries))
        rows = count_rows(splits, summaries)
        not_finite: dict[str, int] = {}
        for summary in summaries:
            for output, count in summary.not_finite.items():
                log.warning(
                    "preprocessing output %r is NaN or infinite in %d of %d rows of split %r; a loss over them is NaN",
                    output,
                    count,
                    summary.rows,
                    summary.split,
                )
                not_finite[output] = not_finite.get(output, 0) + count
        return writer.commit(
            rows=rows,
            metrics={f"not_finite_rows_{name}": float(count) for name, count in not_finite.items()},
            properties=TransformedExamplesProperties(
                label=specs.label,
                key=specs.key,
                time=specs.time,
                features=tuple(specs.features),
                window=facts.window,
                splits=tuple(splits),
                outputs=specs.outputs,
                problem=specs.problem,
                classes=specs.classes,
                weight=specs.weight,
                more_labels=specs.more_labels,
            ).to_dict(),
        )


def _warn_of_rounding(specs: FeatureSpecs, constants: Constants) -> None:
    for name, dtype in specs.features.items():
        if dtype.startswith("float") and name in constants.features and constants.float32_spacing(name) > 1:
            log.warning(
                "feature %r is float32 here and in the served model, which rounds its largest values to multiples of "
                "%.6g; if smaller differences matter, as in times and ids, make it an integer in prepare()",
                name,
                constants.float32_spacing(name),
            )


def transform_examples(
    preprocess: Preprocess,
    splits: Mapping[str, Sequence[File]],
    target: Path,
    specs: FeatureSpecs,
    constants: Constants,
    pool: Pool,
    *,
    folder: OutputFolder,
    name: str = "preprocess",
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> tuple[FeatureSpecs, list[SplitSummary]]:
    """Writes ``transform_graph/``, ``constants.json``, ``features.json`` and the splits.

    Args:
        preprocess: The preprocessing function.
        splits: Parquet files of examples by split.
        target: Folder for all but the splits.
        specs: Columns of the examples, without outputs.
        constants: Figures of the training split.
        pool: Works on the parts.
        folder: Folder for the splits, that of ``target`` unless the pool writes to a remote store.
        name: Name of the function in messages.
        progress: Called with the finished share and a message.

    Returns:
        The columns with the outputs, and the summaries of the parts.

    Raises:
        BadInput: as :func:`run`.
    """
    files = [(split, file) for split, those in splits.items() for file in those]
    for _, file in files:
        check_columns(file, {**specs.inputs, **specs.target.dtypes})
    _warn_of_rounding(specs, constants)
    traced = trace_transform(preprocess, specs.inputs, constants, name=name)
    for taken in specs.target.dtypes:
        if taken in traced.outputs:
            what = "the weight" if taken == specs.weight else "the label" if taken == specs.label else "a label"
            raise BadInput(f"preprocessing function {name!r}: output {taken!r} has the name of {what}")
    graph = target / "transform_graph"
    traced.save(graph)
    (target / "constants.json").write_text(json.dumps(constants.used, indent=1))
    progress(0.3, f"traced {name}: {len(specs.inputs)} raw features to {len(traced.outputs)} outputs")
    sent = packed(graph) if pool.reads_store else graph
    plan = TransformPlan(sent, folder, specs.inputs, traced.outputs, specs.target)
    done = run_parts(pool, transform_part, plan, plan_parts(files), SplitSummary, progress)
    summaries = [summary for summary in done if summary.rows]
    specs = replace(specs, outputs=_settle_widths(traced.outputs, summaries))
    (target / "features.json").write_text(specs.to_json())
    for split in splits:
        remove_leftovers(target / split)
        if not any(summary.split == split for summary in summaries):
            _write_empty_split(target / split, specs)
    return specs, summaries


def _settle_widths(outputs: Mapping[str, OutputSpec], summaries: Sequence[SplitSummary]) -> dict[str, OutputSpec]:
    """Fills in the widths that the graph left open, which must be the same in every part."""
    settled = dict(outputs)
    for name, output in outputs.items():
        results = {summary.split: summary.widths[name] for summary in summaries if name in summary.widths}
        widths = sorted({-1 if width is None else width for width in results.values()})
        if len(widths) > 1:
            first, second = (None if width == -1 else width for width in widths[:2])
            raise BadInput(shapes_differ(name, first, second, f"splits {', '.join(results)}"))
        if output.width == -1:
            settled[name] = replace(output, width=next(iter(results.values()), None))
    return settled


def _write_empty_split(folder: Path, specs: FeatureSpecs) -> None:
    """Writes a Parquet file with the columns and no rows, so that readers need no special case."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = []
    for name, output in specs.outputs.items():
        item = pa.binary() if output.dtype == "string" else pa.from_numpy_dtype(output.dtype)
        fields.append(pa.field(name, item if output.width is None else pa.list_(item, output.width)))
    retained = [pa.field(name, pa.type_for_alias(dtype)) for name, dtype in specs.target.dtypes.items()]
    schema = pa.schema([*fields, *retained])
    write_parquet(schema.empty_table(), folder / "part-00000.parquet")
