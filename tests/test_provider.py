"""Provider metadata of this package, and the content of its wheel."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from check_release import VERSIONS, problems_of_archive, problems_of_licences, problems_of_version
from upgrade_test import last_version

import build_ui
from airflow_hops import __version__, get_provider_info
from airflow_hops.cli.doctor import check_store
from airflow_hops.core.errors import HopsError
from airflow_hops.core.profiles import PROFILES
from airflow_hops.hooks.hops import HopsHook

REPOSITORY = Path(__file__).resolve().parent.parent


def test_provider_info_is_valid_by_airflows_schema() -> None:
    import airflow
    import jsonschema

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_knows_the_connection_type_decorators_and_options() -> None:
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert manager.providers["airflow-hops"].version == __version__
    hook = manager.hooks["hops"]
    assert hook is not None and hook.hook_class_name == "airflow_hops.hooks.hops.HopsHook"
    widgets = manager.connection_form_widgets
    port = widgets["extra__hops__serving_rest_port"].field
    assert port["schema"]["type"] == ["integer", "null"]
    assert {"extra__hops__store", "extra__hops__runtime", "extra__hops__tracking_uri"} <= set(widgets)
    assert manager.field_behaviours["hops"]["relabeling"]["port"] == "Model server gRPC port"
    for name in ("horovod", "torch", "hops", "hops_schema", "hops_statistics", "train"):
        assert callable(manager.taskflow_decorators[name])
    assert (conf.getboolean("hops", "cache"), conf.get("hops", "store")) == (True, "")


def test_airflow_checks_the_uris_of_assets() -> None:
    from airflow.sdk import Asset

    for uri in ("hops://flights_training/ingest", "hops://_models/flights", "hops://d/group.task"):
        assert Asset("a", uri=uri).uri == uri
    assert Asset("a", uri="hops://d/t/").uri == "hops://d/t"
    for uri in ("hops://flights_training", "hops:///ingest", "hops://d/t/x"):
        with pytest.raises(ValueError, match="expected hops://DAG/TASK"):
            Asset("a", uri=uri)


def test_airflow_loads_the_plugin_through_its_entry_point() -> None:
    from airflow import plugins_manager

    assert [entry.value for entry in entry_points(group="airflow.plugins") if entry.name == "hops"] == [
        "airflow_hops.plugin:HopsPlugin"
    ]
    assert "hops" in {plugin["name"] for plugin in plugins_manager.get_plugin_info(["name"])}
    assert not [source for source in plugins_manager.get_import_errors() if "hops" in source]


FORKING = """
import importlib, os, sys
from airflow.jobs.job import Job
for component in ("scheduler", "dag_processor", "triggerer"):
    if not os.fork():
        importlib.import_module(f"airflow.jobs.{component}_job_runner")
        Job()
        imported = [component, *("airflow_hops." + name in sys.modules for name in ("plugin", "operators"))]
        if component == "scheduler":
            from airflow_hops import preimports
            preimports.on_starting(component=None)
            modules = set(sys.modules)
            import airflow.sdk.execution_time.task_runner
            import airflow_hops.operators
            airflow_hops.operators.IngestOperator(
                task_id="ingest", sources={"orders": "/orders.csv"}, dag=airflow.sdk.DAG("shop")
            )
            imported += sorted(set(sys.modules) - modules)
        print(*imported, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_forking_components_preimport_operators() -> None:
    """The scheduler also has all that its LocalExecutor's workers would import, for the addresses of assets, too."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-3:] == ["scheduler True True", "dag_processor True True", "triggerer True False"]


def test_wheel_holds_package_pins_and_pages(wheel_file: Path) -> None:
    wheel = zipfile.ZipFile(wheel_file)
    names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"airflow_hops", f"airflow_hops-{__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or re.search("/(test_|conftest)", name)]
    assert "airflow_hops/py.typed" in names
    (record,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "provider_info = airflow_hops:get_provider_info" in wheel.read(record).decode()
    pins = [name for profile in PROFILES for name in (profile.pins, profile.cuda_pins)]
    for name in (*pins, "uv.toml", "java.txt", "horovod.cmake"):
        assert wheel.read(f"airflow_hops/requirements/{name}") == (REPOSITORY / "requirements" / name).read_bytes()
    if not build_ui.fresh() and (missing := build_ui.node_missing()) is not None:
        pytest.skip(missing)
    folder = "airflow_hops/web/static"
    bundle = wheel.read(f"{folder}/hops.umd.js")
    assert b"AirflowPlugin" in bundle
    assert wheel.read(f"{folder}/fingerprint").decode() == hashlib.sha256(bundle).hexdigest()[:16]
    assert b"## @tanstack/react-query" in wheel.read(f"{folder}/licenses.md")
    assert wheel.read(f"{folder}/sources.sha256").decode() == build_ui.fingerprint()


def test_wheel_is_not_built_without_the_pages_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of the build is called as hatchling does, which is not installed here."""
    interface = SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    hook = runpy.run_path(str(REPOSITORY / "hatch_build.py"))["PagesBuildHook"]()
    hook.app = SimpleNamespace(display_info=print)
    monkeypatch.setattr(build_ui, "BUILT_FROM", tmp_path / "sources.sha256")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"Node\.js was not found; Node\.js 20\.19 .*HOPS_WITHOUT_PAGES=1 builds"):
        hook.initialize("standard", {})
    monkeypatch.setenv("HOPS_WITHOUT_PAGES", "1")
    hook.initialize("standard", {})


