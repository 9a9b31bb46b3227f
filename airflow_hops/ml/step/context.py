"""Context of a step's function: its inputs, its output, progress, and a scratch folder."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import STAGES, extensions
from airflow_hops.core.processes.cpu_time import cpu_seconds
from airflow_hops.core.sources.sources import AnySource
from airflow_hops.core.steps.protocol import Phase, StepSpec, format_record
from airflow_hops.core.store import ArtifactStore, ArtifactWriter

S = TypeVar("S", bound=AnySource)


class Stage(Protocol):
    """Signature of a stage, as distributions register it under ``airflow_hops.stages``."""

    def __call__(self, context: StepContext, **params: Any) -> Any:
        """Does the work of a step, with JSON values as ``params``.

        Returns:
            The artifact that ``context.output()`` committed, or a JSON value.

        Raises:
            BadInput: the input cannot be used, and a retry would not help.
        """


@dataclass(frozen=True)
class StepContext:
    """First argument of every step's entry function.

    Attributes:
        spec: The step's spec.
        scratch: A local folder of this try, removed with the step.
        store: The artifact store.
        started_s: Seconds of each start-up phase (:meth:`starting`).
        gpu_s: GPU seconds of each training (:meth:`used_gpus`).
        phases: Parts of the step that were measured on their own.

    Example:
        >>> from airflow_hops import StepContext
        >>> def count(context: StepContext, *, split="train"):
        ...     return len(list((context.local("examples") / split).iterdir()))
    """

    spec: StepSpec
    scratch: Path
    store: ArtifactStore = field(init=False)
    started_s: list[float] = field(default_factory=list)
    gpu_s: list[float] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)

    def __post_init__(self) -> None:
        store = ArtifactStore(self.spec.store, storage_options=self.spec.storage_options)
        object.__setattr__(self, "store", store)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Counts the ``with`` block as start-up instead of work, for example the start of Spark's JVM."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.started_s.append(time.monotonic() - began)

    def input(self, role: str) -> Artifact:
        """Returns the only artifact with a role; raises ``BadInput`` for none or several."""
        artifacts = self.spec.inputs.get(role, ())
        if len(artifacts) != 1:
            raise BadInput(f"step {self.spec.step!r} expects one input artifact {role!r}, found {len(artifacts)}")
        return artifacts[0]

    def has_input(self, role: str) -> bool:
        """Returns whether the step has an input artifact with a role."""
        return bool(self.spec.inputs.get(role))

    def inputs(self, role: str) -> tuple[Artifact, ...]:
        """Returns all artifacts with a role, in the given order."""
        return self.spec.inputs.get(role, ())

    def sources(self, sources: Mapping[str, S]) -> dict[str, S]:
        """Returns sources with the options of the connections that they name."""
        return {name: source.with_options(self.spec.source_options) for name, source in sources.items()}

    def local(self, role: str) -> Path:
        """Returns a local directory with the files of the only artifact with a role."""
        return self.store.local(self.input(role))

    def output(self, **artifacts: Artifact) -> ArtifactWriter:
        """Opens the writer of this step's artifact; use it in a ``with`` statement and commit at its end.

        ``artifacts`` are inputs that the step looked up itself, by role, for the lineage.

        Raises:
            BadInput: the spec does not name an output.
        """
        if self.spec.output is None:
            raise BadInput(f"step {self.spec.step!r} writes an artifact, but its spec names no output")
        writer = self.store.create(
            self.spec.output.uri,
            self.spec.output.kind,
            self.spec.producer,
            inputs={**self.spec.inputs, **{role: (artifact,) for role, artifact in artifacts.items()}},
            cache_key_parts=self.spec.cache_key_parts,
        )
        writer.cost = self.cost
        return writer

    def cost(self) -> dict[str, float]:
        """Returns the step's cost so far, in the form of :class:`~airflow_hops.core.artifacts.artifact.Manifest`."""
        return {"core_s": round(_core_seconds(), 2), "gpu_s": round(sum(self.gpu_s), 2)}

    def used_gpus(self, usage: Iterable[Iterable[Mapping[str, object]]], seconds: float) -> None:
        """Adds the seconds of the GPUs in a training's ``gpu_usage`` to the step's cost."""
        self.gpu_s.append(seconds * sum(1 for rank in usage for _ in rank))

    def progress(self, fraction: float, text: str, metrics: Mapping[str, float] | None = None) -> None:
        """Reports the progress of the step.

        Args:
            fraction: Completed share, 0 to 1.
            text: Current activity, in a few words.
            metrics: Current metrics (loss, rows per second).
        """
        print(format_record(text, progress=round(min(max(fraction, 0.0), 1.0), 4), metrics=metrics), flush=True)


_current: list[StepContext] = []


def make_current(context: StepContext) -> None:
    """Sets the context that :func:`current_step` returns in this process and its forks."""
    _current[:] = [context]


@contextlib.contextmanager
def made_current(context: StepContext) -> Iterator[None]:
    """Makes :func:`current_step` return a context within the ``with`` block."""
    contexts = list(_current)
    make_current(context)
    try:
        yield
    finally:
        _current[:] = contexts


def current_step() -> StepContext | None:
    """Returns the context of this process's step or notebook; None if the process is neither."""
    return _current[-1] if _current else None


class RecordHandler(logging.Handler):
    """Writes log records to standard output in the step protocol, one line each, with their level."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; a message of several lines becomes several records."""
        try:
            for line in self.format(record).splitlines():
                sys.stdout.write(format_record(line, level=record.levelno) + "\n")
            sys.stdout.flush()
        except Exception:
            self.handleError(record)


def resolve(entry: str) -> Callable[..., Any]:
    """Imports ``module:function``.

    Raises:
        BadInput: the name has another form, the module or function does not exist, or a distribution's stage cannot be
            imported.
    """
    if not entry.startswith("airflow_hops."):
        for stage in extensions(STAGES).values():
            if stage.value == entry:
                return stage.load()  # type: ignore[no-any-return]
    module_name, _, function_name = entry.partition(":")
    if not module_name or not function_name:
        raise BadInput(f"expected 'module:function', found {entry!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise BadInput(
                f"{entry!r}: there is no module {error.name!r} on the step's path ({', '.join(sys.path[:4])}, …); "
                "user code lives beside the DAG file"
            ) from error
        raise
    try:
        function = getattr(module, function_name)
    except AttributeError:
        raise BadInput(f"{entry!r}: module {module.__file__} has no function {function_name!r}") from None
    if not callable(function):
        raise BadInput(f"{entry!r} is a {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]


def find_file(path: str, what: str) -> Path:
    """Finds a file of the user, absolute or relative to a folder on the import path.

    Raises:
        BadInput: the file does not exist.
    """
    folders = [Path()] if Path(path).is_absolute() else [Path(folder) for folder in sys.path if folder]
    for folder in folders:
        if (folder / path).is_file():
            return (folder / path).resolve()
    raise BadInput(
        f"{what} {path!r}: there is no such file on the step's path ({', '.join(sys.path[:4])}, …); user code lives "
        "beside the DAG file"
    )


def _core_seconds() -> float:
    """Returns the CPU seconds of all processes in this session, including ended processes that were waited for.

    A step leads its session, or, under a running ``spark-submit``, is in that of the JVM. CPU time of the process that
    the step was forked from does not count.
    """
    return cpu_seconds(os.getpid(), os.getsid(0))
