"""Both environments, made on a machine without a network: ``docs/start/platforms.md``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from step_runner import REPOSITORY
from test_environments import churn, pins, place, template, write_wheel  # noqa: F401

LIBRARIES = """
import pandas, tensorflow_data_validation as tfdv
print(tfdv.generate_statistics_from_dataframe(pandas.DataFrame({"x": [1, 2, 3]})).datasets[0].num_examples)
"""


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command as a new user would, with an own home and so without caches and settings; returns its output."""
    passed = {name: value for name, value in os.environ.items() if name in ("LANG", "PATH", "TMPDIR", "PIP_CERT")}
    begun = time.monotonic()
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, env={**passed, **variables})
    print(f"{time.monotonic() - begun:.0f} s: {' '.join(map(str, command))[:160]}")
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@contextmanager
def served_folder(folder: Path) -> Iterator[str]:
    """Serves the files of a folder, as a package index does, and yields the address of their list."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def size(folder: Path) -> str:
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{folder.name}: {len(files)} files, {sum(files) / 1e9:.2f} GB"


def test_named_environment_is_made_of_the_cache_alone(
    hops: Callable[..., tuple[int, str, str]],
    churn: Path,  # noqa: F811
    pins: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    create = ("runtime", "create", "--name", "churn")
    with served_folder(pins.parent) as address:
        monkeypatch.setenv("UV_FIND_LINKS", address)
        shutil.rmtree(churn)
        assert hops(*create, "--with", "extra")[0] == 0
    shutil.rmtree(churn)
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert hops(*create, "--with", "more")[0] != 0
    code, output, _ = hops(*create, "--with", "extra")
    assert code == 0 and "extra==1.0" in output
    assert list(churn.glob("lib/python3*/site-packages/extra.py"))


@pytest.mark.scheduled(part="air_gap")
@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0, reason="making a network of its own needs root")
def test_environments_of_a_machine_without_a_network(wheel_file: Path, tmp_path: Path) -> None:
    media = tmp_path / "media"
    of_airflow = (REPOSITORY / "requirements" / "airflow.txt").read_text()
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^[a-z][^ \[]*==[^#\n]*$", of_airflow, re.MULTILINE)))
    airflow = re.search(r"^apache-airflow==\S+", of_airflow, re.MULTILINE)
    assert airflow is not None

    # The machine with a network.
    here = {"HOME": os.environ["HOME"], "AIRFLOW_HOME": str(tmp_path / "here"), "UV_CACHE_DIR": str(media / "uv")}
    run(sys.executable, "-m", "venv", tmp_path / "pip")
    pip_wheel = (tmp_path / "pip/bin/pip", "wheel", "--quiet", "--wheel-dir", media / "airflow")
    run(*pip_wheel, wheel_file, airflow[0], "--constraint", constraints, **here)
    program = Path(sys.executable).with_name("airflow")
    run(program, "hops", "runtime", "create", **here)

    # The machine without one: nothing but the folders, and no path to anything that compiles.
    there = {"HOME": str(tmp_path / "there"), "AIRFLOW_HOME": str(tmp_path / "there"), "CXX": "/bin/false"}
    there |= {"UV_CACHE_DIR": str(media / "uv"), "UV_OFFLINE": "1"}
    alone = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    online = "import socket; socket.create_connection(('pypi.org', 443), 5)"
    with pytest.raises(AssertionError, match="gaierror"):
        run(*alone, sys.executable, "-c", online, **there)
    venv = tmp_path / "airflow"
    run(*alone, sys.executable, "-m", "venv", venv, **there)
    install = (venv / "bin/pip", "install", "--quiet", "--no-index", "--find-links", media / "airflow")
    run(*alone, *install, "airflow-hops", "apache-airflow", **there)
    run(*alone, venv / "bin/airflow", "hops", "runtime", "create", **there)
    made = tmp_path / "there/hops-runtime"
    assert run(*alone, made / "bin/python", "-c", LIBRARIES, **there).split() == ["3"]
    run(*alone, venv / "bin/airflow", "db", "migrate", **there)
    checks = json.loads(run(*alone, venv / "bin/airflow", "hops", "doctor", "--output", "json", **there))
    assert not [check for check in checks if check["status"] == "fail"]
    print(size(media / "airflow"), size(media / "uv"), size(venv), size(made), sep="\n")
