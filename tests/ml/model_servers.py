"""Fixtures: real server processes and the models that they serve."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, Start, versions, write_models

from tests.ml.forked_servers import ForkedServer
from tests.ml.serving import make_models


@contextlib.contextmanager
def running_server(python: Path, folder: Path, flags: Mapping[str, Any]) -> Iterator[ServerProcess]:
    server = ForkedServer(python, folder, flags).start()
    try:
        yield server.wait_until_ready()
    finally:
        server.close()


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``flights`` (versions 1, 2, 3), ``vectors`` (version 7) and ``fragile`` (version 1)."""
    folder = tmp_path_factory.mktemp("saved-models")
    make_models.main(folder)
    return folder


@pytest.fixture
def start_server(runtime_python: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts servers of one test; ``wait=False`` returns before they are ready."""
    servers: list[ServerProcess] = []

    def start(*, wait: bool = True, **flags: object) -> ServerProcess:
        server = ForkedServer(runtime_python, tmp_path / f"server-{len(servers)}", flags).start()
        servers.append(server)
        return server.wait_until_ready() if wait else server

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def shared_server(
    runtime_python: Path, saved_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of ``flights`` (versions 1 and 2, labels stable and canary) and ``vectors`` that tests only ask."""
    folder = tmp_path_factory.mktemp("shared-server")
    labels = " ".join(f'version_labels {{ key: "{name}" value: {n} }}' for n, name in ((1, "stable"), (2, "canary")))
    flights = saved_models / "flights", f"{versions(1, 2)} {labels}"
    config = write_models(folder, flights=flights, vectors=saved_models / "vectors")
    with running_server(runtime_python, folder, {"model_config_file": config}) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with keys and certificates of ``server`` and ``client``, and ``ssl.config``, which asks for both."""
    folder = tmp_path_factory.mktemp("certificates")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    for name in ("server", "client"):
        files = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
        extension = ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(["openssl", *request.split(), *files, *extension], check=True, capture_output=True)
    fields = {"server_key": "server.key", "server_cert": "server.crt", "custom_ca": "client.crt"}
    lines = [f"{field}: {json.dumps((folder / name).read_text())}" for field, name in fields.items()]
    (folder / "ssl.config").write_text("\n".join([*lines, "client_verify: true\n"]))
    return folder


@pytest.fixture(scope="session")
def format_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a model of each kind that the server opens, each as version 1."""
    from tests.ml.serving import make_format_models

    folder = tmp_path_factory.mktemp("format-models")
    make_format_models.main(folder)
    return folder


@pytest.fixture(scope="session")
def formats_server(
    runtime_python: Path, format_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of all ``format_models`` that tests only ask."""
    folder = tmp_path_factory.mktemp("formats-server")
    models = {path.name: path for path in sorted(format_models.iterdir()) if path.is_dir()}
    config = write_models(folder, **models)
    flags = {"trusted_skops_types": "_operator.neg", "max_num_load_retries": 0}
    with running_server(runtime_python, folder, {"model_config_file": config, **flags}) as server:
        yield server


@pytest.fixture
def publish(saved_models: Path) -> Callable[..., Path]:
    """Publishes a copy of a version under a base path by rename, as a deploy does."""

    def publish_version(model: str, version: int, base_path: Path, as_version: int | None = None) -> Path:
        target = base_path / str(as_version or version)
        base_path.mkdir(parents=True, exist_ok=True)
        temporary = base_path / f".{target.name}.tmp"
        shutil.copytree(saved_models / model / str(version), temporary)
        temporary.rename(target)
        return target

    return publish_version
