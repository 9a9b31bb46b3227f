"""Sockets, TLS, bodies, limits of time and size, and what happens between SIGTERM and the end."""

from __future__ import annotations

import collections
import contextlib
import gzip
import http.client
import json
import random
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from server_process import ServerProcess, Start, predict_request, versions, write_models
from waiting import wait_for

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.tls_files import TlsFiles
from tests.ml.model_servers import running_server

ROW = {"instances": [[1.0, 2.0, 3.0]]}
VECTOR = predict_request("vectors", x=np.array(ROW["instances"], np.float32))
FLIGHT = {"carrier": np.array(["AA"], object), "hour": [5], "distance": np.array([[7]], np.float32)}


@pytest.fixture(scope="module")
def strict_server(
    runtime_python: Path, saved_models: Path, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """A server with TLS, CORS, and narrow limits."""
    folder = tmp_path_factory.mktemp("strict")
    flags = {
        "model_name": "vectors",
        "model_base_path": saved_models / "vectors",
        "ssl_config_file": certificates / "ssl.config",
        "grpc_channel_arguments": "grpc.max_connection_age_ms=3600000,grpc.primary_user_agent=test",
        "rest_api_enable_cors_support": "true",
        "rest_api_timeout_in_ms": 1500,
        "rest_api_idle_seconds": 2,
        "max_receive_seconds": 3,
        "max_request_bytes": 100_000,
        "max_request_memory_bytes": 3_000_000,
    }
    with running_server(runtime_python, folder, flags) as server:
        yield server


def raw_request(server: ServerProcess, text: str, timeout_s: float = 30.0) -> str:
    """Everything the server answers until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(text.encode())
        while chunk := connection.recv(65536):
            received += chunk
    return received.decode()


def trickled(server: ServerProcess, head: str) -> str:
    """The answer to a client that goes on sending a byte now and then, never as slow as to be idle."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=0.2) as connection:
        connection.sendall(head.encode())
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                return connection.recv(100).decode()
            connection.sendall(b" ")
    return "the server has taken bytes for 20 s"


def http_call(
    server: ServerProcess, method: str, path: str, body: bytes = b"", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=300)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


def own_tls(certificates: Path) -> TlsFiles:
    """Files of a client that the server lets in."""
    return TlsFiles(*(str(certificates / name) for name in ("server.crt", "client.crt", "client.key")))


def test_tls_asks_for_the_client_certificate(strict_server: ServerProcess, certificates: Path) -> None:
    with ModelServerClient(strict_server.address, tls=own_tls(certificates)) as client:
        assert client.predict("vectors", {"x": ROW["instances"]}).outputs["y"].tolist() == [[2.0, 4.0, 6.0]]
    for tls in (TlsFiles(str(certificates / "server.crt")), None):
        with ModelServerClient(strict_server.address, tls=tls, timeout_s=3) as stranger:
            with pytest.raises(ModelServerError) as refused:
                stranger.status("vectors")
            assert refused.value.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_grpc_request_over_the_limit_is_refused(strict_server: ServerProcess, certificates: Path) -> None:
    with ModelServerClient(strict_server.address, tls=own_tls(certificates)) as client:
        assert client.predict("vectors", {"x": ROW["instances"]}).version == 7
        with pytest.raises(ModelServerError, match="Received message larger than max") as refused:
            client.predict("vectors", {"x": [[1.0, 2.0, 3.0]] * 10_000})
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_cors_requests_are_allowed(strict_server: ServerProcess) -> None:
    asked = http_call(strict_server, "OPTIONS", "/v1/models/vectors:predict", Origin="http://elsewhere")
    answered = http_call(strict_server, "GET", "/v1/models/vectors")
    assert (asked.status, answered.status) == (200, 200)
    for response in (asked, answered):
        assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in asked.headers["Access-Control-Allow-Methods"]


def test_compressed_bodies_work_and_bombs_are_refused(strict_server: ServerProcess) -> None:
    path = "/v1/models/vectors:predict"
    rows = json.dumps({"instances": [[1.0, 2.0, 3.0]] * 200}).encode()
    response = http_call(
        strict_server, "POST", path, gzip.compress(rows), Content_Encoding="gzip", Accept_Encoding="gzip"
    )
    assert response.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(response.read())) == {"predictions": [[2.0, 4.0, 6.0]] * 200}
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 100_000
    too_large = "Received message larger than max (100000 bytes, --max_request_bytes)"
    for body, encoding, status, message in (
        (bomb, "gzip", 413, too_large),
        (b" " * 200_000, "identity", 413, too_large),
        (gzip.compress(rows + b" " * 80_000), "gzip", 413, "more memory than there is for all requests under way"),
        (gzip.compress(rows)[:-20], "gzip", 400, "Body is not valid gzip: it ends early"),
        (rows, "gzip", 400, "Body is not valid gzip: Error -3"),
        (rows, "br", 400, "Content-Encoding br is not supported"),
    ):
        response = http_call(strict_server, "POST", path, body, Content_Encoding=encoding)
        assert (response.status, message in json.loads(response.read())["error"]) == (status, True), (encoding, message)


