"""Imports a copy of the package from which extensions were removed, in a fork for each: ``SIDE PACKAGES…``.

The libraries are imported once, before the forks. Each fork prints what failed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import traceback
from pathlib import Path

RUNTIME_SIDE = ("core", "hops", "ml", "serving")
AIRFLOW_LIBRARIES = ("airflow.sdk", "airflow.providers_manager", "airflow.api_fastapi.app", "fastapi", "rich.console")
RUNTIME_LIBRARIES = ("tensorflow", "tensorflow_data_validation", "horovod.tensorflow", "pyspark.sql", "mlflow.tracking")
NOT_HERE = {
    "apache-airflow-providers-cncf-kubernetes",
    "deltalake",
    "feast",
    "libtorrent",
    "lightgbm",
    "pyiceberg",
    "torch",
}
"""Modules that extensions take from environments of their own."""


def modules(package: Path, side: str) -> list[str]:
    """Returns the modules of a side, and those that both have."""
    names = []
    for file in sorted(package.rglob("*.py")):
        parts = list(file.relative_to(package.parent).with_suffix("").parts)
        layer = parts[3] if parts[1] == "extensions" and len(parts) > 3 else parts[1]
        is_mine = layer in (RUNTIME_SIDE if side == "runtime" else ({"core"} | _airflow_side(package)))
        if is_mine and "path_entry" not in parts and parts[-1] != "__main__":
            names.append(".".join(parts).removesuffix(".__init__"))
    return names


def _airflow_side(package: Path) -> set[str]:
    of_trunk = {file.stem for file in package.iterdir()}
    of_extensions = {file.stem for file in package.glob("extensions/*/*")}
    return (of_trunk | of_extensions) - {*RUNTIME_SIDE, "__init__", "testing", "extensions"}


def check(package: Path, side: str) -> None:
    """Imports all modules; on Airflow's side also makes the pages, and what Airflow and ``doctor`` ask for."""
    for name in modules(package, side):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in NOT_HERE or ".extensions." not in name:
                raise
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


def main(side: str, packages: list[str]) -> int:
    """Checks each package; returns how many failed."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW__HOPS__SHARING")]:
        del os.environ[name]  # an option of an extension
    for name in RUNTIME_LIBRARIES if side == "runtime" else AIRFLOW_LIBRARIES:
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_hops"]:
        del sys.modules[name]
    failed = 0
    for package in map(Path, packages):
        pid = os.fork()
        if not pid:
            sys.path.insert(0, str(package.parent))
            try:
                check(package, side)
            except BaseException:
                print(f"{package}:\n{traceback.format_exc()}", flush=True)
                os._exit(1)
            os._exit(0)
        failed += bool(os.waitpid(pid, 0)[1])
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
