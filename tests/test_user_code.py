"""User code in the cache key, wherever it lies, and the parts that are left out."""

from __future__ import annotations

import json
import py_compile
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.contract.run_record import TRAIN_ENTRY
from airflow_hops.user_code.files import UserFiles
from airflow_hops.user_code.fingerprints import user_code
from airflow_hops.user_code.libraries import Libraries

Key = Callable[..., str]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def spec_of(*folders: Path, train: str = "shop.model:train", **params: object) -> StepSpec:
    return StepSpec("train", TRAIN_ENTRY, {"train": train, **params}, code_paths=tuple(map(str, folders)))


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    sources = {"shop/model.py": "from rates import EURO\n", "rates.py": "EURO = 1\n", "other.py": ""}
    write(tmp_path / "dags", sources)
    return tmp_path / "dags"


@pytest.fixture
def key(dags: Path) -> Key:
    return lambda **params: user_code(spec_of(dags, **params)).fingerprint


def pack(dags: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as bundle:
        for file in sorted(dags.rglob("*.py")):
            bundle.write(file, file.relative_to(dags))
    return archive


def test_packaged_dag_counts_with_its_contents_and_is_kept(dags: Path, tmp_path: Path) -> None:
    archive = pack(dags, tmp_path / "dag.zip")
    first = user_code(spec_of(archive))
    assert set(first.files) == {"0/shop/model.py", "0/rates.py"}
    (dags / "other.py").write_text("unused = 1\n")
    assert user_code(spec_of(pack(dags, archive))).fingerprint == first.fingerprint
    for changed in ("shop/model.py", "rates.py"):
        before = user_code(spec_of(archive)).fingerprint
        (dags / changed).write_text((dags / changed).read_text() + "changed = 1\n")
        assert user_code(spec_of(pack(dags, archive))).fingerprint != before, changed
    around = pack(dags.parent, tmp_path / "dag.egg")
    assert set(user_code(spec_of(around / "dags")).files) == set(first.files)


@pytest.mark.parametrize("name", ["nowhere.model:train", "__main__:train", "shop.absent:train"])
def test_module_that_nobody_can_read_never_counts_as_unchanged(dags: Path, name: str) -> None:
    code = user_code(spec_of(dags, train=name))
    assert [name] == [why.split("'")[1] for why in code.unknown]
    assert user_code(spec_of(dags, train=name)).fingerprint != user_code(spec_of(dags, train=name)).fingerprint


def test_string_with_a_colon_is_not_taken_for_a_function(key: Key) -> None:
    assert key(params={"column": "colour:red"}) == key(params={"column": "colour:red"})


@pytest.mark.parametrize("name", ["fast.so", "fast.cpython-311-x86_64-linux-gnu.so", "fast.pyc"])
def test_compiled_module_counts_with_all_that_it_could_import(dags: Path, key: Key, name: str) -> None:
    (dags / "shop" / "model.py").write_text("import fast\n")
    (dags / name).write_bytes(b"one")
    keys = [key(), key()]
    (dags / name).write_bytes(b"two")
    keys.append(key())
    (dags / "other.py").write_text("x = 2\n")
    keys.append(key())
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_bytecode_beside_its_source_does_not_count(dags: Path, key: Key) -> None:
    before = key()
    py_compile.compile(str(dags / "rates.py"), str(dags / "rates.pyc"))
    assert key() == before


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("open('limits.json')", "limits.json"),
        ("from pathlib import Path\nq = Path(__file__).parents[1] / 'sql' / 'late.sql'", "sql/late.sql"),
        ("from pathlib import Path\nq = (Path(__file__).parents[1] / 'sql').glob('*.sql')", "sql/late.sql"),
        ("def read(stage):\n    return open(f'limits.{stage}.yaml')", "limits.live.yaml"),
        ("import importlib\nimportlib.import_module('late')", "late.py"),
        ("import importlib\ndef load(name):\n    importlib.import_module(name)", "late.py"),
        ("import importlib\ndef load(name):\n    importlib.import_module(f'late.{name}')", "late/one.py"),
        ("import runpy\nrunpy.run_path('late.py')", "late.py"),
        ("from . import late", "shop/late.py"),
        ("import sys\nsys.path.insert(0, 'libs.egg')\nimport hidden", "libs.egg"),
        ("from late.deep import one", "late/deep/one.py"),
    ],
)
def test_file_that_the_code_leads_to_counts(dags: Path, key: Key, source: str, file: str) -> None:
    (dags / "shop" / "model.py").write_text(source)
    (dags / file).parent.mkdir(exist_ok=True, parents=True)
    (dags / file).write_text("")
    before = key()
    assert key() == before
    (dags / file).write_text("# changed")
    assert key() != before


