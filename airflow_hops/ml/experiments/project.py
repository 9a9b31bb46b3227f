"""The store as a project: a file system with a root, in which experiments are kept."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fsspec

from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.step.context import current_step

STORE_VARIABLE = "HOPS_STORE"
"""Environment variable with the address of a store, for programs that are no step."""

_OF_HOPSWORKS = re.compile(r"^(hdfs|hopsfs)://[^/]*/Projects/[^/]+/?|^/Projects/[^/]+/?")


@dataclass(frozen=True)
class Project:
    """A store, and the step that works in it.

    Attributes:
        spec: The step's; of a program that is no step, one with a store and nothing else.
    """

    spec: StepSpec

    @classmethod
    def current(cls) -> Project:
        """Returns the project of this step, notebook, or program.

        Raises:
            BadInput: it is no step, and its environment names no store.
        """
        step = current_step()
        if step is not None:
            return cls(step.spec)
        root = os.environ.get(STORE_VARIABLE)
        if not root:
            raise BadInput(
                f"there is no store here: this is no step of Airflow's; set the variable {STORE_VARIABLE} to the "
                "address of one, a folder for instance"
            )
        return cls(StepSpec("script", "", store=root, producer=Producer(task_id="script")))

    @cached_property
    def store(self) -> ArtifactStore:
        """The store."""
        return ArtifactStore(self.spec.store, storage_options=self.spec.storage_options)

    @cached_property
    def files(self) -> Any:
        """Its file system, of fsspec's."""
        return fsspec.core.url_to_fs(self.store.root, **self.store.storage_options)[0]

    @property
    def root(self) -> str:
        """Its address; of a local one the folder's path, as Python's own functions take it."""
        return self.store.root.removeprefix("file://") if self.store.is_local else self.store.root

    def path(self, path: str) -> str:
        """The whole address of a file or folder.

        Args:
            path: Below :attr:`root`; relative to it; or, as Hopsworks has it, ``hdfs:///Projects/<name>/…``, whose
                project is this one, whatever its name.

        Raises:
            BadInput: it is not within the store.
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

    def remove(self, whole: str) -> None:
        """Removes a file, or a folder with all in it; nothing where there is none.

        Args:
            whole: Its address, as :meth:`path` gives it; no pattern.
        """
        if self.files.exists(whole):
            self.files.rm(whole if self.store.is_local else glob.escape(whole), recursive=True)