def test_chunked_bodies_head_and_expect_continue_work(strict_server: ServerProcess) -> None:
    body = json.dumps(ROW)
    chunks = f"{len(body[:9]):x}\r\n{body[:9]}\r\n{len(body[9:]):x}\r\n{body[9:]}\r\n0\r\n\r\n"
    head = "POST /v1/models/vectors:predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    assert '{"predictions":[[2.0,4.0,6.0]]}' in raw_request(
        strict_server, f"{head}Transfer-Encoding: chunked\r\n\r\n{chunks}"
    )
    continued = raw_request(strict_server, f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n{body}")
    assert continued.endswith('{"predictions":[[2.0,4.0,6.0]]}')
    response = http_call(strict_server, "HEAD", "/v1/models/vectors")
    assert (response.status, response.read()) == (200, b"")
    assert int(response.headers["Content-Length"]) > 100


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/versions/7", 400, "Missing model name in request."),
        ("GET", "/v1/models/vectors:predict", 400, "Malformed request: GET /v1/models/vectors:predict"),
        ("POST", "/v1/models/vectors", 400, "Malformed request: POST /v1/models/vectors"),
        ("POST", "/v1/models/vectors:explain", 400, "Malformed request: POST /v1/models/vectors:explain"),
        ("DELETE", "/v1/models/vectors", 400, "Malformed request: DELETE /v1/models/vectors"),
        ("POST", "/v1/models/vectors/versions/x:predict", 400, "Malformed request: POST /v1/models/vectors/versions/x"),
        ("GET", f"/v1/models/vectors/versions/{2**63}", 400, f"Failed to convert version: {2**63} to numeric."),
        ("GET", "/V1/ODD", 400, "Malformed request: GET /V1/ODD"),
        ("GET", "/v3/models/vectors", 404, "Not found: /v3/models/vectors"),
        ("GET", "/monitoring/prometheus/metrics", 404, "Not found: /monitoring/prometheus/metrics"),
    ],
)
def test_invalid_paths_are_refused(
    strict_server: ServerProcess, method: str, path: str, status: int, message: str
) -> None:
    response = http_call(strict_server, method, path)
    assert response.status == status
    assert json.loads(response.read())["error"].startswith(message)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://any.host:8501/v1/models/vectors", 200),
        ("HTTPS://[::1]:8501/v1/models/vectors/metadata?x=http://y", 200),
        ("http://any.host/v1/models/%76ectors", 200),
        ("http://any.host/healthz", 200),
        ("http://any.host/readyz?a=b", 200),
        ("http://any.host/v1/models/vectors/", 400),
        ("http://any.host/v1/odd", 400),
        ("http://any.host?/v1/models/vectors", 404),
        ("http://any.host", 404),
        ("/v1/models/vectors?x=1&y", 200),
        ("/http://any.host/v1/models/vectors", 404),
    ],
)
def test_absolute_target_is_answered_as_its_path(strict_server: ServerProcess, target: str, status: int) -> None:
    for method in ("GET", "HEAD"):
        answer = raw_request(strict_server, f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(f"HTTP/1.1 {status} "), answer
    body = json.dumps(ROW)
    head = "Host: x\r\nConnection: close\r\nEXPECT: 100-Continue\r\nCONTENT-LENGTH"
    posted = f"POST http://any.host/v1/models/vectors:predict HTTP/1.1\r\n{head}: {len(body)}\r\n\r\n{body}"
    assert raw_request(strict_server, posted).endswith('{"predictions":[[2.0,4.0,6.0]]}')


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("GZIP", "gzip"), ("br, gzip;q=0.5", "gzip"), ("gzip;q=0", None), ("gzip; q=0.0, br", None), ("notgzip", None)],
)
def test_answer_is_compressed_only_if_the_client_takes_it(
    strict_server: ServerProcess, accepted: str, encoding: str | None
) -> None:
    rows = json.dumps({"instances": [[1.0, 2.0, 3.0]] * 200}).encode()
    response = http_call(strict_server, "POST", "/v1/models/vectors:predict", rows, Accept_Encoding=accepted)
    assert (response.status, response.headers["Content-Encoding"]) == (200, encoding)


