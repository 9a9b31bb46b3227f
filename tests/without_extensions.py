"""Imports a copy of the package from which the extensions were removed: ``SIDE PACKAGE``."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path

RUNTIME_SIDE = ("core", "hops", "ml", "serving")


def modules(package: Path, side: str) -> list[str]:
    """Returns the modules of a side, and those that both have."""
    names = []
    for file in sorted(package.rglob("*.py")):
        parts = list(file.relative_to(package.parent).with_suffix("").parts)
        is_mine = parts[1] == "core" or (parts[1] in RUNTIME_SIDE) == (side == "runtime")
        if is_mine and parts[1] != "testing" and "path_entry" not in parts and parts[-1] != "__main__":
            names.append(".".join(parts).removesuffix(".__init__"))
    return names


def check(package: Path, side: str) -> None:
    """Imports all modules; on Airflow's side also makes the pages, and what Airflow and ``doctor`` ask for."""
    for name in modules(package, side):
        importlib.import_module(name)
    assert Path(sys.modules["airflow_hops"].__file__ or "").parent == package
    if side == "runtime":
        return
    from airflow_hops import get_provider_info
    from airflow_hops.cli.definition import get_hops_cli_commands
    from airflow_hops.web.app import make_app

    info = get_provider_info()
    classes = [each["hook-class-name"] for each in info["connection-types"]]
    for path in classes + [each["class-name"] for each in info["task-decorators"]]:
        module, _, name = path.rpartition(".")
        getattr(importlib.import_module(module), name)
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for name in (name for each in info[kind] for name in each["python-modules"]):
            importlib.import_module(name)
    assert make_app().routes
    (group,) = get_hops_cli_commands()
    doctor = next(each for each in group.subcommands if each.name == "doctor")
    output, end = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(output):
            doctor.func(_arguments(doctor))
    except SystemExit as error:
        end = error.code
    assert "Java" in output.getvalue(), (end, output.getvalue())  # whichever checks fail on this machine


def _arguments(command: object) -> object:
    import argparse

    parser = argparse.ArgumentParser()
    for argument in command.args:  # type: ignore[attr-defined]
        argument.add_to_parser(parser)
    return parser.parse_args([])


def main(side: str, package: Path) -> None:
    """Checks a copy of the package."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW__HOPS__SHARING")]:
        del os.environ[name]  # an option of an extension
    for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_hops"]:
        del sys.modules[name]
    sys.path.insert(0, str(package.parent))
    check(package, side)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