def test_notebook_magic_that_runs_a_file_counts_with_the_file(dags: Path) -> None:
    cell = {"cell_type": "code", "source": ["%run helper.py\n"], "metadata": {}}
    (dags / "train.ipynb").write_text(json.dumps({"cells": [cell]}))
    (dags / "helper.py").write_text("import rates\n")
    spec = StepSpec("train", TRAIN_ENTRY, {"script": "train.ipynb"}, code_paths=(str(dags),))
    assert {"0/helper.py", "0/rates.py"} <= user_code(spec).files.keys()
    beside = StepSpec("train", TRAIN_ENTRY, {"script": str(dags / "train.ipynb")}, code_paths=())
    assert user_code(beside).files.keys() >= {"(script)/train.ipynb", "(script)/helper.py"}
    missing = StepSpec("train", TRAIN_ENTRY, {"script": "gone.ipynb"}, code_paths=(str(dags),))
    assert user_code(missing).fingerprint != user_code(missing).fingerprint


def test_path_of_the_bundle_does_not_count(dags: Path, key: Key) -> None:
    before = key()
    version = dags.rename(dags.with_name("version-2"))
    assert user_code(spec_of(version)).fingerprint == before


def test_excluded_files_are_left_out_unless_the_code_imports_them(dags: Path) -> None:
    write(dags, {"shop/.gitignore": "node_modules\n*.csv\nmade.py\n", ".airflowignore": "shop/\n"})
    write(dags, {"shop/model.py": "from . import made\n", "shop/made.py": "", "shop/query.sql": ""})
    write(dags, {"shop/scratch.csv": "", "shop/node_modules/big.js": "", "ui/node_modules/big.js": ""})
    assert set(user_code(spec_of(dags)).files) == {"0/shop/model.py", "0/shop/made.py", "0/shop/query.sql"}


