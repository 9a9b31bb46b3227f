"""The base class of launchers, registered as entry points of the group ``airflow_hops.launchers``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.extensions import LAUNCHERS, load_class
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.launchers.process import Deferral, StepProcess
from airflow_hops.runner.launchers.warm import WarmStart

if TYPE_CHECKING:
    from airflow_hops.airflow_internals.triggers import BaseTrigger


class Launcher(ABC):
    """Starts the process of a step on some machine.

    It is created with ``runtime``, ``warm`` and its own options as keyword arguments.

    Args:
        runtime: Folder of the runtime environment.
        warm: Client of the warm process, which forks steps on this machine; None if ``warm_start`` is off. A launcher
            may ignore it.

    Attributes:
        reattaches: Whether its steps outlive their worker, so that :meth:`follows` finds that of an earlier try.
        environment: Name of the environment of its steps, such as an image; empty for that of ``runtime``.
    """

    reattaches: ClassVar[bool] = False
    environment: str = ""

    def __init__(self, runtime: Path, warm: WarmStart | None = None) -> None:
        self.runtime, self.warm = runtime, warm

    def follows(self, spec: StepSpec) -> bool:
        """Returns whether :meth:`start` will follow a step that an earlier try left, so that no new one is admitted."""
        return False

    def drop(self, spec: StepSpec) -> None:  # noqa: B027  # most steps end with their worker
        """Ends the step that an earlier try left, if there is one: the cache has its result."""

    @abstractmethod
    def start(self, spec_path: Path, code_paths: Sequence[str], *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Starts ``python -m airflow_hops.ml SPEC``, which writes ``result.json`` beside the spec.

        Args:
            spec_path: The step's ``spec.json``; its folder becomes the working directory.
            code_paths: Folders of user code for the step's import path.
            variables: Environment variables for the step, which must not be written to files.

        Raises:
            BadInput: the step cannot be started, and a retry would not help.
        """

    def defer(self, process: StepProcess, deferral: Deferral) -> BaseTrigger | None:
        """Stops following a process, and returns the trigger that follows it; None if it needs this worker.

        The trigger shows the output, and fires when the process has ended; :meth:`resume` gets the payload of its
        event. If a user ends the task meanwhile, the trigger ends the process.

        Args:
            process: A process of this launcher.
            deferral: The task.
        """
        return None

    def resume(self, event: Any, spec_path: Path, *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Follows a step again that a task had left to a trigger of :meth:`defer`.

        The step may have ended, failed or disappeared meanwhile.

        Args:
            event: Payload of the trigger's event.
            spec_path: As for :meth:`start`; another folder than before.
            variables: As for :meth:`start`.
        """
        raise NotImplementedError


def find_launcher(name: str) -> type[Launcher]:
    """Returns the class of a registered launcher.

    Raises:
        BadInput: it is not registered, cannot be imported, or is not a subclass of :class:`Launcher`.
    """
    return load_class(LAUNCHERS, name, Launcher)  # type: ignore[type-abstract]
