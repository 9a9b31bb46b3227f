"""Launchers and stages of other distributions, the contract tests of their authors, and life without extensions."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from example_extensions import write_distribution
from step_runner import REPOSITORY

from airflow_hops.cli.arguments import CLICommand, GroupCommand
from airflow_hops.cli.definition import get_hops_cli_commands
from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import LAUNCHERS, OWN, PAGES, extensions
from airflow_hops.operators import InfraValidateOperator
from airflow_hops.runner.launchers.base import find_launcher
from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.testing.launchers import LauncherContract
from airflow_hops.testing.pages import PagesContract

EXAMPLE = "[airflow_hops.launchers]\nniced = example_launcher:NicedLauncher\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a distribution with entry points, and puts it on the import path."""

    def install(entry_points: str, name: str = "hops-example") -> None:
        write_distribution(tmp_path / name, name, entry_points)
        monkeypatch.syspath_prepend(str(tmp_path / name))

    return install


@pytest.mark.runtime
class TestLocalLauncher(LauncherContract):
    name = "local"

    @pytest.fixture
    def runtime(self, runtime: Path) -> Path:
        return runtime


def test_operator_takes_registered_launcher(install: Any) -> None:
    install(EXAMPLE)
    operator = InfraValidateOperator(
        task_id="t", model={}, examples={}, launcher_name="niced", launcher_options={"niceness": 3}
    )
    launcher: Any = operator.chosen_launcher(RuntimeHook())
    assert type(launcher).__name__ == "NicedLauncher" and launcher.niceness == 3
    assert isinstance(launcher, LocalLauncher)


def test_broken_launcher_names_its_distribution(install: Any) -> None:
    errors = {
        "example_launcher:Nothing": "cannot be loaded (AttributeError: module 'example_launcher'",
        "not_there:Launcher": "cannot be loaded (ModuleNotFoundError: No module named 'not_there')",
        "example_launcher:no_launcher": "expected a subclass of Launcher",
    }
    lines = "\n".join(f"broken{number} = {value}" for number, value in enumerate(errors))
    install(f"[airflow_hops.launchers]\n{lines}\n", "hops-broken")
    for number, error in enumerate(errors.values()):
        with pytest.raises(BadInput, match="distribution 'hops-broken'") as raised:
            find_launcher(f"broken{number}")
        assert error in str(raised.value)
    assert find_launcher("local") is LocalLauncher


def test_unknown_launcher_and_options_are_refused(install: Any) -> None:
    message = r"launchers is 'lokal', expected one of kubernetes, local, spark; did you mean 'local'\?"
    with pytest.raises(BadInput, match=message):
        find_launcher("lokal")
    with pytest.raises(BadInput, match=r"launcher 'local': .*unexpected keyword argument 'niceness'"):
        RuntimeHook().make_launcher("local", niceness=3)


def test_name_of_two_distributions_is_refused(install: Any) -> None:
    install("[airflow_hops.launchers]\nspark = example_launcher:NicedLauncher\n")
    with pytest.raises(BadInput, match=r"'hops-example' has the name of .* of the distribution 'airflow-hops'"):
        extensions(LAUNCHERS)


def test_distributions_are_found_and_lost_as_they_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of a scheduler have what it has read, which may be older than an installation."""
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    assert "niced" not in extensions(LAUNCHERS)
    write_distribution(place, "hops-example", EXAMPLE)
    assert "niced" in extensions(LAUNCHERS)
    shutil.rmtree(place / "hops_example-1.0.dist-info")
    assert "niced" not in extensions(LAUNCHERS)


def test_metadata_of_an_older_installation_are_not_read(install: Any) -> None:
    """The files of the package replace them: an extension that was removed is not found by its old metadata."""
    install("[airflow_hops.launchers]\ngone = airflow_hops.extensions.gone:Launcher\n", OWN)
    assert "gone" not in extensions(LAUNCHERS)


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "airflow_hops").glob("**/entry_points.ini")), ids=lambda file: file.parent.name
)
def test_registrations_name_existing_objects(file: Path) -> None:
    """Each in its own folder: an extension registers what it has, and the trunk what the trunk has."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.read_string(file.read_text())
    own = "airflow_hops" if file.parent.name == "core" else f"airflow_hops.extensions.{file.parent.name}"
    for group in parser.sections():
        known = extensions(group)
        for name, value in parser.items(group):
            assert (known[name].value, known[name].distribution) == (value, OWN)
            module = value.partition(":")[0]
            assert module.startswith(f"{own}.") and (own != "airflow_hops" or ".extensions." not in module)
            path = REPOSITORY / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or path.is_dir(), value


def actions(commands: Sequence[CLICommand]) -> Iterator[Any]:
    for each in commands:
        yield from actions(tuple(each.subcommands)) if isinstance(each, GroupCommand) else [each]


def test_each_command_has_help_and_arguments() -> None:
    for command in actions(get_hops_cli_commands()):
        parser = ArgumentParser(prog=command.name)
        for argument in command.args:
            argument.add_to_parser(parser)
        assert command.help and callable(command.func) and parser.format_help()


@pytest.mark.parametrize("name", sorted(extensions(PAGES)))
class TestOwnPages(PagesContract):
    public = frozenset({"get_catalogue", "get_document"})

    @pytest.fixture(autouse=True)
    def named(self, name: str, pages_built: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(self), "name", name, raising=False)


PACKAGE = REPOSITORY / "airflow_hops"
EXTENSIONS = sorted(path.parent.name for path in PACKAGE.glob("extensions/*/__init__.py"))


@pytest.mark.slow
def test_airflow_side_works_without_extensions(tmp_path: Path) -> None:
    """Commands, ``doctor``, pages and what Airflow asks the provider for work."""
    package = tmp_path / "airflow_hops"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("static", "__pycache__"))
    for each in EXTENSIONS:
        shutil.rmtree(package / "extensions" / each)
    (tmp_path / "requirements").symlink_to(REPOSITORY / "requirements")
    program = Path(__file__).with_name("without_extensions.py")
    result = subprocess.run([sys.executable, str(program), str(package)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
