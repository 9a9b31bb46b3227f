"""Prepares images in Spark's executors and writes them as ``transformed_examples``, the input of trainings."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import TransformedExamplesProperties
from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import EVAL, TRAIN
from airflow_hops.extensions.images.core.images import IMAGE, KEY, ImageOptions, ImageSpec, packed_role
from airflow_hops.extensions.images.ml.decoder import image_output
from airflow_hops.extensions.images.ml.features import decode_images
from airflow_hops.extensions.images.ml.part import ImagePreparation, ImageSummary, prepare_part
from airflow_hops.extensions.images.ml.plan import name_classes, plan_images
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import TracedTransform
from airflow_hops.ml.spark.pools import run_parts, step_pool, uploaded_files
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

COUNTS_FILE = "counts.json"


def run(context: StepContext, **options: Any) -> Artifact:
    """Writes the artifact ``transformed_examples``.

    Options are fields of :class:`airflow_hops.extensions.images.core.images.ImageOptions`.

    Raises:
        BadInput: an option or source is unusable, there are fewer than two classes, a split has no images, a class has
            none in ``train``, or too many images are rejected.
        HopsError: Spark failed, or files changed while they were read.
    """
    values = ImageOptions(**options)
    spec, label, eval_percent = values.spec, values.label, values.eval_percent
    with step_pool(context) as pool, context.output() as writer:
        of_store = {split for split in values.sources if context.has_input(packed_role(split))}
        sources = {
            split: replace(source, storage_options=context.store.storage_options) if split in of_store else source
            for split, source in context.sources(values.sources).items()
        }
        planned, known = plan_images(sources)
        names = name_classes(known, values.classes)
        context.progress(0.1, f"{len(planned)} parts, {len(names)} classes")
        preparation = ImagePreparation(
            pool.folder(context, writer), spec, names, label, eval_percent, values.encoding, values.jpeg_quality
        )
        summaries = run_parts(pool, prepare_part, preparation, planned, ImageSummary, context.progress)
        writer.add(uploaded_files(summaries))
        context.progress(0.9, "images are written")
        rows = count_rows(summaries)
        splits = [*([TRAIN, EVAL] if eval_percent else [TRAIN]), *(split for split in values.sources if split != TRAIN)]
        by_class = _by_class(summaries, splits, names)
        _check_splits(rows, splits, by_class)
        target = Target(label, BINARY if len(names) == 2 else MULTICLASS, names)
        for source in values.sources:
            # The held-out part of a source is too small to be checked separately.
            parts = [TRAIN, EVAL] if source == TRAIN and eval_percent else [source]
            add_counts(rows[part] for part in parts if part in rows).check_rejected(
                values.max_rejected, f"sources[{source!r}]"
            )
        spec = _with_constants(values, summaries)
        specs = FeatureSpecs(
            features={IMAGE: "string"},
            label=label,
            key=KEY,
            time=None,
            outputs={IMAGE: image_output(spec)},
            classes=names,
            problem=target.problem,
        )
        trace_images(spec).save(writer.path / "transform_graph")
        (writer.path / "features.json").write_text(specs.to_json())
        for split in splits:
            _write_counts(writer.path / split, summaries)
        for rubbish in writer.path.glob("*/.*"):  # of killed Python workers, whose tasks Spark ran again
            rubbish.unlink()
        for split, counts in rows.items():
            log.info(
                "%s: %d images in, %d out, rejected: %s", split, counts.rows_in, counts.rows_out, counts.rejected or 0
            )
        return writer.commit(
            rows=rows,
            metrics={
                "images": sum(counts.rows_out for counts in rows.values()),
                "rejected": sum(counts.rows_rejected for counts in rows.values()),
            },
            properties=TransformedExamplesProperties(
                label=label,
                key=KEY,
                features=(IMAGE,),
                outputs=specs.outputs,
                problem=target.problem,
                classes=tuple(names),
                by_class=by_class,
                splits=tuple(splits),
            ).to_dict(),
        )


def trace_images(spec: ImageSpec) -> TracedTransform:
    """Traces the transform graph: encoded images ``[batch]`` to float32 ``[batch, height, width, channels]``."""
    import tensorflow as tf

    function = tf.function(lambda image: {IMAGE: decode_images(image, spec)}, autograph=False)
    concrete = function.get_concrete_function(image=tf.TensorSpec([None], tf.string, name=IMAGE))
    return TracedTransform(concrete, {IMAGE: image_output(spec)}, [])


def count_rows(summaries: Iterable[ImageSummary]) -> dict[str, RowCounts]:
    """Counts images read, written and rejected, by split."""
    rows_in: Counter[str] = Counter()
    rows_out: Counter[str] = Counter()
    rejected: dict[str, Counter[str]] = {}
    for summary in summaries:
        rows_in.update(summary.rows_in)
        rows_out.update({split: sum(counts.values()) for split, counts in summary.rows_out.items()})
        for split, reasons in summary.rejected.items():
            rejected.setdefault(split, Counter()).update(reasons)
    return {split: RowCounts(rows_in[split], rows_out[split], dict(rejected.get(split, {}))) for split in rows_in}


def add_counts(parts: Iterable[RowCounts]) -> RowCounts:
    """Adds up the counts of several splits."""
    rows_in, rows_out = 0, 0
    rejected: Counter[str] = Counter()
    for counts in parts:
        rows_in, rows_out = rows_in + counts.rows_in, rows_out + counts.rows_out
        rejected.update(counts.rejected)
    return RowCounts(rows_in, rows_out, dict(rejected))


def _by_class(
    summaries: Iterable[ImageSummary], splits: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    counts = {split: dict.fromkeys(names, 0) for split in splits}
    for summary in summaries:
        for split, by_number in summary.rows_out.items():
            for number, count in by_number.items():
                counts[split][names[int(number)]] += count
    return counts


def _check_splits(
    rows: Mapping[str, RowCounts], splits: Sequence[str], by_class: Mapping[str, Mapping[str, int]]
) -> None:
    for split in splits:
        counts = rows.get(split, RowCounts(0, 0))
        if not counts.rows_out:
            why = "".join(f"; {count} were rejected: {reason}" for reason, count in counts.rejected.items())
            raise BadInput(f"split {split!r} has no images, of {counts.rows_in} that were read{why}")
    if missing := [name for name, count in by_class[TRAIN].items() if not count]:
        raise BadInput(
            f"{len(missing)} of {len(by_class[TRAIN])} classes have no image in split {TRAIN!r}: "
            f"{', '.join(map(repr, missing[:10]))}; the model cannot learn them"
        )


def _with_constants(options: ImageOptions, summaries: Iterable[ImageSummary]) -> ImageSpec:
    """Fills in mean and standard deviation of the training images if the options lack them.

    Sums integers, so the result does not depend on how images are distributed.
    """
    spec, pixels = options.spec, 0
    sums, squares = [0] * spec.channels, [0] * spec.channels
    for summary in summaries:
        if summary.pixels:
            pixels += summary.pixels
            sums = [a + b for a, b in zip(sums, summary.sums, strict=True)]
            squares = [a + b for a, b in zip(squares, summary.squares, strict=True)]
    if options.mean is None:
        spec = replace(spec, mean=tuple(round(total / pixels / 255, 6) for total in sums))
    if options.scale is None:
        variances = [pixels * square - total * total for total, square in zip(sums, squares, strict=True)]
        # The variance of single-coloured images is 0.
        deviations = [round(math.sqrt(variance) / pixels / 255, 6) for variance in variances]
        spec = replace(spec, scale=tuple(deviation or 1.0 for deviation in deviations))
    return spec


def _write_counts(folder: Path, summaries: Iterable[ImageSummary]) -> None:
    """Writes the row count of each TFRecord file, so that readers need not count."""
    counts = {}
    for summary in summaries:
        for name, rows in summary.files.items():
            split, _, file = name.partition("/")
            if split == folder.name:
                counts[file] = rows
    folder.mkdir(exist_ok=True)
    (folder / COUNTS_FILE).write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")
