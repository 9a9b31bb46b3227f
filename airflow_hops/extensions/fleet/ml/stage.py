"""Trains a fleet: a pooled model, and for each segment a model of its own where that answers its rows better."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import threadpoolctl

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.lineage import COMPARED
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.fleet.core.keys import check_keys
from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.core.options import FleetOptions, FleetOutcomes, FleetSkewProperties
from airflow_hops.extensions.fleet.core.packs import LINEAR, FleetDescription, Place, shown
from airflow_hops.extensions.fleet.ml.entries import Entries, deciles, log_outcomes, metrics_of
from airflow_hops.extensions.fleet.ml.fleet_files import FLEET, OpenFleet, write_fleet
from airflow_hops.extensions.fleet.ml.learners import Learner, code_key, learner_of
from airflow_hops.extensions.fleet.ml.rows import (
    Chunk,
    Columns,
    Survey,
    chunks_of,
    columns_of,
    parts_of,
    sort_rows,
    survey,
)
from airflow_hops.extensions.fleet.ml.segments import (
    FleetPlan,
    PartResults,
    SegmentPart,
    describe_part,
    joined_samples,
    train_part,
)
from airflow_hops.extensions.fleet.ml.training_rows import TrainingRows
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool, step_pool
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.stage.checkpoint_state import CheckpointState
from airflow_hops.serving.models.estimator_signature import SIGNATURE_FILE, EstimatorInputs
from airflow_hops.serving.models.model_signature import ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs

# Order: survey, sort, fingerprint; then the pooled model; then parts, whose results are kept in the store as each is
# finished; then the artifact, whose manifest comes last; then the results are removed. A kill anywhere leaves the
# fleet before untouched, and a retry trains only segments of parts that were not finished.

_KEPT_SHARE = 0.5
"""Share of rows that may have changed since the encoding was made; beyond, it is made again, and all are trained."""
_PARTS_SENT = 32
"""Parts whose rows are sent to executors of a cluster at once."""

log = logging.getLogger(__name__)


def run(context: StepContext, **options: Any) -> Artifact:
    """Trains a fleet on the input ``examples``, and writes it as a model of the format ``fleet``.

    Parameters are those of ``TrainFleetOperator``. The optional input ``champion`` is the fleet before, and
    ``skew`` an artifact that names the segments to train.

    Raises:
        BadInput: keys are null, look alike or are too many, or a column does not exist; or more segments failed than
            ``max_failed`` allows. The message names them.
        HopsError: a process of the pool was killed.
    """
    values = FleetOptions(**options)
    if context.has_input("skew"):
        drifted = FleetSkewProperties.of(context.input("skew")).segments
        values = replace(values, only=[*(values.only or ()), *drifted] or None)
        if not drifted:
            raise BadInput(f"{context.input('skew').uri} names no drifted segment: there is nothing to train")
    facts = ExamplesProperties.of(context.input("examples"))
    folder = context.local("examples")
    names = facts.splits or sorted({path.parent.name for path in folder.glob("*/*.parquet")})
    chunks = chunks_of({name: example_files(folder, name) for name in names})
    schema = scan.schema(chunks[0].file)
    columns = columns_of(facts, schema, values.segment, values.columns, values.groups)
    previous = OpenFleet.read(context.store, context.input(COMPARED)) if context.has_input(COMPARED) else None
    if previous is not None and values.only is None and previous.fleet.description.segment != values.segment:
        log.info("The fleet before has the segments of %r: all are trained", previous.fleet.description.segment)
        previous = None
    if values.only is not None and previous is None:
        raise BadInput("only names segments to train again, but there is no fleet before; train one of all segments")
    with step_pool(context, "local[*]") as pool:
        training = _Training(context, values, facts, columns, chunks, previous, pool)
        return training.run()


@dataclass
class _Training:
    context: StepContext
    options: FleetOptions
    facts: ExamplesProperties
    columns: Columns
    chunks: Sequence[Chunk]
    previous: OpenFleet | None
    pool: Pool

    def run(self) -> Artifact:
        context, options, target = self.context, self.options, self.facts.target
        here = self.pool if self.pool.runs_here else IN_PROCESS
        counts = survey(here, self.chunks, self.columns, context.progress)
        groups = self._checked(counts)
        segments = sorted(counts.keys, key=str.encode)
        rows, sorted_rows = sort_rows(
            here, context.scratch / "sorted", self.chunks, self.columns, segments, context.progress
        )
        parts = parts_of([counts.keys[segment] for segment in segments])
        classes = 2 if target.classes is None else len(target.classes)
        learner = learner_of(options.model, target.problem, classes, options.seed)
        share = min(1.0, learner.pooled_rows / counts.keys.total())
        held = tuple(dict.fromkeys(chunk.split for chunk in self.chunks if chunk.split != TRAIN))
        describe = partial(describe_part, rows, held, self._options_key(target), share)
        report = lambda done: context.progress(0.2 + 0.1 * done / len(parts), "fingerprinting segments")  # noqa: E731
        described = here.run(describe, parts, report)
        fingerprints = {segments[n]: text for each in described for n, text in each.fingerprints.items()}
        encoding, is_kept = self._encoding(counts.encoding(self.columns), fingerprints, counts.keys)
        # Integers that are missing in a row, of this run or of that which made the encoding, are floats in requests.
        types = self.columns.types
        holed = {number.name for number in encoding.numbers if number.marks_missing or counts.missing[number.name]}
        floats = {name: "float" for name in holed if types[name] == "int64"}
        self.columns = replace(self.columns, types={**types, **floats})
        sample = joined_samples([each.sample for each in described], self.columns, encoding)
        del described
        context.progress(0.3, f"training the pooled model on {len(sample):,} rows")
        state = CheckpointState.of(context.spec, context.store)
        pooled, by_fold, payload = self._pooled(learner, sample)
        plan = FleetPlan(
            rows, held, encoding, learner, pooled, by_fold, options.min_rows, options.standard_errors, state.uri,
            context.store.storage_options,
        )  # fmt: skip
        wanted = {segment for segment in segments if self._is_wanted(segment, fingerprints[segment], is_kept)}
        self._check_only(segments)
        results = PartResults(plan, self._train(plan, parts, wanted, fingerprints, payload))
        results.check_failed(options.max_failed, len(segments))
        producer = context.spec.producer
        run_of = f"{producer.dag_id} {producer.run_id}"
        entries = Entries(self.previous, results.rows(), wanted, fingerprints, is_kept, run_of)
        with context.output() as writer:
            outcomes, index = self._write(writer.path, plan, payload, entries, groups)
            log_outcomes(outcomes)
            artifact = writer.commit(
                rows=self._row_counts(sorted_rows),
                metrics=metrics_of(outcomes, index),
                properties={**self._properties(target), "fleet": outcomes.to_dict()},
            )
        state.clear()
        return artifact

    def _checked(self, counts: Survey) -> list[list[str]]:
        """Checks keys; returns groups that look alike."""
        options = self.options
        if counts.nulls:
            raise BadInput(
                f"column {options.segment!r} is null in {counts.nulls:,} rows; expected the key of a segment: fill "
                "it in prepare(), or leave such rows out"
            )
        groups = check_keys(options.segment, counts.keys, options.max_segments, options.look_alikes == "keep")
        for group in groups[:20]:
            log.warning("Segments that look alike: %s", ", ".join(map(ascii, group)))
        return groups

    def _options_key(self, target: Target) -> str:
        """Returns what a segment's model depends on besides its rows."""
        options, parts = self.options, self.context.spec.cache_key_parts
        return json.dumps(
            [
                options.model, options.min_rows, options.standard_errors, options.seed, dict(self.columns.types),
                target.label, target.problem, target.classes, target.weight, self.columns.groups, code_key(),
                parts.get("user code") if ":" in options.model else None,
            ]
        )  # fmt: skip

    def _encoding(
        self, made: Encoding, fingerprints: Mapping[str, str], rows: Mapping[str, int]
    ) -> tuple[Encoding, bool]:
        """Returns the encoding, and whether it is that of the fleet before."""
        if self.previous is None:
            return made, False
        entries, earlier = self.previous.entries, self.previous.fleet.description.encoding
        if self.options.only is not None:
            self._check_alike(made)
            return earlier, True
        same = sum(
            rows[segment]
            for segment, text in fingerprints.items()
            if segment in entries and entries[segment]["fingerprint"] == text
        )
        is_kept = set(earlier.columns) == set(made.columns) and same >= (1 - _KEPT_SHARE) * sum(rows.values())
        return (earlier, True) if is_kept else (made, False)

    def _check_alike(self, made: Encoding) -> None:
        """Raises BadInput if other models than those of ``only`` could not stay beside the new ones."""
        assert self.previous is not None
        target, facts, description = self.facts.target, self.previous.properties, self.previous.fleet.description
        for name, mine, theirs in (
            ("segment", self.options.segment, description.segment),
            ("model", self.options.model, facts.train),
            ("label", target.label, facts.label),
            ("problem", target.problem, facts.problem),
            ("classes", target.classes, facts.classes),
            ("columns", sorted(made.columns), sorted(description.encoding.columns)),
        ):
            if mine != theirs:
                raise BadInput(
                    f"{name} is {mine!r}, and {theirs!r} in the fleet before, whose other models would stay; train all "
                    "segments, without only"
                )

    def _pooled(self, learner: Learner, sample: TrainingRows) -> tuple[Any, dict[int, Any], bytes]:
        """Returns the pooled model, one that has not learnt from each fold, and the packed one that is served."""
        if learner.format != LINEAR and (missing := learner.missing_classes(sample)):
            raise BadInput(
                f"no row of the pooled model's {len(sample):,} is of class {', '.join(map(str, missing))} "
                f"(column {self.columns.label!r}); leave the class out, or train linear models"
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
        parts: Sequence[tuple[int, int]],
        wanted: AbstractSet[str],
        fingerprints: Mapping[str, str],
        pooled: bytes,
    ) -> list[str]:
        """Trains parts; returns the names of their results."""
        number_of = {segment: number for number, segment in enumerate(plan.rows.segments)}
        numbers = sorted(number_of[segment] for segment in wanted)
        work = []
        for first, end in parts:
            if own := tuple(number for number in numbers if first <= number < end):
                texts = [plan.rows.segments[number] + fingerprints[plan.rows.segments[number]] for number in own]
                name = hashlib.sha256("\n".join([*texts, plan.encoding.__repr__()]).encode() + pooled).hexdigest()[:32]
                work.append(SegmentPart(first, end, own, name))
        sizes = [len(part.numbers) for part in work]
        context, total = self.context, len(numbers)
        done_before = 0

        def report(done: int) -> None:
            count = sum(sizes[: done_before + done])
            context.progress(0.35 + 0.55 * count / max(total, 1), f"about {count:,} of {total:,} segments trained")

        train = partial(train_part, plan)
        if self.pool.runs_here:
            return self.pool.run(train, work, report) if work else []
        names = []
        for start in range(0, len(work), _PARTS_SENT):
            done_before = start
            sent = [part.with_rows(plan) for part in work[start : start + _PARTS_SENT]]
            names += self.pool.run(train, sent, report)
        return names

    def _write(
        self, folder: Path, plan: FleetPlan, pooled: bytes, entries: Entries, groups: Sequence[Sequence[str]]
    ) -> tuple[FleetOutcomes, list[dict[str, Any]]]:
        """Writes the artifact's files; the models of all segments one after the other."""
        segments, target, name = plan.rows.segments, self.facts.target, self.options.segment
        earlier = {} if self.previous is None else self.previous.entries
        vanished = earlier.keys() - set(segments)
        keys = sorted([*segments, *vanished], key=str.encode)
        first = Place(0, 0, 1, plan.learner.format, "")
        description = FleetDescription(name, self.columns.types[name], plan.encoding, first)
        index = write_fleet(
            folder, description, pooled, map(entries.of, keys), entries.reference, target.problem, plan.learner.format
        )
        inputs = EstimatorInputs({each: tensors.BY_NAME[kind] for each, kind in self.columns.types.items()})
        signature = ModelSignature(inputs, inputs, outputs=ProblemOutputs(target.problem, target.classes))
        (folder / FLEET / SIGNATURE_FILE).write_text(signature.to_json())
        outcomes = FleetOutcomes(
            segment=name,
            segments=len(index),
            states=dict(sorted(Counter(entry["state"] for entry in index).items())),
            trained=len(entries.wanted),
            reused=len(segments) - len(entries.wanted),
            failed=sum(bool(entry.get("failed")) for entry in index),
            appeared=sum(segment not in earlier for segment in segments) if earlier else 0,
            vanished=len(vanished),
            encoding="kept" if entries.is_kept else "made",
            previous=None if self.previous is None else self.previous.artifact.uri,
            look_alikes=groups[:20],
            deciles=deciles(index),
        )
        training = {"model": self.options.model, **{k: v for k, v in outcomes.to_dict().items() if k != "deciles"}}
        (folder / "training.json").write_text(json.dumps(training, indent=1))
        return outcomes, index

    def _row_counts(self, sorted_rows: Mapping[str, int]) -> dict[str, RowCounts]:
        read = Counter[str]()
        for chunk in self.chunks:
            read[chunk.split] += chunk.rows
        lost = {split: read[split] - sorted_rows[split] for split in read}
        reason = f"{self.options.segment} that no training row has"
        return {
            split: RowCounts(read[split], sorted_rows[split], {reason: lost[split]} if lost[split] else {})
            for split in read
        }

    def _properties(self, target: Target) -> dict[str, Any]:
        made_with = self.context.spec.inputs
        statistics = next(iter(made_with.get("statistics", ())), None)
        schema = next(iter(made_with.get("schema", ())), None)
        return ModelProperties(
            signature=SIGNATURE,
            train=self.options.model,
            ranks=1,
            synchronized=True,
            features=tuple(self.columns.features),
            inputs=tuple(self.columns.types),
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
