"""Sends captured tables to a Kafka topic as the model server does, and ingests the topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.extensions.streams import TopicSource
from airflow_hops.extensions.streams.core.ranges import plan_ranges
from airflow_hops.extensions.streams.serving.capture import LABELS_SUFFIX, CapturedTopic
from airflow_hops.ml.ingest import ingest_table
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import IN_PROCESS
from airflow_hops.ml.step.context import StepContext
from airflow_hops.serving.capture.batch import BatchFile
from tests.extensions.streams.kafka_brokers import Broker


def ingest_captured(
    broker: Broker, folder: Path, run_stage: Callable[..., Any], tables: Sequence[pa.Table], *, labels: bool = False
) -> Artifact:
    """Returns a snapshot, table ``captured``, of all rows of a topic to which tables were sent in one batch.

    Without tables, it is one of a window in which nothing was sent.
    """
    config = folder / "kafka.json"
    config.write_text(json.dumps(broker.config))
    rows = BatchFile("flights", "", "", 1, 0, bytes)
    parts = [replace(rows, labels=int(labels), table=lambda table=table: table) for table in tables]
    assert not tables or CapturedTopic(f"kafka://captured?config={config}", "tests").send(parts) == {}
    name = f"captured{LABELS_SUFFIX if labels else ''}"
    source = TopicSource(f"kafka://{name}", storage_options=broker.config, allow_gaps=True, may_be_empty=True)
    if not tables:  # a range without messages
        source = replace(source, offsets={"0": (0, 0)})
    window = Window(None, None)

    def ingest(context: StepContext) -> Artifact:
        with context.output() as writer:
            folder = OutputFolder(str(writer.path))
            rows, _ = ingest_table("captured", source, window, folder, IN_PROCESS, print, ranges.to_dict())
            return writer.commit(rows={"captured": rows})

    ranges = plan_ranges(source, (None, None))
    snapshot: Artifact = run_stage(ingest, kind="snapshot")
    return snapshot