def test_slow_answer_is_504_and_its_run_ends(strict_server: ServerProcess) -> None:
    status, answer = strict_server.call("/v1/models/vectors:predict", {"signature_name": "slow", "inputs": 10**12})
    assert (status, answer) == (504, {"error": "Timed out waiting for notification"})
    assert strict_server.predict("vectors", ROW) == {"predictions": [[2.0, 4.0, 6.0]]}

    def is_idle() -> bool:
        taken_s = strict_server.cpu_s()
        time.sleep(0.5)
        return strict_server.cpu_s() - taken_s <= 0.1

    wait_for(is_idle, "the end of the run", 60)


def test_request_counts_until_its_run_ends(strict_server: ServerProcess, certificates: Path) -> None:
    path, pad = "/v1/models/vectors:predict", b" " * 45_000
    large = json.dumps({"signature_name": "slow", "inputs": 10**12}).encode() + pad
    small = json.dumps(ROW).encode() + pad[:10_000]

    def ask_until_there_is_room() -> int:
        while (status := strict_server.call(path, large)[0]) == 429:
            pass
        return status

    refused: set[str] = set()
    client = ModelServerClient(strict_server.address, tls=own_tls(certificates))
    with ThreadPoolExecutor(1) as pool, client:
        slow = pool.submit(ask_until_there_is_room)
        while not slow.done():
            status, answer = strict_server.call(path, small)
            assert status in (200, 429)
            if status == 429:
                refused.add(answer["error"])
                with contextlib.suppress(ModelServerError):
                    client.predict("vectors", {"x": ROW["instances"] * 2000})
                    pytest.fail("a message of 24 KB is answered beside it")
            time.sleep(0.05)
        assert slow.result() == 504
    (message,) = refused
    assert message.startswith("Other requests under way leave too little memory (3000000 bytes for all")
    wait_for(lambda: strict_server.call(path, small)[0] == 200, strict_server.log, 60)


