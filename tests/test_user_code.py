"""User code in the cache key, wherever it lies, and the parts that are left out."""

from __future__ import annotations

import json
import py_compile
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.run_record import TRAIN_ENTRY
from airflow_hops.runner.environments.named import runtime_fingerprint
from airflow_hops.runner.user_code import fingerprints
from airflow_hops.runner.user_code.fingerprints import user_code

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


def test_packaged_dag_contents_change_the_key_and_are_recorded(dags: Path, tmp_path: Path) -> None:
    archive = pack(dags, tmp_path / "dag.zip")
    first = user_code(spec_of(archive))
    assert set(first.files) == {"0/shop/model.py", "0/rates.py"}
    (dags / "other.py").write_text("unused = 1\n")
    assert user_code(spec_of(pack(dags, archive))).fingerprint == first.fingerprint
    for changed in ("shop/model.py", "rates.py"):
        fingerprint = user_code(spec_of(archive)).fingerprint
        (dags / changed).write_text((dags / changed).read_text() + "changed = 1\n")
        assert user_code(spec_of(pack(dags, archive))).fingerprint != fingerprint, changed
    around = pack(dags.parent, tmp_path / "dag.egg")
    assert set(user_code(spec_of(around / "dags")).files) == set(first.files)


@pytest.mark.parametrize("name", ["nowhere.model:train", "__main__:train", "shop.absent:train"])
def test_unreadable_module_always_changes_the_key(dags: Path, name: str) -> None:
    code = user_code(spec_of(dags, train=name))
    assert [name] == [why.split("'")[1] for why in code.unknown]
    assert user_code(spec_of(dags, train=name)).fingerprint != user_code(spec_of(dags, train=name)).fingerprint


