"""Trains a fleet: a pooled model, and for each segment a model of its own where that answers its rows better."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import threadpoolctl

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.sources.source_files import check_unchanged
from airflow_hops.core.sources.sources import SourceFile
from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.core.options import FleetOptions, FleetSkewProperties
from airflow_hops.extensions.fleet.core.packs import LINEAR, FleetDescription, Place, check_keys, shown
from airflow_hops.extensions.fleet.core.source import SegmentSource
from airflow_hops.extensions.fleet.ml.columns import (
    Columns,
    TrainingRows,
    columns_of,
    encoding_of,
    still_fits,
    training_rows,
)
from airflow_hops.extensions.fleet.ml.entries import log_outcomes, metrics_of, outcomes_of, segments_after
from airflow_hops.extensions.fleet.ml.fleet_files import FLEET, OpenFleet, write_fleet
from airflow_hops.extensions.fleet.ml.learners import Learner, code_key, learner_of
from airflow_hops.extensions.fleet.ml.parts import Part, example_parts, source_parts
from airflow_hops.extensions.fleet.ml.rows import KnownParts, SegmentedRows, divided
from airflow_hops.extensions.fleet.ml.segment_rules import sound_rows
from airflow_hops.extensions.fleet.ml.segments import FleetPlan, SegmentPart, check_failed, results_of, train_part
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.schema_files import SCHEMA_FILE, load_schema, to_text
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool, step_pool
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.stage.checkpoint_state import CheckpointState
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, EstimatorInputs, ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs

# Order: the index of all rows, the segments to train, and files of their sorted rows; then the pooled model; then
# parts, whose results are kept in the store as each is finished; then the artifact, whose manifest comes last; then the
# results are removed. A kill anywhere leaves the fleet before untouched, and a retry trains only segments of parts that
# were not finished.

_PART_ROWS = 40_000
"""Training rows of the segments of a part, about."""
_KEPT_SHARE = 0.5
"""Share of rows that may have changed since the encoding was made; beyond, it is made again, and all are trained."""
_PARTS_SENT = 32
"""Parts whose rows are sent to executors of a cluster at once."""

log = logging.getLogger(__name__)


def run(context: StepContext, **options: Any) -> Artifact:
    """Trains a fleet on the input ``examples``, or on a source, and writes it as a model of the format ``fleet``.

    Parameters are those of ``TrainFleetOperator``. The optional input ``champion`` is the fleet before, and
    ``skew`` an artifact that names the segments to train.

    Raises:
        BadInput: keys are null, look alike or are too many, or a column does not exist; or more segments failed than
            ``max_failed`` allows. The message names them.
        HopsError: a process of the pool was killed, or a file of the source changed while it was read.
    """
    values = FleetOptions(**options)
    if context.has_input("skew"):
        drifted = FleetSkewProperties.of(context.input("skew")).segments
        values = replace(values, only=[*(values.only or ()), *drifted] or None)
        if not drifted:
            raise BadInput(f"{context.input('skew').uri} names no drifted segment: there is nothing to train")
    previous = OpenFleet.read(context.store, context.input(COMPARED)) if context.has_input(COMPARED) else None
    if previous is not None and values.only is None and previous.fleet.description.segment != values.segment:
        log.info("The fleet before has the segments of %r: all are trained", previous.fleet.description.segment)
        previous = None
    if values.only is not None and previous is None:
        raise BadInput("only names segments to train again, but there is no fleet before; train one of all segments")
    source = None
    if values.source is not None:
        source = context.sources({"source": SegmentSource.from_value("source", values.source)})["source"]
    facts = ExamplesProperties.of(context.input("examples")) if source is None else source.facts
    # What is noted of a part depends on these besides its content.
    roles = (facts.label_column, facts.more_labels, facts.key, facts.time, facts.weight)
    schema = ""
    if context.has_input("schema"):
        schema = to_text(load_schema(context.store.local(context.input("schema")) / SCHEMA_FILE))
    asked = (values.segment, values.columns, values.groups, values.source, schema)
    key = repr((roles, asked, context.spec.cache_key_parts.get("code")))
    if source is not None:
        parts, files = source_parts(source, values.segment, key)
    else:
        parts, files = example_parts(context.store, context.input("examples"), key), ()
    with step_pool(context, "local[*]") as pool:
        return _Training(context, values, facts, source, files, previous, pool, schema).run(parts)


@dataclass
class _Training:
    context: StepContext
    options: FleetOptions
    facts: ExamplesProperties
    source: SegmentSource | None
    files: Sequence[SourceFile]
    previous: OpenFleet | None
    pool: Pool
    schema: str

    def run(self, parts: Sequence[Part]) -> Artifact:
        context, options, target, progress = self.context, self.options, self.facts.target, self.context.progress
        here = self.pool if self.pool.runs_here else IN_PROCESS
        choose = partial(columns_of, self.facts, options.segment, options.columns, options.groups, self.schema)
        known = KnownParts.read(None if self.previous is None else self.previous.folder)
        learner = learner_of(options.model, target.problem, len(target.classes or "01"), options.seed)
        try:
            rows = SegmentedRows.collect(here, context.scratch / "sorted", choose, parts, known, progress)
            row_counts, groups = self._row_counts(rows), self._checked(rows)
            columns = Columns(
                options.segment, target.label, target.weight, rows.types(), tuple(options.groups), self.schema,
                0 if target.problem == REGRESSION else learner.classes,
            )  # fmt: skip
            sample, share = rows.sample(here, learner.pooled_rows, known, progress)
            if not len(sound := sound_rows(sample, columns)):
                raise BadInput(
                    f"all {len(sample):,} rows of the pooled model break the schema, or have no label or weight"
                )
            fingerprints = rows.fingerprints(self._options_key(target, columns))
            encoding, is_kept = self._encoding(sound, columns, fingerprints, rows.counts[:, 1])
            wanted = [n for n, each in enumerate(rows.segments) if self._is_wanted(each, fingerprints[each], is_kept)]
            self._check_only(rows.segments)
            rows.sort(here, rows.parts_of(wanted), progress)
        finally:
            if self.source is not None:  # also of an error: a file that is being written can look damaged
                check_unchanged(self.source, self.files)
        # Integers that were missing in a row when the encoding was made stay floats in requests.
        holed = {number.name: "float" for number in encoding.numbers if number.marks_missing}
        columns = replace(columns, types={**columns.types, **holed})
        progress(0.3, f"training the pooled model on {len(sound):,} rows")
        pooled, by_fold, payload = self._pooled(learner, training_rows(sound, columns, encoding), columns)
        state = CheckpointState.of(context.spec, context.store)
        plan = FleetPlan(
            rows.folder, columns, encoding, learner, pooled, by_fold, options.min_rows, options.standard_errors,
            state.uri, context.store.storage_options,
        )  # fmt: skip
        names = self._train(plan, rows, wanted, fingerprints, payload)
        check_failed(plan, names, options.max_failed, len(rows.segments))
        producer, trained = context.spec.producer, {rows.segments[number] for number in wanted}
        run_of = f"{producer.dag_id} {producer.run_id}"
        segments = segments_after(self.previous, results_of(plan, names), trained, fingerprints, is_kept, run_of)
        place = Place(0, 0, 1, learner.format, "")
        description = FleetDescription(options.segment, columns.types[options.segment], encoding, place)
        inputs = EstimatorInputs({each: tensors.BY_NAME[kind] for each, kind in columns.types.items()})
        signature = ModelSignature(inputs, inputs, outputs=ProblemOutputs(target.problem, target.classes))
        with context.output() as writer:
            index = write_fleet(writer.path, description, payload, segments, target.problem)
            (writer.path / FLEET / SIGNATURE_FILE).write_text(signature.to_json())
            rows.write(writer.path, sample, share)
            earlier = self.previous.entries.keys() if self.previous else set()
            outcomes = outcomes_of(
                options.segment, index, self.previous,
                trained=len(trained),
                reused=len(fingerprints) - len(trained),
                appeared=len(fingerprints.keys() - earlier) if self.previous else 0,
                vanished=len(earlier - fingerprints.keys()),
                encoding="kept" if is_kept else "made",
                look_alikes=groups[:20],
            )  # fmt: skip
            training = {"model": options.model, **{k: v for k, v in outcomes.to_dict().items() if k != "deciles"}}
            (writer.path / "training.json").write_text(json.dumps(training, indent=1))
            log_outcomes(outcomes)
            artifact = writer.commit(
                rows=row_counts,
                metrics=metrics_of(outcomes, index),
                properties={**self._properties(target, columns), "fleet": outcomes.to_dict()},
            )
        state.clear()
        return artifact

    def _checked(self, rows: SegmentedRows) -> list[list[str]]:
        """Checks keys; returns groups that look alike."""
        options = self.options
        if nulls := rows.nulls():
            raise BadInput(
                f"column {options.segment!r} is null in {nulls:,} rows; expected the key of a segment: "
                "fill it in prepare(), or leave such rows out"
            )
        if rows.segments and not rows.counts[:, 1].any():
            raise BadInput(f"no segment has a row to train on; rejected are {dict(rows.rejected()) or 'none'}")
        groups = check_keys(options.segment, rows.segments, options.max_segments, options.look_alikes == "keep")
        for group in groups[:20]:
            log.warning("Segments that look alike: %s", ", ".join(map(ascii, group)))
        return groups

    def _options_key(self, target: Target, columns: Columns) -> str:
        """Returns what a segment's model depends on besides its rows."""
        options, parts = self.options, self.context.spec.cache_key_parts
        texts = [name for name, kind in columns.types.items() if kind == "string"]
        return json.dumps(
            [
                options.model, options.min_rows, options.standard_errors, options.seed, sorted(columns.types), texts,
                target.label, target.problem, target.classes, target.weight, columns.groups, columns.schema, code_key(),
                parts.get("user code") if ":" in options.model else None,
            ]
        )  # fmt: skip

    def _encoding(
        self, sample: pa.Table, columns: Columns, fingerprints: Mapping[str, str], rows: np.ndarray
    ) -> tuple[Encoding, bool]:
        """Returns the encoding, and whether it is that of the fleet before."""
        if self.previous is None:
            return encoding_of(sample, columns), False
        entries, earlier = self.previous.entries, self.previous.fleet.description.encoding
        if self.options.only is not None:
            self._check_alike(columns)
            return earlier, True
        is_same = [
            segment in entries and entries[segment]["fingerprint"] == fingerprints[segment] for segment in fingerprints
        ]
        if rows[is_same].sum() >= (1 - _KEPT_SHARE) * rows.sum() and still_fits(earlier, sample, columns):
            return earlier, True
        return encoding_of(sample, columns), False

    def _check_alike(self, columns: Columns) -> None:
        """Raises BadInput if other models than those of ``only`` could not stay beside the new ones."""
        assert self.previous is not None
        target, facts, description = self.facts.target, self.previous.properties, self.previous.fleet.description
        for name, mine, theirs in (
            ("segment", self.options.segment, description.segment),
            ("model", self.options.model, facts.train),
            ("label", target.label, facts.label),
            ("problem", target.problem, facts.problem),
            ("classes", target.classes, facts.classes),
            ("columns", sorted(columns.features), sorted(description.encoding.columns)),
        ):
            if mine != theirs:
                raise BadInput(
                    f"{name} is {mine!r}, and {theirs!r} in the fleet before, whose other models would stay; train all "
                    "segments, without only"
                )

    def _pooled(self, learner: Learner, sample: TrainingRows, columns: Columns) -> tuple[Any, dict[int, Any], bytes]:
        """Returns the pooled model, one that has not learnt from each fold, and the packed one that is served."""
        if learner.format != LINEAR and (missing := learner.missing_classes(sample)):
            raise BadInput(
                f"no row of the pooled model's {len(sample):,} is of class {', '.join(map(str, missing))} "
                f"(column {columns.label!r}); leave the class out, or train linear models"
            )
        with threadpoolctl.threadpool_limits(1):  # sums depend on the number of threads
            by_fold = {fold: learner.fit(sample.where(sample.folds != fold)) for fold in learner.folds}
            if self.options.only is None or self.previous is None:
                pooled = learner.fit(sample)
                return pooled, by_fold, learner.payload(pooled, sample.matrix)
            earlier = self.previous.fleet
            payload = earlier.payload(earlier.description.pooled)
            pooled = learner.restored(payload, sample.matrix.shape[1])
            return learner.fit(sample) if pooled is None else pooled, by_fold, payload

    def _is_wanted(self, segment: str, fingerprint: str, is_kept: bool) -> bool:
        entry = self.previous.entries.get(segment) if self.previous and is_kept else None
        if self.options.only is not None:
            return segment in self.options.only and (entry is None or fingerprint != entry["refused"])
        if entry is None or entry["failed"]:
            return True
        return fingerprint not in (entry["fingerprint"], entry["refused"])

    def _check_only(self, segments: Sequence[str]) -> None:
        known = {*segments, *(self.previous.entries if self.previous else ())}
        if unknown := sorted(set(self.options.only or ()) - known):
            raise BadInput(
                f"only names {', '.join(map(shown, unknown[:5]))}, which neither the examples nor the fleet before have"
            )
        for segment in sorted(set(self.options.only or ()) - set(segments)):
            log.warning("Segment %s has no rows in these examples; its model stays", shown(segment))

    def _train(
        self,
        plan: FleetPlan,
        rows: SegmentedRows,
        wanted: Sequence[int],
        fingerprints: Mapping[str, str],
        pooled: bytes,
    ) -> list[str]:
        """Trains segments in parts; returns the names of their results."""
        work = []
        for numbers in divided(wanted, rows.counts[wanted, 1].tolist(), _PART_ROWS):
            segments = {number: rows.segments[number] for number in numbers}
            texts = [segment + fingerprints[segment] for segment in segments.values()]
            name = hashlib.sha256("\n".join([*texts, repr(plan.encoding)]).encode() + pooled).hexdigest()[:32]
            rejected = {
                key: f"{words} rows, which are rejected (of {file})"
                for key in segments.values()
                for words, file in [rows.rejected_of.get(key, ("", ""))]
                if words
            }
            work.append(SegmentPart(segments, rows.places(numbers), name, rejected))
        at_once = max(len(work), 1) if self.pool.runs_here else _PARTS_SENT
        names: list[str] = []
        for start in range(0, len(work), at_once):
            sent = work[start : start + at_once]
            if not self.pool.runs_here:
                sent = [part.with_rows(plan.folder) for part in sent]

            def report(done: int, start: int = start) -> None:
                count = sum(len(part.segments) for part in work[: start + done])
                progress = f"about {count:,} of {len(wanted):,} segments trained"
                self.context.progress(0.35 + 0.55 * count / len(wanted), progress)

            names += self.pool.run(partial(train_part, plan), sent, report)
        return names

    def _row_counts(self, rows: SegmentedRows) -> dict[str, RowCounts]:
        splits, counts = rows.rows_by_split(), {}
        if self.source is not None:
            read, rejected = sum(each for each, _ in splits.values()), dict(sorted(rows.rejected().items()))
            total = RowCounts(read + sum(rejected.values()), read, rejected)
            alone = rows.rejected_of_others()  # they fail as segments
            others = RowCounts(total.rows_in - alone.total(), read, dict(Counter(rejected) - alone))
            others.check_rejected(self.source.max_rejected, f"source {self.source.uri!r}")
            counts["source"] = total
        reason = f"{self.options.segment} that no training row has"
        for split, (read, known) in splits.items():
            counts[split] = RowCounts(read, known, {reason: read - known} if known < read else {})
        return counts

    def _properties(self, target: Target, columns: Columns) -> dict[str, Any]:
        made_with = self.context.spec.inputs
        statistics = next(iter(made_with.get("statistics", ())), None)
        schema = next(iter(made_with.get("schema", ())), None)
        return ModelProperties(
            signature=SIGNATURE,
            train=self.options.model,
            ranks=1,
            synchronized=True,
            features=tuple(columns.features),
            inputs=tuple(columns.types),
            label=target.label,
            key=self.facts.key,
            time=self.facts.time,
            window=self.facts.window,
            statistics=statistics.uri if statistics else None,
            statistics_fingerprint=statistics.fingerprint if statistics else None,
            schema=schema.uri if schema else None,
            problem=target.problem,
            classes=target.classes,
            format=FLEET,
        ).to_dict()
