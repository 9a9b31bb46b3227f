"""Starting programs of this package: each finds this very package, and nothing that happens to lie around.

Airflow's libraries lie beside an installed package, and those of the runtime environment are others: no process of the
one environment may find modules of the other. The folder ``path_entry`` within the package holds a stand-in for it, the
name ``hops`` for :mod:`airflow_hops.hops.util`, and nothing else, so that it can be put on any process's import
path, from wherever the package was imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import airflow_hops

PATH_ENTRY = str(Path(airflow_hops.__file__).parent / "path_entry")


def module_command(python: str | Path, module: str, *arguments: str | Path) -> list[str]:
    """The command line that runs a module of this package; its environment is one :func:`with_package`."""
    # -P: nothing is imported from the working directory, in which anybody may have put a module.
    return [str(python), "-P", "-m", module, *map(str, arguments)]


def kernel_command(python: str | Path) -> list[str]:
    """The command line of a notebook's kernel, in which Jupyter puts the path of its connection file."""
    return module_command(python, "airflow_hops.ml.stages.notebook.kernel", "-f", "{connection_file}")


def with_package(environment: Mapping[str, str], paths: Iterable[str] = ()) -> dict[str, str]:
    """An environment in which Python finds this very package.

    Args:
        environment: Of the process; what its ``PYTHONPATH`` names comes after the package.
        paths: Folders that come between.
    """
    named = [PATH_ENTRY, *paths, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    # An empty entry would be the working directory.
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, named)))}