@pytest.mark.parametrize("name", ["fast.so", "fast.cpython-311-x86_64-linux-gnu.so", "fast.pyc"])
def test_compiled_module_counts_with_its_possible_imports(dags: Path, key: Key, name: str) -> None:
    (dags / "shop" / "model.py").write_text("import fast\n")
    (dags / name).write_bytes(b"one")
    keys = [key(), key()]
    (dags / name).write_bytes(b"two")
    keys.append(key())
    (dags / "other.py").write_text("x = 2\n")
    keys.append(key())
    assert keys[0] == keys[1] and len(set(keys)) == 3


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
        ("from .. import late", "late.py"),
        ("from .late import one", "shop/late.py"),
        ("import late.deep.one", "late/__init__.py"),
        ("import late.deep.one", "late/deep/__init__.py"),
        ("import shop.parts", "shop/parts/loaded.py"),
        ("from shop.listed import *", "shop/listed/late.py"),
        ("from shop import lazy", "shop/lazy/late.py"),
        ("from shop import found", "shop/found/late.py"),
        ("import importlib\nimportlib.import_module('.late', __package__)", "shop/late.py"),
        ("import importlib\nimportlib.import_module('.late', 'other')", "other/late.py"),
        ("import importlib\ndef f(name):\n    importlib.import_module(f'.{name}', __package__)", "shop/late.py"),
        ("import importlib\ndef f(name, of):\n    importlib.import_module(f'.{name}', of)", "other/late.py"),
        ("from pathlib import Path\ndef f(name):\n    return Path(__file__).parent / name", "shop/sql/late"),
        ("import os\ndef f(name):\n    return open(os.path.join(os.path.dirname(__file__), name))", "shop/late.sql"),
        ("def f(name):\n    return open(f'{__file__}/../{name}')", "shop/late.sql"),
        ("from pathlib import Path\ntexts = [*Path(__file__).parent.rglob('*.sql')]", "shop/sql/deep/late.sql"),
        ("from pathlib import Path\ntext = Path(__file__).with_suffix('.sql').read_text()", "shop/model.sql"),
        ("from importlib import resources\ntext = resources.read_text('shop.sql', 'late.sql')", "shop/sql/late.sql"),
        ("from importlib.resources import files\nfrom other import sql\npath = files(sql)", "other/sql/late.sql"),
        ("import pkgutil\ntext = pkgutil.get_data(__name__, 'sql/late.sql')", "shop/sql/late.sql"),
        ("from shop import reading\nreading.text('late')", "shop/sql/late.sql"),
        ("import sys\nsys.path.insert(0, 'libs.egg')\nimport hidden", "libs.egg"),
        ("from late.deep import one", "late/deep/one.py"),
    ],
)
def test_referenced_file_changes_the_key(dags: Path, key: Key, source: str, file: str) -> None:
    write(
        dags,
        {
            "shop/model.py": source,
            "shop/parts/__init__.py": "from .loaded import one",
            "shop/listed/__init__.py": "__all__ = ['late']",
            "shop/lazy/__init__.py": "__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ['late'])",
            "shop/found/__init__.py": "import pkgutil\nmodules = [*pkgutil.iter_modules(__path__)]",
            "shop/reading.py": "from pathlib import Path\ntext = lambda n: (Path(__file__).parent / n).read_text()",
            "late/deep/one.py": "",
            "other/sql/__init__.py": "",
            file: "",
        },
    )
    base_key = key()
    assert key() == base_key
    (dags / file).write_text("# changed")
    assert key() != base_key


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("import rates", "shop/training.py"),
        ("from shop.parts import loaded", "shop/training.py"),
        ("from shop.parts import loaded", "shop/parts/other.py"),
        ("import rates", "shop/notes.md"),
        ("import rates\nprint(__file__)", "shop/explore.ipynb"),
        ("from pathlib import Path\nq = Path(__file__).parent / 'q.sql'", "shop/other.sql"),
        ("from pathlib import Path\ndef f(name):\n    return Path(__file__).parent / name", "shop/training.py"),
        ("def f(count):\n    return f'{count}y'", "shop/training.py"),
    ],
)
def test_unreferenced_file_does_not_change_the_key(dags: Path, key: Key, source: str, file: str) -> None:
    write(dags, {"shop/__init__.py": "", "shop/model.py": source, "shop/parts/loaded.py": "", "shop/q.sql": ""})
    base_key = key()
    write(dags, {file: "from shop.model import train"})
    assert key() == base_key


def test_dag_file_counts_only_for_its_own_functions(dags: Path) -> None:
    write(dags, {"shop/__init__.py": "", "shop/training.py": "from shop import model\ndef train(): ...\n"})
    keys = []
    for text in ("", "# changed"):
        write(dags, {"shop/training.py": f"from shop import model\ndef train(): ...\n{text}"})
        keys.append(
            [
                user_code(spec_of(dags / "shop", dags, train=each)).fingerprint
                for each in ("shop.model:train", "shop.training:train")
            ]
        )
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[1][1]


def test_bytecode_and_the_bundles_path_do_not_change_the_key(dags: Path) -> None:
    def key(folder: Path) -> str:
        return user_code(spec_of(folder, params={"column": "colour:red"})).fingerprint  # which names no function

    base_key = key(dags)
    py_compile.compile(str(dags / "rates.py"), str(dags / "rates.pyc"))
    assert key(dags) == base_key == key(dags.rename(dags.with_name("version-2")))


def test_file_run_by_a_notebook_magic_changes_the_key(dags: Path) -> None:
    cell = {"cell_type": "code", "source": ["%run helper.py\n"], "metadata": {}}
    (dags / "train.ipynb").write_text(json.dumps({"cells": [cell]}))
    (dags / "helper.py").write_text("import rates\n")
    spec = StepSpec("train", TRAIN_ENTRY, {"script": "train.ipynb"}, code_paths=(str(dags),))
    assert {"0/helper.py", "0/rates.py"} <= user_code(spec).files.keys()
    beside = StepSpec("train", TRAIN_ENTRY, {"script": str(dags / "train.ipynb")}, code_paths=())
    assert user_code(beside).files.keys() >= {"(script)/train.ipynb", "(script)/helper.py"}
    missing = StepSpec("train", TRAIN_ENTRY, {"script": "gone.ipynb"}, code_paths=(str(dags),))
    assert user_code(missing).fingerprint != user_code(missing).fingerprint


