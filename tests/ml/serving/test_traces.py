"""Spans of requests: those of sampled traces, with their phases, by OTLP; none of others."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from otlp_receiver import attributes, otlp_receiver
from server_process import ServerProcess, Start, predict_request, versions, write_models
from waiting import wait_for

from airflow_hops.serving.monitoring.traces import Traces

ROW = {"instances": [{"carrier": "AA", "distance": [733.0], "hour": 5}]}
PREDICT = "/tensorflow.serving.PredictionService/Predict"


def traceparent(flags: str = "01") -> tuple[str, bytes, bytes]:
    """The header of a client's trace, and the ids of the trace and of the client's span."""
    trace, span = secrets.token_bytes(16), secrets.token_bytes(8)
    return f"00-{trace.hex()}-{span.hex()}-{flags}", trace, span


def grpc_predict(server: ServerProcess, header: str, model: str = "flights") -> None:
    inputs = {"carrier": np.array([b"AA"], object), "distance": np.array([[733.0]], np.float32), "hour": [5]}
    with grpc.insecure_channel(server.address) as channel:
        message = predict_request(model, **inputs).SerializeToString()
        channel.unary_unary(PREDICT)(message, metadata=[("traceparent", header)], timeout=60)


def test_sampled_requests_are_spans_of_their_clients(
    start_server: Start, saved_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    (tmp_path / "batching.config").write_text("batch_timeout_micros { value: 20000 }")
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2)))
    with otlp_receiver() as receiver:
        server = start_server(
            model_config_file=config,
            otlp_traces_endpoint=receiver.url,
            enable_batching="true",
            batching_parameters_file=tmp_path / "batching.config",
        )
        before_ns = time.time_ns()
        (rest, rest_trace, rest_parent), (rpc, rpc_trace, rpc_parent), (lost, lost_trace, _) = map(
            traceparent, ["01", "03", "01"]
        )
        server.predict("flights", ROW, headers={"TraceParent": rest, "tracestate": "vendor=1"})
        grpc_predict(server, rpc)
        with pytest.raises(grpc.RpcError, match="not found"):
            grpc_predict(server, lost, "unknown")
        for header in ({}, {"traceparent": traceparent("00")[0]}, {"traceparent": f"{rest}-more-of-it"}):
            server.predict("flights", ROW, headers=header)
        after_ns = time.time_ns()
        assert server.terminate() == 0  # the last spans are sent
    of_rest, of_rpc, of_lost = (
        next(span for span in receiver.spans if span.kind == 2 and span.trace_id == trace)
        for trace in (rest_trace, rpc_trace, lost_trace)
    )
    assert len([span for span in receiver.spans if span.kind == 2]) == 3
    assert (of_rest.name, of_rpc.name) == ("POST /v1/models/flights:predict", PREDICT[1:])
    assert (of_rest.parent_span_id, of_rpc.parent_span_id) == (rest_parent, rpc_parent)
    assert of_rest.trace_state == "vendor=1"
    shared = {"hops.model": "flights", "hops.version": 2, "hops.rows": 1}
    assert attributes(of_rest) == {**shared, "http.response.status_code": 200}
    assert attributes(of_rpc) == shared
    for span in (of_rest, of_rpc):
        children = receiver.children(span)
        assert children.keys() == {"queue", "decode", "batch", "predict"}
        assert all(child.trace_id == span.trace_id and child.kind == 1 for child in children.values())
        times = [before_ns, span.start_time_unix_nano, children["queue"].end_time_unix_nano]
        predict, batch = children["predict"], children["batch"]
        times += [children["decode"].start_time_unix_nano, predict.start_time_unix_nano, batch.start_time_unix_nano]
        times += [batch.end_time_unix_nano, predict.end_time_unix_nano, span.end_time_unix_nano, after_ns]
        assert times == sorted(times)
        assert 15e6 < batch.end_time_unix_nano - batch.start_time_unix_nano < 5e9  # the time-out of a batch
    assert attributes(of_lost) == {"hops.model": "unknown", "rpc.grpc.status_code": 5}
    assert of_lost.status.code == 0, "the client's mistake is no error of the server"
    assert {each["service.name"] for each in receiver.resources} == {"airflow-hops-model-server"}
    assert {each["Api-Key"] for each in receiver.headers} == {"secret"}


def test_server_errors_are_errors_of_spans_and_a_lost_collector_is_logged(
    start_server: Start, saved_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    config = write_models(tmp_path, vectors=saved_models / "vectors")
    slow, header = {"signature_name": "slow", "inputs": {"rounds": 1}}, {"traceparent": traceparent()[0]}
    with otlp_receiver() as receiver:
        server = start_server(model_config_file=config, otlp_traces_endpoint=receiver.url, rest_api_timeout_in_ms=1)
        assert server.call("/v1/models/vectors:predict", slow, headers=header)[0] == 504
        wait_for(lambda: receiver.spans)
        (span,) = (span for span in receiver.spans if span.kind == 2)
        assert (span.status.code, span.status.message) == (2, "HTTP status 504")
        assert attributes(span)["http.response.status_code"] == 504
    server.call("/v1/models/vectors:predict", slow, headers=header)
    wait_for(lambda: "spans are dropped: --otlp_traces_endpoint=http://127.0.0.1:" in server.log(), server.log)
    flags = {"model_config_file": config, "otlp_traces_endpoint": "collector:4317"}
    wrong = start_server(wait=False, **flags)
    assert wrong.process.wait(60) == 2 and "expected a URL that begins with http:// or https://" in wrong.log()


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Exception, match=r"--otlp_traces_endpoint=http://c:4318/v1/traces: .*opentelemetry-sdk"):
        Traces("http://c:4318/v1/traces")
