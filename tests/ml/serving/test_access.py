"""Access control: every RPC and route of the table, asked with each kind of token, over TLS."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from server_process import ServerProcess, Start, write_models

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.core.serving_api.rest_client import RestClient
from airflow_hops.core.serving_api.tls_files import TlsFiles
from airflow_hops.serving.access import RIGHTS, Access, Right, TokenFile, right_of, warnings_of
from airflow_hops.serving.api.grpc_methods import service
from airflow_hops.serving.routes import Routes
from tests.ml.model_servers import running_server

ROWS = [[1.0, 2.0, 3.0]]
MAY = {
    "": {Right.OPEN},
    "wrong": {Right.OPEN},
    "predict-1": {Right.OPEN, Right.PREDICT},
    "feedback-1": {Right.OPEN, Right.FEEDBACK},
    "control-1": set(Right),
    "control-2": set(Right),
}


@pytest.fixture(scope="module")
def folder(certificates: Path) -> Path:
    """Keys, certificates and tokens."""
    folder = certificates
    (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
    (folder / "control").write_text("# of operators\ncontrol-1\n\ncontrol-2\n")
    for name in ("prediction", "feedback"):
        (folder / name).write_text(f"{'predict' if name == 'prediction' else name}-1\n")
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def guarded(runtime_python: Path, saved_models: Path, folder: Path) -> Iterator[ServerProcess]:
    """A server with a token file for each right, TLS on both ports, and everything that can be asked."""
    flags = {
        "model_name": "vectors",
        "model_base_path": saved_models / "vectors",
        "ssl_config_file": folder / "ssl.config",
        "rest_api_enable_ssl": "true",
        "monitoring_config_file": folder / "monitoring.config",
        "capture_base_path": folder / "captured",
        **{f"{name}_token_file": folder / name for name in ("control", "prediction", "feedback")},
    }
    with running_server(runtime_python, folder, flags) as server:
        yield server


@pytest.fixture
def tls(folder: Path) -> TlsFiles:
    return TlsFiles(*(str(folder / name) for name in ("server.crt", "client.crt", "client.key")))


@pytest.fixture
def rest(guarded: ServerProcess, tls: TlsFiles) -> Callable[..., http.client.HTTPResponse]:
    def ask(operation: str, token: str, body: bytes = b"{}") -> http.client.HTTPResponse:
        method, path = operation.split()
        path = path.replace("MODEL", "vectors").replace("[/versions/N|/labels/L]", "")
        connection = http.client.HTTPSConnection(guarded.url.removeprefix("http://"), context=tls.context(), timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body if method == "POST" else None, headers)
        response = connection.getresponse()
        response.text = response.read().decode()  # type: ignore[attr-defined]
        return response

    return ask


def test_each_route_requires_its_right(rest: Callable[..., http.client.HTTPResponse]) -> None:
    operations = [each for each in RIGHTS if " " in each]
    wrong = []
    for operation, token in itertools.product(operations, MAY):
        answer: Any = rest(operation, token)
        if RIGHTS[operation] in MAY[token]:
            right = answer.status not in (401, 403) and not re.search("Malformed request|Not found", answer.text)
        elif token in ("", "wrong"):
            denied = (
                "takes the header 'Authorization: Bearer TOKEN' with a token of --" in json.loads(answer.text)["error"]
            )
            right = denied and (answer.status, answer.headers["WWW-Authenticate"]) == (
                401,
                'Bearer realm="model server"',
            )
        else:
            denied = f"This token may not {RIGHTS[operation].value}" in json.loads(answer.text)["error"]
            right = denied and answer.status == 403
        if not right:
            wrong.append((operation, token, answer.status, answer.text))
    assert not wrong


@pytest.fixture(scope="module")
def channel(guarded: ServerProcess, folder: Path) -> Iterator[grpc.Channel]:
    files = TlsFiles(*(str(folder / name) for name in ("server.crt", "client.crt", "client.key")))
    with grpc.secure_channel(guarded.address, files.credentials()) as channel:
        yield channel


def test_each_rpc_requires_its_right(channel: grpc.Channel) -> None:
    wrong = []
    for operation, token in itertools.product((each for each in RIGHTS if " " not in each), MAY):
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        # Of whoever may ask, this is no message.
        with pytest.raises(grpc.RpcError) as answered:
            next(channel.unary_stream(operation)(b"\xff", metadata=metadata, timeout=60))
        code, details = answered.value.code(), answered.value.details()
        if RIGHTS[operation] in MAY[token]:
            right = code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL) or details == "unimplemented."
        elif token in ("", "wrong"):
            right = code is grpc.StatusCode.UNAUTHENTICATED
        else:
            right = code is grpc.StatusCode.PERMISSION_DENIED and "This token may not" in details
        if not right:
            wrong.append((operation, token, code, details))
    assert not wrong


def test_routes_without_an_access_entry_are_refused() -> None:
    for add in (
        lambda: Routes().add("GET /v1/new", lambda request, match: None),  # type: ignore[arg-type, return-value]
        lambda: service("hops.serving.TrafficService", {"New": grpc.unary_unary_rpc_method_handler(print)}),
    ):
        with pytest.raises(LookupError, match=r"New|new is not in airflow_hops\.serving\.access\.RIGHTS"):
            add()
    assert right_of("POST /v1/feedback") is Right.FEEDBACK


def test_clients_send_the_token_for_each_call(guarded: ServerProcess, tls: TlsFiles) -> None:
    port = int(guarded.url.rpartition(":")[2])
    for tokens in ({"token": "control-1"}, {"token": "control-2", "prediction_token": "predict-1"}):
        with ModelServerClient(guarded.address, tls=tls, **tokens) as client:
            assert client.predict("vectors", {"x": ROWS}, request_id="r-1").outputs["y"].tolist() == [[2.0, 4.0, 6.0]]
            assert client.status("vectors")[0].version == 7
            assert client.set_traffic("vectors", None) == client.traffic("vectors")
        by_rest = RestClient("127.0.0.1", port, tls=tls, **tokens)
        assert by_rest.predict("vectors", {"x": ROWS}).outputs["outputs"].tolist() == [[2.0, 4.0, 6.0]]
        assert by_rest.stats()["models"]["vectors"]["versions"]["7"]["requests"] > 0
    only = RestClient("127.0.0.1", port, tls=tls, prediction_token="predict-1")
    assert only.status("vectors")[0].version == 7
    with pytest.raises(ModelServerError, match="To read and change everything else takes the header") as refused:
        only.stats()
    assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
    # REST asks for the client's certificate as gRPC does.
    stranger = RestClient("127.0.0.1", port, tls=TlsFiles(tls.ca_file), token="control-1")
    with pytest.raises(ModelServerError) as refused:
        stranger.stats()
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE


def test_unauthorized_body_is_not_read(guarded: ServerProcess, tls: TlsFiles) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    with tls.context().wrap_socket(socket.create_connection((host, int(port)), 30), server_hostname=host) as connection:
        connection.sendall(b"POST /v1/models/vectors:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in received


def test_tokens_are_reloaded_and_invalid_files_keep_old_ones(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text("old\n")
    path.chmod(0o600)
    file = TokenFile("--control_token_file", str(path))
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def replaced_by(text: str) -> list[str]:
        nonlocal now_s
        path.write_text(text)
        now_s += 1.1
        return [token for token in ("old", "new", "", "two words") if file.holds(token.encode())]

    assert replaced_by("new\nold\n") == ["old", "new"]
    assert replaced_by("new\n# old\n") == ["new"]
    for wrong in ("two words\n", "\n# nothing\n"):
        assert replaced_by(wrong) == ["new"]
        assert f"--control_token_file={path}: expected a token on each line; the tokens that were" in caplog.text
        with pytest.raises(ConfigError, match="expected a token on each line"):
            TokenFile("--control_token_file", str(path))
    assert replaced_by("newer\n") == []
    assert file.first == "newer"
    assert "every user of this machine may read it" not in caplog.text
    path.chmod(0o644)
    TokenFile("--control_token_file", str(path))
    assert f"--control_token_file={path}: every user of this machine may read it" in caplog.text
    path.unlink()
    now_s += 1.1
    assert file.holds(b"newer")


def test_ports_open_to_other_machines_are_reported(folder: Path, start_server: Start, tmp_path: Path) -> None:
    control, prediction = (TokenFile(name, str(folder / name)) for name in ("control", "prediction"))
    plain = ["REST port (--rest_api_enable_ssl)"]
    nobody, some, all_of_them = Access(None), Access(control), Access(control, prediction)
    for host in ("127.0.0.1", "localhost", "::1"):
        assert not list(warnings_of(host, nobody, plain))
    (warning,) = warnings_of("0.0.0.0", nobody, plain)
    assert "clients without a token may predict (--prediction_token_file); and change config" in warning
    warning, unencrypted = warnings_of("::", some, plain)
    assert warning == "--host=::: clients without a token may predict (--prediction_token_file)"
    assert list(warnings_of("10.0.0.1", all_of_them, plain)) == [unencrypted.replace("::", "10.0.0.1", 1)]
    assert unencrypted == "--host=::: tokens can be read on their way to the REST port (--rest_api_enable_ssl)"
    server = start_server(host="0.0.0.0", model_config_file=write_models(tmp_path))
    assert "--host=0.0.0.0: clients without a token may predict" in server.log()


def test_rest_needs_key_and_certificate_that_match(folder: Path, tmp_path: Path) -> None:
    from airflow_hops.serving.errors import StartError
    from airflow_hops.serving.listeners import read_ssl_config, rest_context

    config = read_ssl_config(str(folder / "ssl.config"))
    assert rest_context(config).verify_mode is ssl.CERT_REQUIRED
    config.server_key = (folder / "client.key").read_text()
    with pytest.raises(StartError, match="--ssl_config_file: key and certificates in PEM that match are expected"):
        rest_context(config)