def test_excluded_files_are_left_out_unless_the_code_imports_them(dags: Path) -> None:
    write(dags, {"shop/.gitignore": "node_modules\n*.csv\nmade.py\n", ".airflowignore": "shop/\n"})
    source = "from pathlib import Path\nfrom . import made\ndef f(name):\n    return Path(__file__).parent / name\n"
    write(dags, {"shop/model.py": source, "shop/made.py": "", "shop/query.sql": ""})
    write(dags, {"shop/scratch.csv": "", "shop/node_modules/big.js": "", "ui/node_modules/big.js": ""})
    assert set(user_code(spec_of(dags)).files) == {"0/shop/model.py", "0/shop/made.py", "0/shop/query.sql"}


def test_invalid_ignore_rules_are_skipped(dags: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(dags, {"shop/model.py": "import rates, pkgutil", "shop/.gitignore": "!\n/\n*.csv\n"})
    write(dags, {"shop/a.csv": "", "shop/b.txt": ""})
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


def install(site: Path, name: str, version: str, *, files: str = "", **origin: object) -> None:
    """Installs a distribution with one module of its name."""
    for info in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(info)
    info = f"{name}-{version}.dist-info"
    write(site, {f"{name}.py": f"version = {version!r}", f"{info}/RECORD": files})
    if origin:
        write(site, {f"{info}/direct_url.json": json.dumps(origin)})


def test_fingerprint_of_an_environment_tells_its_packages_and_where_they_are_from(site: Path) -> None:
    changes: list[Callable[[], None]] = [
        lambda: install(site, "mylib", "1.0"),
        lambda: install(site, "mylib", "2.0"),
        lambda: install(site, "mylib", "2.0", files="mylib.py,sha256=one,", url="file:///src/mylib", dir_info={}),
        lambda: install(site, "mylib", "2.0", files="mylib.py,sha256=two,", url="file:///src/mylib", dir_info={}),
        lambda: shutil.rmtree(site / "mylib-2.0.dist-info"),
    ]
    runtime = site.parents[2]
    first = last = runtime_fingerprint(runtime)
    for change in changes:
        change()
        assert runtime_fingerprint(runtime) != last
        last = runtime_fingerprint(runtime)
    assert last == first
    install(site, "horovod", "0.28")
    write(site, {"numpy-1.26.4.dist-info/RECORD": "numpy.py,sha256=other,"})
    assert runtime_fingerprint(runtime) == first, "neither Horovod nor the files of an index's wheel"
    elsewhere = runtime.rename(runtime.with_name("moved"))
    assert runtime_fingerprint(elsewhere) == first


def test_changed_sources_of_the_package_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of the scheduler, which has read them all, notice an update."""
    monkeypatch.setattr(fingerprints.airflow_hops, "__file__", str(tmp_path / "__init__.py"))
    keys = []
    for files in ({"core/steps.py": "a = 1\n"}, {"core/steps.py": "a = 2\n"}, {"extensions/fleet/ml/step.py": ""}):
        write(tmp_path, files)
        keys += [fingerprints.read_sources(), fingerprints.read_sources()]
    assert keys[::2] == keys[1::2]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("way", ["editable", "finder", "pth"])
def test_module_that_is_installed_in_place_counts_as_user_code(
    dags: Path, site: Path, tmp_path: Path, way: str
) -> None:
    (dags / "shop" / "model.py").write_text("import mylib.core")
    source = tmp_path / "project" / "src"
    write(source, {"mylib/core.py": "import numpy, helper", "helper.py": ""})
    if way == "editable":
        install(site, "project", "1.0", url=(tmp_path / "project").as_uri(), dir_info={"editable": True})
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
