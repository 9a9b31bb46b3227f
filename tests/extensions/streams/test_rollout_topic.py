"""Rollouts of a server that captures to a topic alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from served_models import ConnectedServer, Pipeline

from tests.extensions.streams.kafka_brokers import Broker

pytestmark = pytest.mark.runtime


def test_predictions_in_a_topic_are_undecided_only_with_a_limit(
    pipeline: Pipeline, runtime_python: Path, tmp_path: Path, mock_kafka: Broker
) -> None:
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(mock_kafka.config))
    server = ConnectedServer(runtime_python, tmp_path / "server")
    topic = {"capture_sink": f"kafka://captured?config={config}", "capture_spool_path": tmp_path / "spool"}
    server.flags |= {"capture_base_path": "", **topic}
    server.start().wait_until_ready()
    pipeline = replace(pipeline, server=server)
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("second"), canary_percent=50)
    server.ask(pipeline.name, 60)
    limited = pipeline.poll(deployment, limits={"max_prediction_distance": 0.2}, min_requests=1, steps=[50, 100])
    assert "in doubt: predictions: the server sends requests to kafka://captured alone" in limited["waiting"]["text"]
    server.ask(pipeline.name, 60)
    rollout = pipeline.rollout(deployment, min_requests=1)
    assert rollout.properties["decision"] == "promoted"
    findings = [event["findings"] for event in pipeline.record()["history"] if event.get("findings")]
    (finding,) = (each for each in findings[0] if each["what"] == "predictions")
    assert finding["verdict"] == "not_judged" and "need --capture_base_path" in finding["text"]
    server.stop()
