"""Commands and environment variables for programs of this package, which import this very package.

Airflow's libraries are installed beside the package, and those of the runtime environment are others: a process of one
environment must not find modules of the other. The folder ``path_entry`` in the package holds only a stand-in for the
package, so that it can be on any process's import path. Folders of extensions that hold only names for their modules,
registered under ``airflow_hops.import_paths`` as packages, follow it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import airflow_hops
from airflow_hops.core.extensions import IMPORT_PATHS, extensions
from airflow_hops.core.processes.ending import end_process

# Absolute, as a program may run in another folder: in Spark's executors, the package is in ./code.zip.
PATH_ENTRY = str((Path(airflow_hops.__file__).parent / "path_entry").absolute())


def module_command(python: str | Path, module: str, *arguments: str | Path) -> list[str]:
    """Returns the command line that runs a module of this package with the variables of :func:`with_package`."""
    # -P prevents imports from the working directory, where other users may have put modules.
    return [str(python), "-P", "-m", module, *map(str, arguments)]


def start_module(
    module: str,
    *arguments: str | Path,
    python: str | Path = sys.executable,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts a module of this package as a child of this process.

    ``env`` are all of its environment variables, by default this process's, :func:`with_package`. ``options`` are those
    of ``subprocess.Popen``; without ``stdin``, there is no input.
    """
    return subprocess.Popen(
        module_command(python, module, *arguments),
        env=with_package(os.environ) if env is None else env,
        **{"stdin": subprocess.DEVNULL, **options},
    )


@contextmanager
def running_module(
    module: str, *arguments: str | Path, grace_s: float, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a module (:func:`start_module`), and ends it with the ``with`` block, by SIGKILL after ``grace_s``."""
    process = start_module(module, *arguments, **options)
    try:
        yield process
    finally:
        end_process(process, grace_s)


def with_package(env: Mapping[str, str], paths: Iterable[str] = ()) -> dict[str, str]:
    """Returns environment variables with which Python imports this very package.

    ``paths`` come next, entries of their own ``PYTHONPATH`` last.
    """
    root = Path(PATH_ENTRY).parents[1]
    of_extensions = [str(root.joinpath(*each.value.split("."))) for each in extensions(IMPORT_PATHS).values()]
    named = [PATH_ENTRY, *of_extensions, *paths, *env.get("PYTHONPATH", "").split(os.pathsep)]
    # An empty entry would be the working directory.
    entries = dict.fromkeys(str(Path(name).absolute()) for name in named if name)
    return {**env, "PYTHONPATH": os.pathsep.join(entries)}
