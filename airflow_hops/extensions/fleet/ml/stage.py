"""Trains a fleet: a pooled model, and for each segment a model of its own where that answers its rows better."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
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
from airflow_hops.extensions.fleet.core.packs import POOLED, FleetDescription, Place, shown
from airflow_hops.extensions.fleet.ml.fleet_files import FLEET, OpenFleet, deciles, write_fleet
from airflow_hops.extensions.fleet.ml.learners import Learner, code_key, learner_of
from airflow_hops.extensions.fleet.ml.rows import (
    Chunk,
    Columns,
    SortedRows,
    TrainingRows,
    chunks_of,
    columns_of,
    parts_of,
    sort_rows,
    survey,
    training_rows,
)
from airflow_hops.extensions.fleet.ml.segments import (
    FleetPlan,
    SegmentPart,
    describe_part,
    read_results,
    train_part,
)
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
        if (nulls := counts.nulls.total()) and options.null_keys == "refuse":
            raise BadInput(
                f"column {options.segment!r} is null in {nulls:,} rows; expected the key of a segment: fill it in "
                'prepare(), or give null_keys="reject" to leave such rows out'
            )
        groups = check_keys(options.segment, counts.keys, options.max_segments, options.look_alikes == "keep")
        for group in groups[:20]:
            log.warning("Segments that look alike: %s", ", ".join(map(ascii, group)))
        holed = [name for name in self.columns.features if counts.missing[name] and self.columns.types[name] == "int64"]
        self.columns = replace(self.columns, types={**self.columns.types, **dict.fromkeys(holed, "float")})
        segments = sorted(counts.keys, key=str.encode)
        rows, sorted_rows = sort_rows(
            here, context.scratch / "sorted", self.chunks, self.columns, segments, context.progress
        )
        parts = parts_of([counts.keys[segment] for segment in segments])
        learner = learner_of(
            options.model, target.problem, 2 if target.classes is None else len(target.classes), options.seed
        )
        share = min(1.0, learner.pooled_rows / counts.keys.total())
        held = tuple(dict.fromkeys(chunk.split for chunk in self.chunks if chunk.split != TRAIN))
        describe = partial(describe_part, rows, held, self._options_key(target), share)
        report = lambda done: context.progress(0.2 + 0.1 * done / len(parts), "fingerprinting segments")  # noqa: E731
        described = here.run(describe, parts, report)
        fingerprints = {segments[n]: text for each in described for n, text in each.fingerprints.items()}
        encoding, is_kept = self._encoding(counts.encoding(self.columns), fingerprints, counts.keys)
        sample = self._sample(
            pa.concat_tables([each.sample for each in described if each.sample is not None]), encoding
        )
        del described
        context.progress(0.3, f"training the pooled model on {len(sample):,} rows")
        plan = self._plan(rows, held, encoding, learner, sample, is_kept)
        pooled_payload = learner.payload(plan.pooled, sample.matrix)
        if options.only is not None and self.previous is not None:
            pooled_payload = self.previous.fleet.payload(self.previous.fleet.description.pooled)
        wanted = [segment for segment in segments if self._is_wanted(segment, fingerprints[segment], is_kept)]
        self._check_only(segments)
        trained = self._train(plan, parts, wanted, fingerprints, pooled_payload)
        with context.output() as writer:
            outcomes, entries = self._write(
                writer.path, plan, pooled_payload, trained, wanted, segments, fingerprints, is_kept, groups
            )
            _log_outcomes(outcomes)
            artifact = writer.commit(
                rows=self._row_counts(sorted_rows),
                metrics=_metrics(outcomes, entries),
                properties={**self._properties(target), "fleet": outcomes.to_dict()},
            )
        trained.clear()
        return artifact

    def _options_key(self, target: Target) -> str:
        """Returns what a segment's model depends on besides its rows."""
        options, parts = self.options, self.context.spec.cache_key_parts
        return json.dumps(
            [
                options.model, options.min_rows, options.standard_errors, options.seed, dict(self.columns.types),
                target.label, target.problem, target.classes, target.weight, code_key(),
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
            if set(earlier.columns) != set(made.columns):
                raise BadInput(
                    f"the fleet before takes {', '.join(earlier.columns)}; these examples have other columns"
                )
            return earlier, True
        same = sum(
            rows[segment]
            for segment, text in fingerprints.items()
            if segment in entries and entries[segment]["fingerprint"] == text
        )
        is_kept = set(earlier.columns) == set(made.columns) and same >= (1 - _KEPT_SHARE) * sum(rows.values())
        return (earlier, True) if is_kept else (made, False)

    def _sample(self, table: pa.Table, encoding: Encoding) -> TrainingRows:
        folds = table["!fold"].to_numpy()
        return replace(training_rows(table, self.columns, encoding, "of the pooled model"), folds=folds)

    def _plan(
        self,
        rows: SortedRows,
        held: tuple[str, ...],
        encoding: Encoding,
        learner: Learner,
        sample: TrainingRows,
        is_kept: bool,
    ) -> FleetPlan:
        state = CheckpointState.of(self.context.spec, self.context.store)
        with threadpoolctl.threadpool_limits(1):  # sums depend on the number of threads
            by_fold = {fold: learner.fit(sample.where(sample.folds != fold)) for fold in learner.folds}
            pooled = None
            if self.options.only is not None and self.previous is not None:
                earlier = self.previous.fleet
                pooled = learner.restored(earlier.payload(earlier.description.pooled), encoding.width)
            pooled = learner.fit(sample) if pooled is None else pooled
        return FleetPlan(
            rows, held, encoding, learner, pooled, by_fold, self.options.min_rows, self.options.standard_errors,
            state.uri, self.context.store.storage_options,
        )  # fmt: skip

    def _is_wanted(self, segment: str, fingerprint: str, is_kept: bool) -> bool:
        if self.options.only is not None:
            return segment in set(self.options.only)
        entry = self.previous.entries.get(segment) if self.previous and is_kept else None
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
        wanted: Sequence[str],
        fingerprints: Mapping[str, str],
        pooled: bytes,
    ) -> _Results:
        """Trains parts, and checks how many segments failed."""
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
            names = self.pool.run(train, work, report) if work else []
        else:
            names = []
            for start in range(0, len(work), _PARTS_SENT):
                done_before = start
                sent = [part.with_rows(plan) for part in work[start : start + _PARTS_SENT]]
                names += self.pool.run(train, sent, report)
        results = _Results(plan, names, CheckpointState.of(context.spec, context.store))
        results.check_failed(self.options.max_failed, len(plan.rows.segments))
        return results

    def _write(
        self,
        folder: Path,
        plan: FleetPlan,
        pooled: bytes,
        trained: _Results,
        wanted: Sequence[str],
        segments: Sequence[str],
        fingerprints: Mapping[str, str],
        is_kept: bool,
        groups: Sequence[Sequence[str]],
    ) -> tuple[FleetOutcomes, list[dict[str, Any]]]:
        """Writes the artifact's files; of all segments in the order of their keys, one after the other."""
        earlier = self.previous
        old = {} if earlier is None else earlier.entries
        vanished = sorted(old.keys() - set(segments), key=str.encode)
        results = trained.rows()
        is_wanted = set(wanted)
        reference: list[Mapping[str, Any]] = []
        run_of = f"{self.context.spec.producer.dag_id} {self.context.spec.producer.run_id}"

        def entry_of(segment: str) -> tuple[Mapping[str, Any], bytes | None]:
            entry = old.get(segment)
            if segment in is_wanted:
                result = next(results)
                assert result["segment"] == segment
                reference.append(result)
                payload: bytes | None = result.pop("payload")
                refused = None if entry is None else entry["refused"]
                own = {**result, "fingerprint": fingerprints[segment], "trained_by": run_of, "refused": refused}
                if result["failed"] and entry is not None and earlier is not None and is_kept:
                    own |= {name: entry[name] for name in ("state", "format", "loss", "pooled_loss", "trained_by")}
                    own["reason"] = f"{result['reason']}; the model before stays"
                    return own, earlier.payload(entry)
                return own, payload
            assert earlier is not None or entry is None
            if entry is None:
                reason = "not among the segments to train"
                return {"segment": segment, "state": POOLED, "reason": reason, "rows": 0, **_NEVER}, None
            if segment in earlier.reference:  # type: ignore[union-attr]
                reference.append(earlier.reference[segment])  # type: ignore[union-attr]
            if segment in segments_with_rows or is_kept:
                note = "" if segment in segments_with_rows else _VANISHED
                reason = entry["reason"] if entry["reason"].startswith(note) else note + entry["reason"]
                return {**entry, "reason": reason}, earlier.payload(entry)  # type: ignore[union-attr]
            return {**entry, "state": POOLED, "reason": f"{_VANISHED}and all models were trained again", **_NEVER}, None

        segments_with_rows = set(segments)
        keys = sorted([*segments, *vanished], key=str.encode)
        segment_type = self.columns.types[self.options.segment]
        first = Place(0, 0, 1, plan.learner.format, "")
        description = FleetDescription(self.options.segment, segment_type, plan.encoding, first)
        problem = self.facts.target.problem
        entries = write_fleet(folder, description, pooled, map(entry_of, keys), reference, problem, plan.learner.format)
        self._write_signature(folder / FLEET)
        states = Counter(entry["state"] for entry in entries)
        outcomes = FleetOutcomes(
            segment=self.options.segment,
            segments=len(entries),
            states=dict(sorted(states.items())),
            trained=len(wanted),
            reused=len(segments) - len(wanted),
            failed=sum(bool(entry.get("failed")) for entry in entries),
            appeared=sum(segment not in old for segment in segments) if earlier else 0,
            vanished=len(vanished),
            encoding="kept" if is_kept else "made",
            previous=None if earlier is None else earlier.artifact.uri,
            look_alikes=groups[:20],
            deciles=deciles(entries),
        )
        training = {"model": self.options.model, **{k: v for k, v in outcomes.to_dict().items() if k != "deciles"}}
        (folder / "training.json").write_text(json.dumps(training, indent=1))
        return outcomes, entries

    def _write_signature(self, folder: Path) -> None:
        target = self.facts.target
        types = {name: tensors.BY_NAME[kind] for name, kind in self.columns.types.items()}
        inputs = EstimatorInputs(types)
        outputs = ProblemOutputs(target.problem, target.classes)
        (folder / SIGNATURE_FILE).write_text(ModelSignature(inputs, inputs, outputs=outputs).to_json())

    def _row_counts(self, sorted_rows: Mapping[str, int]) -> dict[str, RowCounts]:
        read = Counter[str]()
        for chunk in self.chunks:
            read[chunk.split] += chunk.rows
        lost = {split: read[split] - sorted_rows[split] for split in read}
        reason = f"no {self.options.segment}, or one that no training row has"
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


_VANISHED = "no rows in this run; "
_NEVER = {"loss": None, "pooled_loss": None, "eval_rows": 0, "eval_loss": None, "eval_pooled_loss": None}


@dataclass
class _Results:
    """Results of the parts, in the store."""

    plan: FleetPlan
    names: Sequence[str]
    state: CheckpointState

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the results of all segments by key, reading a part at a time."""
        files = self.plan.results()
        for name in self.names:
            yield from read_results(files, name)

    def check_failed(self, max_failed: float, segments: int) -> None:
        """Logs each failed segment. Raises BadInput if there are more than a share of all."""
        files, failed = self.plan.results(), []
        for name in self.names:
            own = [row for row in read_results(files, name) if row["failed"]]
            failed += own
            for row in own:
                log.warning("Segment %s %s", shown(row["segment"]), row["reason"])
        if len(failed) > max_failed * segments:
            first = "; ".join(f"{shown(row['segment'])} {row['reason']}" for row in failed[:5])
            for name in self.names:  # so that the task, if it is cleared, trains them again
                if any(row["failed"] for row in read_results(files, name)):
                    files.remove(f"{files.root}/{name}")
            raise BadInput(
                f"{len(failed):,} of {segments:,} segments failed, more than max_failed={max_failed:g} allows: {first}"
            )

    def clear(self) -> None:
        """Removes the results, after the artifact was committed."""
        self.state.clear()


def _metrics(outcomes: FleetOutcomes, entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    counts = {name: float(getattr(outcomes, name)) for name in ("segments", "trained", "reused", "failed")}
    known = [row for row in entries if row["eval_rows"] and row["eval_loss"] is not None]
    rows = sum(row["eval_rows"] for row in known)
    for name in ("loss", "pooled_loss") if rows else ():
        value = sum(row["eval_rows"] * row[f"eval_{name}"] for row in known) / rows
        counts |= {f"eval_{name}": value} if math.isfinite(value) else {}
    return {**counts, **{state: float(count) for state, count in outcomes.states.items()}}


def _log_outcomes(outcomes: FleetOutcomes) -> None:
    states = ", ".join(f"{count:,} {state}" for state, count in outcomes.states.items())
    log.info(
        "%s segments: %s; %s trained, %s reused, %s failed, %s new, %s without rows",
        *(f"{outcomes.segments:,}", states),
        *(f"{n:,}" for n in (outcomes.trained, outcomes.reused, outcomes.failed, outcomes.appeared, outcomes.vanished)),
    )
    for number, tenth in enumerate(outcomes.deciles, 1):
        log.info(
            "Tenth %d of the segments by rows (%d segments, %s rows): loss %.5g, pooled alone %.5g",
            *(number, tenth["segments"], f"{tenth['rows']:,}", tenth["loss"], tenth["pooled_loss"]),
        )
