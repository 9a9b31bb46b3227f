"""Reads closed ranges of a Kafka topic into a table of a snapshot, each record exactly once.

Records are decoded into local files, which ingest then reads like any others. Each row also has the record's
``kafka_partition``, ``kafka_offset``, ``kafka_time`` and ``kafka_key``. A record that cannot be decoded is set aside in
``rejected/<table>/`` with its offset and the reason.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.sources.sources import REJECTED_FOLDER, Source
from airflow_hops.extensions.streams.core.ranges import check_stored
from airflow_hops.extensions.streams.core.source import TopicSource
from airflow_hops.extensions.streams.core.topic import REGISTRY_PREFIX, Topic, kafka_library
from airflow_hops.extensions.streams.core.topic_ranges import TopicRanges
from airflow_hops.extensions.streams.ml.message_types import Poison
from airflow_hops.extensions.streams.ml.message_values import Registry, decode_json
from airflow_hops.ml.ingest.reader import Progress, ingest_staged
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.types import CALENDAR_S
from airflow_hops.ml.spark.pools import Pool

# Offsets make an ingest repeatable: the task plans the range of each partition first and stores it; every try, cache
# look-up and rerun reads exactly this range. Reading does not use consumer groups and commits no offsets to Kafka. A
# record that cannot be decoded is set aside with its offset, so that the count of offsets is complete: rows, rejected,
# transaction markers, and gaps.

log = logging.getLogger(__name__)

_BATCH_RECORDS = 10_000
_FILE_ROWS = 50_000
_SILENCE_S = 60.0
_TYPES = {
    "kafka_partition": pa.int64(), "kafka_offset": pa.int64(), "kafka_time": pa.timestamp("us", "UTC"),
    "kafka_key": pa.string(),
}  # fmt: skip
_REJECTED = pa.schema(
    {
        "partition": pa.int64(),
        "offset": pa.int64(),
        "time": pa.timestamp("ms", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "reason": pa.string(),
    }.items()
)


def ingest_topic(
    table: str, source: TopicSource, plan: Any, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Reads the planned records of a topic, as :class:`~airflow_hops.ml.ingest.reader.Reader`.

    ``plan`` is the JSON object of the :class:`TopicRanges`. This process writes the files itself if ``pool`` would run
    on other hosts.

    Raises:
        BadInput: no offsets are planned, planned records have expired or were removed by compaction, none can be
            decoded, or as :func:`~airflow_hops.ml.ingest.reader.ingest_table`.
        HopsError: the brokers or the schema registry do not answer, or a transaction is open.
    """
    if plan is None:
        raise BadInput(f"table {table!r}: only IngestOperator reads {source.uri!r}, by offsets that it plans")
    ranges = TopicRanges.from_dict(plan)
    planned = ranges.window and tuple(ranges.window)
    if planned and planned != window.bounds:
        raise BadInput(
            f"table {table!r}: the offsets of {source.uri!r} were planned for the window {planned}, but the step's is "
            f"{window.bounds}; only a task of IngestOperator plans offsets for another window"
        )
    uploaded: list[Any] = []
    with temporary_folder("topic") as staging, Topic(source.uri, source.storage_options) as topic:
        check_stored(topic, ranges)
        rejected = _Rejected(table, folder, uploaded)
        values = _Values(staging, source, rejected)
        total = sum(end - start for start, end in ranges.offsets.values()) or 1
        for batch, done in read_records(topic, ranges, allow_gaps=source.allow_gaps):
            for record in batch:
                values.add(record)
            progress(0.5 * done / total, f"{done} of {total} offsets")
        staged = values.source()
        rejected.flush()
        entries = [FileEntry(**entry) for entry in uploaded]
        for reason, records in rejected.reasons.items():
            log.warning(
                "%s: %d records are set aside in %s/%s: %s", source.uri, records, REJECTED_FOLDER, table, reason
            )
        if staged is None and source.may_be_empty and not rejected.reasons:
            log.warning("%s: nothing was sent in %s", source.uri, _text(ranges))
            return WindowCounts(), []
        if staged is None:
            reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.reasons.items())
            raise BadInput(
                f"table {table!r}: {source.uri!r} has no usable records in {_text(ranges)} ({reasons or 'empty'})"
            )
        try:
            counts, files = ingest_staged(table, staged, window, folder, pool, progress)
        except BadInput as error:
            raise BadInput(f"table {table!r}: {values.with_offsets(str(error))}") from error
    for reason, records in rejected.reasons.items():
        counts.rows_in += records
        counts.reject(reason, records)
    return counts, [*files, *entries]