def test_release_check_finds_strays_and_licences() -> None:
    names = ["a/LICENSE", "a/node_modules/x.js", "a/key.pem"]
    assert problems_of_archive(names, ("/LICENSE", "py.typed")) == [
        "py.typed is missing",
        "a/node_modules/x.js does not belong there",
        "a/key.pem does not belong there",
    ]
    licences = {
        "free": ["MIT"],
        "either": ["GPL-2.0", "EPL-2.0"],
        "copyleft": ["AGPL-3.0-only"],
        "unnamed": [],
        "vague": ["License :: OSI Approved"],
    }
    components = [
        {"name": name, "version": "1", "licenses": [{"license": {"id": each}} for each in ids]}
        for name, ids in licences.items()
    ]
    assert problems_of_licences({"components": components}) == [
        "copyleft 1: licence AGPL-3.0-only",
        "unnamed 1: licence unknown",
        "vague 1: licence unknown",
    ]


def test_release_check_compares_versions_with_changelog_and_tag() -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n## 0.2.0 – 2026-12-01\n\n- A line.\n\n## 0.1.0 – 2026-11-28\n"
    assert problems_of_version("0.2.0", {"a.py": "0.2.0"}, changelog, ["v0.2.0", "verified"]) == []
    assert problems_of_version("0.1.0", {"a.py": "0.2.0"}, changelog, ["v0.2.0"]) == [
        "a.py has version 0.2.0, expected 0.1.0",
        "CHANGELOG.md has '## 0.2.0 – 2026-12-01' below the first heading, expected '## 0.1.0 – YYYY-MM-DD'",
        "this commit has the tag v0.2.0, expected v0.1.0",
    ]
    undated = changelog.replace("2026-12-01", "unreleased")
    assert "expected '## 0.2.0 – YYYY-MM-DD'" in problems_of_version("0.2.0", {}, undated, [])[0]
    changed = changelog.replace("Unreleased\n", "Unreleased\n\n- Another line.\n")
    assert problems_of_version("0.2.0", {}, changed, []) == []
    assert problems_of_version("0.2.0", {}, changed, ["v0.2.0"]) == [
        "this commit has the tag v0.2.0, but CHANGELOG.md has changes under '## Unreleased'"
    ]
    assert problems_of_version("0.2.0", {}, "", [])[0] == "CHANGELOG.md begins with '## ', expected '## Unreleased'"


def test_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    others = {path: re.findall(line, (REPOSITORY / path).read_text(), re.M)[0] for path, line in VERSIONS.items()}
    assert others["airflow_hops/__init__.py"] == __version__
    assert problems_of_version(version, others, (REPOSITORY / "CHANGELOG.md").read_text(), []) == []


def test_upgrade_test_takes_the_last_version_before_this_commit(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        who = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
        subprocess.run(["git", "-C", tmp_path, *who, *command], check=True, capture_output=True)

    git("init")
    for tag in ("first", "v0.1.0", "v0.2.0", "verified", "v0.3.0"):
        if tag == "v0.1.0":
            with pytest.raises(SystemExit, match="no version to upgrade from: no tag v… before this commit"):
                last_version(tmp_path)
        git("commit", "--allow-empty", "--message", tag)
        git("tag", tag)
    assert last_version(tmp_path) == "v0.2.0"  # this commit is v0.3.0


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    # Put together here, so that this file does not match itself.
    unwanted = re.compile(
        "|".join(["/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/[a-z]", "python" + "hosted", "pypi.org/" + "simple"])
        + "|"
        + "|".join(["npmjs" + r"\.org", "--index" + "-url https", "--find" + "-links /", "extra-index" + "-url ="])
    )
    results = []
    for name in tracked.decode().split("\0"):
        path = REPOSITORY / name
        if name and path.is_file() and path.stat().st_size < 1 << 20:
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if unwanted.search(line):
                    results.append(f"{name}:{number}: {line.strip()[:100]}")
    assert results == []


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("s3://{bucket}/not/yet", "is away, or new"),
        ("{folder}/not/yet", "is away, or new"),
        ("s3://{bucket}-misspelt", "(FileNotFoundError: The specified bucket does not exist"),
        ("s3://{bucket}-misspelt/hops", "(FileNotFoundError: The specified bucket does not exist"),
        ("s3://{bucket}@http://127.0.0.1:1", "(EndpointConnectionError: Could not connect"),
        ("{folder}/file", "(NotADirectoryError: "),
        ("{folder}/file/hops", "(NotADirectoryError: "),
    ],
)
def test_a_connections_store_is_reached_or_named(
    store: str, expected: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    s3fs.S3FileSystem(endpoint_url=s3_endpoint).makedirs("hops-reached", exist_ok=True)
    (tmp_path / "file").touch()
    store, _, endpoint = store.format(bucket="hops-reached", folder=tmp_path).partition("@")
    options = {"endpoint_url": endpoint or s3_endpoint, "config_kwargs": {"retries": {"max_attempts": 0}}}
    extra = {"store": store, "serving_rest_port": 1, "serving_timeout": 1}
    if store.startswith("s3"):
        extra["storage_options"] = options
    monkeypatch.setenv("AIRFLOW_CONN_FAR", json.dumps({"conn_type": "hops", "port": 1, "extra": extra}))

    answers, message = HopsHook("far").test_connection()
    assert not answers  # no server is at port 1
    check = check_store(HopsHook("far"))
    is_new = "new" in expected
    assert (check.status, "model server" in message) == ("warn" if is_new else "fail", is_new), message
    assert expected in message and expected in check.found
    if "Endpoint" in expected:
        with pytest.raises(HopsError, match=r"Could not connect.*correct the field 'store'"):
            HopsHook("far").store.artifacts(store)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