def test_slow_clients_are_disconnected_and_hold_no_thread(strict_server: ServerProcess) -> None:
    """More of them than the server has threads; each is answered or closed, and others are served meanwhile."""
    head = "POST /v1/models/vectors:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    answers: list[str] = []
    texts = [head + '{"instances":'] * 30 + ["GET /v1/mod"] * 10
    clients = [threading.Thread(target=lambda text: answers.append(raw_request(strict_server, text)), args=(text,))
               for text in texts]  # fmt: skip
    clients.append(threading.Thread(target=lambda: answers.append(trickled(strict_server, head))))
    for client in clients:
        client.start()
    assert strict_server.predict("vectors", ROW) == {"predictions": [[2.0, 4.0, 6.0]]}
    for client in clients:
        client.join()
    assert sorted(answer[:12] for answer in answers) == [""] * 10 + ["HTTP/1.1 504"] * 31


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.scheduled(part="campaigns"))])
def test_slow_clients_take_nothing_from_others(start_server: Start, saved_models: Path, seed: int) -> None:
    """Neither requests in flight nor memory, whatever they have sent of a request, by either API."""
    draw = random.Random(seed)
    limits = {"max_in_flight": 4, "max_request_bytes": 100_000, "max_request_memory_bytes": 3_000_000}
    server = start_server(model_name="vectors", model_base_path=saved_models / "vectors", **limits)
    head = b"POST /v1/models/vectors:predict HTTP/1.1\r\nHost: x\r\n"
    whole = head + b"Content-Length: 100000\r\n\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    parts = b"P", head, whole, whole + b"{", chunked + b"fff"
    sent = [*parts, whole + bytes(90_000), chunked + b"15f90\r\n" + bytes(90_000)]
    address = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        stream = channel.stream_unary(str(protocol.Method.PREDICT))
        ended = threading.Event()
        stack.callback(ended.set)

        def nothing_yet() -> Iterator[bytes]:
            ended.wait()
            yield from ()

        begun = [stream.future(nothing_yet()) for _ in range(20)]
        slow = []
        for _ in range(100):
            slow.append(stack.enter_context(socket.create_connection((address[0], int(address[1])))))
            slow[-1].sendall(draw.choice(sent))
        predict = channel.unary_unary(str(protocol.Method.PREDICT))
        answers = collections.Counter[Any]()
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s or answers[200, True] < 20:
            with contextlib.suppress(OSError):
                draw.choice(slow).sendall(b" ")  # some go on, a byte at a time
            body = {"instances": ROW["instances"] * draw.choice([1, 900])}
            status = server.call("/v1/models/vectors:predict", body)[0]
            is_late = time.monotonic() > until_s - 4
            answers[status, is_late] += 1
            answers[bool(predict(VECTOR.SerializeToString(), timeout=300)), is_late] += 1
        # Within the first seconds, a body that pauses cannot be told from others.
        assert {status for status, is_late in answers if is_late} == {200, True}, answers
        assert not any(call.done() for call in begun)


def test_excess_requests_in_flight_are_refused_on_arrival(start_server: Start, saved_models: Path) -> None:
    server = start_server(
        model_name="vectors", model_base_path=saved_models / "vectors", max_in_flight=2, grpc_max_threads=1
    )
    slow = predict_request("vectors", "slow", rounds=400)
    with grpc.insecure_channel(server.address) as channel:
        predict = channel.unary_unary(str(protocol.Method.PREDICT))
        # One runs, one waits, and the others do not wait to be refused.
        order: list[grpc.Call] = []
        calls = [predict.future(slow.SerializeToString()) for _ in range(6)]
        for call in calls:
            call.add_done_callback(order.append)
        codes = {call: call.code() for call in calls}
        while len(order) < 6:
            time.sleep(0.01)
        assert [codes[call] for call in order] == [grpc.StatusCode.UNAVAILABLE] * 4 + [grpc.StatusCode.OK] * 2
        assert {call.details() for call in order[:4]} == {"Too many requests in flight"}
    clients = [slow_predict(server, 1_000) for _ in range(2)]
    in_flight(server, clients[0][0])  # a status request sent now could take the place of one of them
    while (answer := server.call("/v1/models/vectors"))[0] == 200:
        assert all(client.is_alive() for client, _ in clients)
    assert answer == (503, {"error": "Too many requests in flight"})
    assert server.call("/readyz")[0] == 200
    for client, answers in clients:
        client.join()
        assert answers[0][0] == 200


def raw_predict(server: ServerProcess, message: bytes, metadata: dict[bytes, bytes]) -> list[tuple[int, bytes]]:
    """Kind and payload of each HTTP/2 frame that answers; the metadata may be what no gRPC client would send."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload

    headers = {
        **{b":method": b"POST", b":scheme": b"http", b":path": str(protocol.Method.PREDICT).encode()},
        **{b":authority": b"test", b"te": b"trailers", b"content-type": b"application/grpc"},
        **metadata,
    }
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in headers.items())
    length = struct.pack(">BI", 0, len(message))
    sent = frame(4, 0, 0, b"") + frame(1, 4, 1, block) + frame(0, 1, 1, length + message)
    host, port = server.address.split(":")
    results: list[tuple[int, bytes]] = []
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + sent)
        stream = connection.makefile("rb")
        while True:
            head = stream.read(9)
            payload = stream.read(int.from_bytes(head[:3], "big"))
            if head[5:] == bytes((0, 0, 0, 1)):
                results.append((head[3], payload))
                if head[4] & 1:
                    return results


@pytest.mark.parametrize("request_id", [b"r-1", "né".encode(), b"\xff\xfe", b"a\tb", b"\x7f"])
def test_invalid_request_id_does_not_prevent_the_answer(shared_server: ServerProcess, request_id: bytes) -> None:
    frames = raw_predict(shared_server, VECTOR.SerializeToString(), {b"x-request-id": request_id})
    data = b"".join(payload for kind, payload in frames if kind == 0)
    assert list(protocol.PredictResponse.FromString(data[5:]).outputs["y"].float_val) == [2, 4, 6]
    assert (b"x-request-id" in frames[-1][1]) is (request_id == b"r-1")


def test_slow_version_delays_no_other_version(start_server: Start, saved_models: Path, tmp_path: Path) -> None:
    shutil.copytree(saved_models / "flights" / "1", tmp_path / "both" / "1")
    shutil.copytree(saved_models / "vectors" / "7", tmp_path / "both" / "2")
    server = start_server(model_config_file=write_models(tmp_path, both=(tmp_path / "both", versions())))
    quick, slow = predict_request("both", **FLIGHT), predict_request("both", "slow", rounds=10**12)
    quick.model_spec.version.value, slow.model_spec.version.value = 1, 2
    message = slow.SerializeToString()
    # Both of one size: what is missing goes into a field that nobody knows.
    missing = quick.ByteSize() - len(message) - 3
    message += bytes((0xC2, 0x3E, missing)) + bytes(missing)
    with grpc.insecure_channel(server.address) as channel:
        predict = channel.unary_unary(str(protocol.Method.PREDICT))
        for _ in range(200):
            predict(quick.SerializeToString(), timeout=60)
        runs = predict.future(message, timeout=60)
        in_flight(server, runs)
        assert predict(quick.SerializeToString(), timeout=50)
        assert not runs.done()
        runs.cancel()
    few = json.dumps({"inputs": {"carrier": ["AA"], "hour": [5], "distance": [[7]]}}).encode()
    many = json.dumps({"signature_name": "slow", "inputs": {"rounds": 10**12}}).encode().ljust(len(few))
    assert len(many) == len(few)
    for _ in range(200):
        server.predict("both/versions/1", few)

    def ask() -> None:
        with contextlib.suppress(OSError):  # the server ends first
            server.call("/v1/models/both/versions/2:predict", many)

    asks = threading.Thread(target=ask)
    asks.start()
    in_flight(server, asks)
    assert server.predict("both/versions/1", few)
    assert asks.is_alive()


def slow_predict(server: ServerProcess, rounds: int) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    body = {"signature_name": "slow", "inputs": rounds}
    client = threading.Thread(target=lambda: answers.append(server.call("/v1/models/vectors:predict", body)))
    client.start()
    return client, answers


def in_flight(server: ServerProcess, client: threading.Thread | grpc.Future) -> None:
    """Waits until the slow request keeps the server busy."""
    before_s = server.cpu_s()
    while server.cpu_s() - before_s < 0.2:
        assert client.is_alive() if isinstance(client, threading.Thread) else client.running()
        time.sleep(0.05)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_drain_answers_requests_in_flight_and_refuses_new_ones(
    start_server: Start, saved_models: Path, signal_number: int
) -> None:
    server = start_server(model_name="vectors", model_base_path=saved_models / "vectors")
    channel = grpc.insecure_channel(server.address)
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check", response_deserializer=protocol.HealthCheckResponse.FromString
    )
    assert check(b"").status == 1
    client, answers = slow_predict(server, 1500)
    in_flight(server, client)
    server.process.send_signal(signal_number)
    for path in ("/readyz", "/v1/models/vectors"):
        wait_for(lambda path=path: server.call(path)[0] == 503, path, poll_s=0.02)
    refused = http_call(server, "POST", "/v1/models/vectors:predict", json.dumps(ROW).encode())
    assert (refused.status, refused.headers["Retry-After"], refused.headers["Connection"]) == (503, "1", "close")
    assert json.loads(refused.read()) == {"error": "The server is shutting down"}
    assert server.call("/healthz")[0] == 200
    with ModelServerClient(server.address, timeout_s=60) as late, pytest.raises(ModelServerError) as error:
        late.status("vectors")
    assert error.value.code is grpc.StatusCode.UNAVAILABLE
    client.join()
    assert answers[0][0] == 200
    assert server.process.wait() == 0


def test_second_sigterm_ends_at_once(start_server: Start, saved_models: Path) -> None:
    server = start_server(
        model_name="vectors", model_base_path=saved_models / "vectors", drain_delay_seconds=60, drain_seconds=60
    )
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.call("/readyz")[0] == 503, server.log, poll_s=0.02)
    # In the delay a load balancer takes to see that, requests are still answered.
    assert server.predict("vectors", ROW) == {"predictions": [[2.0, 4.0, 6.0]]}
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait() == 128 + signal.SIGTERM
