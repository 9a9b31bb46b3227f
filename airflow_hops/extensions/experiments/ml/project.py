"""Store as a project: a file system with a root, in which experiments are stored."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.step.context import current_step

STORE_VARIABLE = "HOPS_STORE"
"""Environment variable with the address of a store, for programs that are not steps."""

_OF_HOPSWORKS = re.compile(r"^(hdfs|hopsfs)://[^/]*/Projects/[^/]+/?|^/Projects/[^/]+/?")


@dataclass(frozen=True)
class Project:
    """Store, and the step that works in it.

    Other programs have a spec that only names a store.
    """

    spec: StepSpec

    @classmethod
    def current(cls) -> Project:
        """Returns the project of this step, notebook, or program.

        Raises:
            BadInput: the program is not a step, and its environment does not name a store.
        """
        step = current_step()
        if step is not None:
            return cls(step.spec)
        root = os.environ.get(STORE_VARIABLE)
        if not root:
            raise BadInput(
                f"there is no store here: this is not an Airflow step; set the variable {STORE_VARIABLE} to the "
                "address of one, a folder for instance"
            )
        return cls(StepSpec("script", "", store=root, producer=Producer(task_id="script")))

    @cached_property
    def store(self) -> ArtifactStore:
        """Artifact store of the project."""
        return ArtifactStore(self.spec.store, storage_options=self.spec.storage_options)

    @cached_property
    def files(self) -> Any:
        """Project's fsspec file system."""
        return open_url(self.store.root, self.store.storage_options)[0]

    @property
    def root(self) -> str:
        """Address of the project; for a local store the folder's path, for Python's own functions."""
        return self.store.root.removeprefix("file://") if self.store.is_local else self.store.root

    def path(self, path: str) -> str:
        """Returns the whole address of a file or folder in the store.

        ``path`` is an address below :attr:`root`, a path relative to it, or, as in Hopsworks, ``hdfs:///Projects/<name>/…``,
        where any name means this project.

        Raises:
            BadInput: it is outside the store.
        """
        whole = str(path).removeprefix("file://") if self.store.is_local else str(path)
        if not (whole == self.root or whole.startswith(f"{self.root}/")):
            relative = _OF_HOPSWORKS.sub("", whole)
            if "://" in relative or (relative.startswith("/") and relative == whole):
                raise BadInput(f"path {path!r} is not within the project {self.root}; give one that begins there")
            whole = f"{self.root}/{relative.strip('/')}".rstrip("/")
        if ".." in whole.split("/"):
            raise BadInput(f"path {path!r} has a part '..'; expected one within the project {self.root}")
        scheme, sign, rest = whole.rpartition("://")
        return f"{scheme}{sign}{posixpath.normpath(rest)}"


def remove(files: Any, path: str) -> None:
    """Removes the file or folder at a path of an fsspec file system, if it exists; patterns are not expanded."""
    if files.exists(path):
        files.rm(path if isinstance(files, LocalFileSystem) else glob.escape(path), recursive=True)
