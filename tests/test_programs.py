"""Programs of this package: they find it alone, from wherever it was imported, and nothing that lies around."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import airflow_hops
from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.core.steps.protocol import StepResult, StepSpec
from airflow_hops.runner.launchers.local import LocalLauncher

PACKAGE = Path(airflow_hops.__file__).parent
PROGRAMS = Path(__file__).parent / "steps" / "start_programs.py"
_WHAT_IS_FOUND = """
import importlib.util, json, sys
import airflow_hops.core.store
from airflow_hops.core.processes.programs import PATH_ENTRY
print(json.dumps([airflow_hops.__file__, PATH_ENTRY, importlib.util.find_spec("numpy_of_airflow") is not None]))
"""


def python_finds(place: Path, **variables: str) -> list[object]:
    environment = {"PATH": os.environ["PATH"], **variables}
    command = [sys.executable, "-S", "-P", "-c", _WHAT_IS_FOUND]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, cwd=place).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["folder", "link", "zip"])
def test_package_path_exposes_only_the_package(tmp_path: Path, installed: str) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "numpy_of_airflow.py").touch()
    if installed == "folder":
        shutil.copytree(PACKAGE, site / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", "static"))
    elif installed == "link":
        (site / PACKAGE.name).symlink_to(PACKAGE)
    else:
        shutil.make_archive(str(site), "zip", PACKAGE.parent, PACKAGE.name)
        site = tmp_path / "site-packages.zip"
        with zipfile.ZipFile(site, "a") as archive:
            archive.writestr("numpy_of_airflow.py", "")
    package = site / PACKAGE.name
    assert python_finds(tmp_path, PYTHONPATH=str(site)) == [
        str(package / "__init__.py"),
        str(package / "path_entry"),
        True,
    ]
    assert python_finds(tmp_path, PYTHONPATH=str(package / "path_entry")) == [
        str(package / "__init__.py"),
        str(package / "path_entry"),
        False,
    ]


def test_import_path_follows_the_package_without_working_directory() -> None:
    of_extensions = sorted(PACKAGE.glob("extensions/*/path_entry"))
    own = ":".join(map(str, [PACKAGE / "path_entry", *of_extensions]))
    assert with_package({"PYTHONPATH": ":/a::/b", "HOME": "/h"}, ("/c",)) == {
        "PYTHONPATH": f"{own}:/c:/a:/b",
        "HOME": "/h",
    }
    assert with_package(with_package({}))["PYTHONPATH"] == own


def test_modules_are_not_run_from_the_working_directory() -> None:
    unsafe = []
    of_modules = [path for path in PACKAGE.rglob("*.py") if re.search(r"[\"']-m[\"']", path.read_text())]
    assert of_modules
    for path in of_modules:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple | ast.Call):
                words = node.args if isinstance(node, ast.Call) else node.elts
                constants = [word.value for word in words if isinstance(word, ast.Constant)]
                if "-m" in constants and "-P" not in constants:
                    unsafe.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert unsafe == []


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder in which somebody else has put modules; where one is imported, it leaves a file ``imported``."""
    for name in (PACKAGE.name, "encodings", "argparse", "asyncio", "aiohttp", "tempfile"):
        plant(tmp_path / name, tmp_path / "imported")
    return tmp_path


def plant(module: Path, imported: Path) -> None:
    module.mkdir()
    source = f"import os, pathlib\npathlib.Path({str(imported)!r}).touch()\nos._exit(77)\n"
    (module / "__init__.py").write_text(source)


@pytest.mark.runtime
@pytest.mark.server
def test_airflow_programs_ignore_modules_in_the_temporary_folder(
    planted: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted)
    monkeypatch.setattr(tempfile, "tempdir", str(planted))
    spec_path = planted / "spec.json"
    spec_path.write_text(StepSpec("none", "airflow_hops.ml.step.probe:DISTRIBUTIONS.keys").to_json())
    process = LocalLauncher(runtime).start(spec_path, ())
    lines = list(process.lines())
    process.wait()
    assert StepResult.read(planted / "result.json") is not None, lines
    assert not (planted / "imported").exists()


@pytest.mark.runtime
@pytest.mark.server
def test_runtime_programs_ignore_modules_beside_a_linked_package(planted: Path, runtime_python: Path) -> None:
    installed, linked = planted / "site-packages" / PACKAGE.name, planted / "linked" / PACKAGE.name
    shutil.copytree(PACKAGE, installed, ignore=shutil.ignore_patterns("__pycache__", "static"))
    plant(installed.with_name("numpy"), planted / "imported")
    linked.parent.mkdir()
    linked.symlink_to(installed)
    command = [str(runtime_python), "-P", str(PROGRAMS)]
    environment = {**os.environ, "TMPDIR": str(planted), "PYTHONPATH": str(linked.parent)}
    ended = subprocess.run(command, env=environment, cwd=planted, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "capture writer": "all is written",
        "model server": "ready",
    }, ended.stderr
    assert not (planted / "imported").exists()


def test_the_module_command_takes_paths() -> None:
    assert module_command(Path("/bin/python"), "m", Path("/a"), "b") == ["/bin/python", "-P", "-m", "m", "/a", "b"]


def test_failed_test_fails_make_even_if_it_would_pass_again(tmp_path: Path) -> None:
    flaky = tmp_path / "test_flaky.py"
    flaky.write_text(
        "from pathlib import Path\n\n\ndef test_second_try():\n    tried = Path(__file__).with_name('tried')\n"
        "    is_second = tried.exists()\n    tried.touch()\n    assert is_second\n"
    )
    target = ["make", "--no-print-directory", "all-tests", f"TESTS={flaky}", "ALL_WORKERS=0"]
    ended = subprocess.run(target, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert ended.returncode == 2 and "1 failed" in ended.stdout and "1 passed" not in ended.stdout, ended.stdout