def test_ignore_rules_that_are_none_are_left_out(dags: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(dags, {"shop/.gitignore": "!\n/\n*.csv\n", "shop/a.csv": "", "shop/b.txt": ""})
    assert set(user_code(spec_of(dags)).files) == {"0/shop/model.py", "0/shop/b.txt", "0/rates.py"}
    monkeypatch.setenv("AIRFLOW__CORE__DAG_IGNORE_FILE_SYNTAX", "regexp")
    write(dags, {"shop/.airflowignore": "b.*t$  # a note\n(\n"})
    assert set(user_code(spec_of(dags)).files) == {"0/shop/model.py", "0/rates.py"}


def test_folder_of_the_same_name_as_a_module_is_not_code(dags: Path) -> None:
    (dags / "shop" / "model.py").write_text("from ui.conftest import page\nimport rates")
    write(dags, {"ui/node_modules/big.js": "", "ui/readme.md": ""})
    assert set(user_code(spec_of(dags)).files) == {"0/shop/model.py", "0/rates.py"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site packages of a runtime environment."""
    folder = tmp_path / "runtime" / "lib" / "python3.11" / "site-packages"
    install(folder, "numpy", "1.26.4")
    return folder


def install(site: Path, name: str, version: str, *, metadata: str = "", origin: str = "", **files: str) -> None:
    """Installs a distribution with one module of its name."""
    for info in site.glob(f"{name.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(info)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    contents = {"METADATA": f"Name: {name}\nVersion: {version}\n{metadata}\n\nA text.", **files}
    write(info, {**contents, **({"direct_url.json": origin} if origin else {})})
    write(site, {f"{name.replace('-', '_')}.py": f"version = {version!r}"})
    (info / "RECORD").write_text(f"{name.replace('-', '_')}.py,sha256={version},\n{info.name}/RECORD,,\n")


@pytest.fixture
def libraries(dags: Path, site: Path) -> Key:
    """The part of a step's key that tells its libraries."""

    def key(**params: Any) -> str:
        libraries = Libraries(site.parents[2])
        return libraries.key(UserFiles(spec_of(dags, **params), libraries).mentions)

    return key


def test_library_that_no_step_can_use_does_not_count(site: Path, libraries: Key) -> None:
    before = libraries()
    install(site, "pytest", "8.0", metadata="Requires-Dist: iniconfig")
    install(site, "iniconfig", "1.0")
    (site.parents[2] / "hops-added.txt").write_text("pytest\n")
    install(site, "pytest", "8.0", metadata="Classifier: Topic :: Software Development :: Testing")
    assert libraries() == before
    install(site, "numpy", "1.26.5")
    assert libraries() != before


@pytest.mark.parametrize(
    ("code", "numpy", "metadata", "entry_points"),
    [
        ("import mylib", "", "", ""),
        ("def f():\n    __import__('mylib')", "", "", ""),
        ("def f(name):\n    __import__(name)", "", "", ""),
        ("import numpy", "Requires-Dist: MyLib>=1", "", ""),
        ("import numpy", "Requires-Dist: mylib; extra == 'fast'", "", ""),
        ("import numpy", "", "", "[mlflow.model_flavors]\nx = mylib"),
    ],
)
def test_library_that_a_step_can_use_counts(
    dags: Path, site: Path, libraries: Key, code: str, numpy: str, metadata: str, entry_points: str
) -> None:
    (dags / "shop" / "model.py").write_text(code)
    install(site, "numpy", "1.26.4", metadata=numpy)
    keys = [libraries()]
    for version in ("1.0", "2.0"):
        install(site, "mylib", version, metadata=metadata, **{"entry_points.txt": entry_points})
        keys.append(libraries())
    assert len(set(keys)) == 3


def test_extra_for_a_librarys_developers_does_not_count(site: Path, libraries: Key) -> None:
    install(
        site, "numpy", "1.26.4", metadata="Requires-Dist: mylib; extra == 'test'\nRequires-Dist: mylib; extra == 'all'"
    )
    before = libraries()
    install(site, "mylib", "1.0")
    assert libraries() == before


def test_library_from_a_path_counts_with_its_files(dags: Path, site: Path, libraries: Key) -> None:
    (dags / "shop" / "model.py").write_text("import mylib")
    install(site, "mylib", "1.0", origin='{"url": "file:///src/mylib", "dir_info": {}}')
    before = libraries()
    record = site / "mylib-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("sha256=1.0", "sha256=other"))
    assert libraries() != before


@pytest.mark.parametrize("way", ["editable", "finder", "pth", "copied"])
def test_module_that_is_installed_in_place_counts_as_user_code(
    dags: Path, site: Path, tmp_path: Path, way: str
) -> None:
    (dags / "shop" / "model.py").write_text("import mylib.core")
    source = site if way == "copied" else tmp_path / "project" / "src"
    write(source, {"mylib/core.py": "import numpy, helper", "helper.py": ""})
    if way == "editable":
        origin = {"url": (tmp_path / "project").as_uri(), "dir_info": {"editable": True}}
        install(site, "my-project", "1.0", origin=json.dumps(origin))
    elif way == "finder":
        write(site, {"__editable___mylib_1_0_finder.py": f"MAPPING = {{'mylib': '{source}/mylib'}}\n"})
    elif way == "pth":
        (site / "mine.pth").write_text(f"import site\n{source}\n")
    code = user_code(spec_of(dags), site.parents[2])
    assert set(code.files) == {"0/shop/model.py", "1/mylib/core.py", "1/helper.py"}
    assert (code.folders, code.unknown) == (2, [])
    (source / "helper.py").write_text("changed = 1")
    assert user_code(spec_of(dags), site.parents[2]).fingerprint != code.fingerprint


def test_module_of_a_distribution_counts_by_its_version(dags: Path, site: Path) -> None:
    install(site, "mylib", "1.0")
    code = user_code(spec_of(dags, train="mylib:train"), site.parents[2])
    assert (code.files, code.unknown) == ({}, [])