def read_records(topic: Topic, ranges: TopicRanges, *, allow_gaps: bool = False) -> Iterator[tuple[list[Any], int]]:
    """Streams the records of closed ranges, with the number of offsets so far.

    Offsets without a record are transaction markers, or records that compaction removed. Only the latter are an error;
    the topic's ``cleanup.policy``, if readable, distinguishes them.

    Raises:
        BadInput: records are missing.
        HopsError: the brokers do not answer, or a transaction is open.
    """
    kafka, gaps, finished = kafka_library(), [], 0
    for partition, (start, end) in sorted(ranges.offsets.items(), key=lambda item: int(item[0])):
        with topic.explaining():
            topic.consumer.assign([kafka.TopicPartition(topic.name, int(partition), start)])
        expected, heard_s = start, time.monotonic()
        while expected < end:
            with topic.explaining():
                messages = topic.consumer.consume(_BATCH_RECORDS, timeout=1.0)
            batch = []
            for message in messages:
                error, offset = message.error(), message.offset()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                    if error.retriable() or error.code() == kafka.KafkaError._ALL_BROKERS_DOWN:
                        continue
                    check_stored(topic, ranges)
                    raise topic.error_of(error)
                if offset > expected and expected < end:
                    gaps.append((partition, expected, min(offset, end)))
                expected = max(expected, offset + (error is None))
                if error is None and offset < end:
                    batch.append(message)
            heard_s = time.monotonic() if messages else heard_s
            if time.monotonic() - heard_s > _SILENCE_S:
                raise HopsError(
                    f"topic {topic.name!r}, partition {partition}: the brokers sent nothing for {_SILENCE_S:.0f} s; "
                    f"offset {expected} is next, or a transaction is open"
                )
            yield batch, finished + min(expected, end) - start
        finished += end - start
    if gaps and not allow_gaps:
        _check_gaps(topic, gaps)


def _check_gaps(topic: Topic, gaps: list[tuple[str, int, int]]) -> None:
    policy = topic.cleanup_policy()
    missing = sum(end - start for _, start, end in gaps)
    if policy is not None and "compact" not in policy:
        log.info("topic %r: %d offsets are transaction markers", topic.name, missing)
        return
    more = ", …" if len(gaps) > 5 else ""
    places = ", ".join(
        f"partition {partition} offset{f's {start} to {end - 1}' if end - start > 1 else f' {start}'}"
        for partition, start, end in gaps[:5]
    )
    why = f"its cleanup.policy is {policy!r}" if policy else "its cleanup.policy cannot be read"
    raise BadInput(
        f"topic {topic.name!r}: {missing} offsets of the range have no record ({places}{more}), "
        f"and {why}, so compaction may have removed them. If that is meant, or they are markers of transactions, set "
        "the source's allow_gaps=True"
    )


