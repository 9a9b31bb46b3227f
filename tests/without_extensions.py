"""Asks a copy of the package without extensions for what Airflow and its users ask for: ``PACKAGE``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from pathlib import Path


def check(package: Path) -> None:
    """Makes the pages, loads what the provider names, and runs ``doctor``."""
    from airflow_hops import get_provider_info
    from airflow_hops.cli.definition import get_hops_cli_commands
    from airflow_hops.web.app import make_app

    assert Path(sys.modules["airflow_hops"].__file__ or "").parent == package
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
    parser = argparse.ArgumentParser()
    for argument in doctor.args:  # type: ignore[union-attr]
        argument.add_to_parser(parser)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):  # there is no runtime environment
        doctor.func(parser.parse_args([]))  # type: ignore[union-attr]
    assert "Java" in output.getvalue(), output.getvalue()


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AIRFLOW__HOPS__SHARING")]:
        del os.environ[name]  # an option of an extension
    os.environ["AIRFLOW__HOPS__RUNTIME"] = "/nowhere"
    for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_hops"]:
        del sys.modules[name]
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    check(Path(sys.argv[1]))
