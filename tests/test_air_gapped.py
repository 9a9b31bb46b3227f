"""Both environments, made on a machine without a network from folders of wheels: ``docs/start/air_gapped.md``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from step_runner import REPOSITORY
from test_environments import churn, pins, place, template, write_wheel  # noqa: F401
from uv import find_uv_bin

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.profiles import STAMP_NAME
from airflow_hops.environments.wheels import mark_folder, pins_of_wheels, write_wheels

LIBRARIES = """
import horovod.tensorflow as hvd, pandas, tensorflow_data_validation as tfdv
hvd.init()
print(tfdv.generate_statistics_from_dataframe(pandas.DataFrame({"x": [1, 2, 3]})).datasets[0].num_examples, hvd.size())
"""


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command as a new user would, with an own home and so without caches and settings; returns its output."""
    passed = {name: value for name, value in os.environ.items() if name in ("LANG", "PATH", "TMPDIR", "PIP_CERT")}
    begun = time.monotonic()
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, env={**passed, **variables})
    print(f"{time.monotonic() - begun:.0f} s: {' '.join(map(str, command))[:160]}")
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def size(folder: Path) -> str:
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{folder.name}: {len(files)} files, {sum(files) / 1e9:.2f} GB"


def test_wheels_of_installed_packages_install_the_same_files(tmp_path: Path) -> None:
    original, first, second, folder = (tmp_path / name for name in ("original", "first", "second", "folder"))
    original.mkdir()
    write_wheel(original, "tiny", "1.0")
    with zipfile.ZipFile(original / "tiny-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("tiny-1.0.data/scripts/say-tiny", "#!python\nimport tiny\nprint(tiny.version)\n")
        wheel.writestr("tiny-1.0.data/data/share/tiny/text", "text")
        wheel.writestr("tiny-1.0.dist-info/entry_points.txt", "[console_scripts]\nstart-tiny = tiny:version.title\n")

    def install(environment: Path, links: Path) -> None:
        subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", sys.executable, environment], check=True)
        target = ("--quiet", "--python", environment / "bin/python", "--compile-bytecode", "--no-index")
        subprocess.run([find_uv_bin(), "pip", "install", *target, "--find-links", links, "tiny"], check=True)

    install(first, original)
    (wheel_of_it,) = write_wheels(first, folder)
    assert wheel_of_it.name == "tiny-1.0-py3-none-any.whl"
    install(second, folder)
    assert subprocess.run([second / "bin/say-tiny"], capture_output=True, text=True, check=True).stdout == "1.0\n"
    names = [{str(path.relative_to(each)) for path in each.rglob("*") if path.is_file()} for each in (first, second)]
    assert names[0] == names[1]
    assert {"bin/start-tiny", "share/tiny/text"} < names[1]

    (site,) = second.glob("lib/python3*/site-packages")
    (site / "tiny.py").write_text("version = 'mine'\n")
    with pytest.raises(HopsError, match=r"tiny-1.0: .*tiny.py is not as it was installed"):
        write_wheels(second, folder)


def test_named_environment_is_made_of_a_folder_alone(
    hops: Callable[..., tuple[int, str, str]],
    churn: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "wheels with spaces"
    assert (
        hops("runtime", "wheels", str(folder))[0] == hops("runtime", "wheels", str(folder), "--name", "churn")[0] == 0
    )
    assert {path.name.partition("-")[0] for path in folder.glob("*.whl")} == {"tiny", "extra"}
    shutil.rmtree(churn)
    # The original wheels, of which there are more, are out of reach.
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    create = ("runtime", "create", "--name", "churn", "--wheels", str(folder))
    assert hops(*create, "--with", "more")[0] != 0
    code, said, _ = hops(*create, "--with", "extra")
    assert code == 0 and "extra==1.0" in said
    assert list(churn.glob("lib/python3*/site-packages/extra.py"))


def test_folders_of_other_pins_are_refused(
    hops: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    pins: Path,  # noqa: F811
) -> None:
    with pytest.raises(BadInput, match="expected a folder that 'airflow hops runtime wheels' has written"):
        pins_of_wheels(tmp_path).__enter__()
    mark_folder(tmp_path, pins)
    assert (tmp_path / STAMP_NAME).exists()
    with pytest.raises(BadInput, match=r"it has the wheels for other pins .* make it with the same version"):
        pins_of_wheels(tmp_path).__enter__()
    code, _, error = hops("runtime", "create", "--wheels", str(tmp_path), "--profile", "base")
    assert code != 0 and "--wheels: expected without --cuda and --profile" in error


@pytest.mark.scheduled(part="air_gap")
@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0, reason="making a network of its own needs root")
def test_environments_from_folders_of_wheels(runtime: Path, wheel_file: Path, tmp_path: Path) -> None:
    media = tmp_path / "media"
    of_airflow = (REPOSITORY / "requirements" / "airflow.txt").read_text()
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^[a-z][^ \[]*==[^#\n]*$", of_airflow, re.MULTILINE)))
    airflow = re.search(r"^apache-airflow==\S+", of_airflow, re.MULTILINE)
    assert airflow is not None

    # The machine with a network.
    here = {"HOME": os.environ["HOME"], "AIRFLOW_HOME": str(tmp_path / "here")}
    run(sys.executable, "-m", "venv", tmp_path / "pip")
    pip_wheel = (tmp_path / "pip/bin/pip", "wheel", "--quiet", "--wheel-dir", media / "airflow")
    run(*pip_wheel, wheel_file, airflow[0], "--constraint", constraints, **here)
    program = Path(sys.executable).with_name("airflow")
    run(program, "hops", "runtime", "wheels", media / "runtime", "--path", runtime, **here)

    # The machine without one: nothing but the folders, and no path to anything that compiles.
    there = {"HOME": str(tmp_path / "there"), "AIRFLOW_HOME": str(tmp_path / "there"), "CXX": "/bin/false"}
    alone = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    online = "import socket; socket.create_connection(('pypi.org', 443), 5)"
    with pytest.raises(AssertionError, match="gaierror"):
        run(*alone, sys.executable, "-c", online, **there)
    venv = tmp_path / "airflow"
    run(*alone, sys.executable, "-m", "venv", venv, **there)
    install = (venv / "bin/pip", "install", "--quiet", "--no-index", "--find-links", media / "airflow")
    run(*alone, *install, "airflow-hops", "apache-airflow", **there)
    run(*alone, venv / "bin/airflow", "hops", "runtime", "create", "--wheels", media / "runtime", **there)
    made = tmp_path / "there/hops-runtime"
    assert run(*alone, made / "bin/python", "-c", LIBRARIES, **there).split() == ["3", "1"]
    run(*alone, venv / "bin/airflow", "db", "migrate", **there)
    checks = json.loads(run(*alone, venv / "bin/airflow", "hops", "doctor", "--output", "json", **there))
    assert not [check for check in checks if check["status"] == "fail"]
    print(size(media / "airflow"), size(media / "runtime"), size(venv), size(made), sep="\n")