class _Values:
    """Writes decoded records to files: the original JSON lines, or a Parquet file for each schema."""

    def __init__(self, folder: Path, source: TopicSource, rejected: _Rejected) -> None:
        self._folder, self._source, self._rejected = folder, source, rejected
        options = source.storage_options
        has_registry = f"{REGISTRY_PREFIX}url" in options
        self._registry = Registry(options, source.format) if has_registry or source.format == "avro" else None
        self._lines: Any = None
        self._rows: dict[bytes, tuple[list[tuple[dict[str, object], object]], pa.Schema]] = {}
        self._schemas: dict[Path, pa.Schema] = {}

    def add(self, record: object) -> None:
        """Stages a record, or sets it aside if it cannot be decoded."""
        try:
            self._add(record)
        except Poison as poison:
            self._rejected.add(record, str(poison))

    def _add(self, record: Any) -> None:
        value = record.value()
        if value is None:
            raise Poison("no value (a tombstone)")
        if self._registry is None:
            key, type_, fields = b"", None, decode_json(value)
        else:
            key, decode, type_ = self._registry.decoder(value)
            fields = decode(value)
        if any(name in fields for name in _TYPES):
            raise Poison("a field has a name that begins with kafka_")
        if self._source.columns is None and any(not name or "\0" in name for name in fields):
            raise Poison("a field has no name that a column can have")
        kind, time_ms = record.timestamp()
        record_key = record.key()
        if time_ms // 1000 not in CALENDAR_S:
            raise Poison("its time is outside the years 1 to 9999")
        facts = {
            "kafka_partition": record.partition(),
            "kafka_offset": record.offset(),
            "kafka_time": datetime.fromtimestamp(time_ms / 1000, UTC) if kind else None,
            "kafka_key": None if record_key is None else record_key.decode("utf-8", "backslashreplace"),
        }
        if type_ is None:
            self._add_line(facts, value[5:] if self._registry is not None else value)
            return
        if key not in self._rows:
            self._rows[key] = [], pa.schema([*_TYPES.items(), *((each.name, each.type) for each in type_)])
        rows, schema = self._rows[key]
        rows.append(({**facts, **fields}, record))
        if len(rows) >= _FILE_ROWS:
            self._write(rows, schema)

    def _add_line(self, facts: dict[str, object], value: bytes) -> None:
        if self._lines is None:
            self._lines = (self._folder / "values.jsonl").open("wb")
        # Writes the original value, since decoding would change long numbers
        text = value.strip()[1:-1].strip().replace(b"\n", b" ").replace(b"\r", b" ")
        self._lines.write(orjson.dumps(facts)[:-1] + (b"," + text if text else b"") + b"}\n")

    def _write(self, rows: list[tuple[dict[str, object], object]], schema: pa.Schema) -> None:
        path = self._folder / f"values-{len(self._schemas):06}.parquet"
        try:
            columns = _columns([row for row, _ in rows], schema)
        except Poison:  # at least one row does not fit
            fitting = []
            for row, record in rows:
                try:
                    _columns([row], schema)
                    fitting.append(row)
                except Poison as poison:
                    self._rejected.add(record, str(poison))
            columns = _columns(fitting, schema)
        if len(columns[0]):
            write_parquet(pa.Table.from_arrays(columns, schema=schema), path)
            self._schemas[path] = schema
        rows.clear()

    def with_offsets(self, text: str) -> str:
        """Returns an error of reading the staged files, with the topic and the record's offset instead of them."""

        def of_record(found: re.Match[str]) -> str:
            name, row = found[1], int(found[2]) - 1
            if name.endswith(".parquet"):
                facts = scan.table([self._folder / name], list(_TYPES)[:2]).slice(row, 1).to_pylist()[0]
            else:
                with (self._folder / name).open("rb") as lines:
                    facts = orjson.loads(next(itertools.islice(lines, row, None)))
            place = f"partition {facts['kafka_partition']}, offset {facts['kafka_offset']}"
            return f"{self._source.uri}, {place}"

        text = re.sub(rf"{re.escape(str(self._folder))}/(values[\w.-]*?), row (\d+)", of_record, text)
        return re.sub(rf"{re.escape(str(self._folder))}(/values[\w-]*\.\w+)?", self._source.uri, text)

    def source(self) -> Source | None:
        """Returns the source of the staged files; None if no record was staged."""
        for rows, schema in self._rows.values():
            if rows:
                self._write(rows, schema)
        if self._lines is not None and self._schemas:
            raise BadInput(
                f"source {self._source.uri!r} has values in JSON, and others with types (Avro); "
                "give its 'format', or a window with values of one kind"
            )
        # Columns of other versions of the schema are null.
        union = {field.name: field for schema in self._schemas.values() for field in schema}
        for path, schema in self._schemas.items():
            if lacking := [field for name, field in union.items() if name not in schema.names]:
                table = scan.table([path])
                for field in lacking:
                    table = table.append_column(field, pa.nulls(len(table), field.type))
                write_parquet(table, path)
        if self._lines is not None:
            self._lines.close()
        elif not self._schemas:
            return None
        return Source(
            str(self._folder),
            format="jsonl" if self._lines is not None else "parquet",
            time_column=self._source.time_column,
            columns=self._source.columns,
            schema=({} if self._schemas else _schema_of_facts(self._source)) | dict(self._source.schema),
        )


def _columns(rows: list[dict[str, Any]], schema: pa.Schema) -> list[pa.Array]:
    """Returns the columns of rows. Raises Poison if a value does not fit its type."""
    columns = []
    for field in schema:
        try:
            columns.append(pa.array([row[field.name] for row in rows], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise Poison(f"a value of {field.name!r} is not of type {field.type}") from error
    return columns


def _schema_of_facts(source: TopicSource) -> dict[str, str]:
    """Returns the types of the records' facts in JSON, of those that the source uses."""
    types = {"kafka_time": "timestamp", "kafka_key": "string"}
    used = {*(source.columns or types), source.time_column}
    return {name: type_ for name, type_ in types.items() if name in used}


class _Rejected:
    """Writes records that cannot be decoded, and counts them by reason."""

    def __init__(self, table: str, folder: OutputFolder, uploaded: list[Any]) -> None:
        self._table, self._folder, self._uploaded = table, folder, uploaded
        self._rows: list[tuple[object, ...]] = []
        self._files = 0
        self.reasons: Counter[str] = Counter()

    def add(self, record: Any, reason: str) -> None:
        time_ms = record.timestamp()[1] if record.timestamp()[0] else None
        self._rows.append((record.partition(), record.offset(), time_ms, record.key(), record.value(), reason))
        self.reasons[reason] += 1
        if len(self._rows) >= _BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*self._rows, strict=True), _REJECTED, strict=True)
        ]
        with self._folder.writing(self._uploaded) as folder:
            path = folder / REJECTED_FOLDER / self._table / f"part-{self._files:05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(pa.Table.from_arrays(columns, schema=_REJECTED), path)
        self._files += 1
        self._rows.clear()


def _text(ranges: TopicRanges) -> str:
    return "; ".join(f"partition {partition} offsets [{s}, {e})" for partition, (s, e) in ranges.offsets.items())
