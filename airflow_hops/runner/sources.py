"""Plans which rows of sources an ingest reads, before its step begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_hops.airflow_internals.triggers import BaseTrigger
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.runtime import RuntimeHook


@dataclass(frozen=True)
class Planning:
    """The task that plans.

    Attributes:
        hook: Hook with the store, which also runs a step if the runtime environment is asked.
        producer: The task instance. All tries of a run have the same ``run_id``.
        window: Start and end, ISO 8601, UTC without a zone; None means unbounded.
        launcher: Launcher of the task's steps; None for this machine.
        event: Payload of the trigger that the planner returned before; None at first.
    """

    hook: RuntimeHook
    producer: Producer
    window: tuple[str | None, str | None]
    launcher: Launcher | None = None
    event: Any = None


class Planner(Protocol):
    """The function that a source class names in ``planner``."""

    def __call__(self, sources: Mapping[str, Any], planning: Planning) -> Mapping[str, Any] | BaseTrigger:
        """Plans which rows of all sources of a class are read.

        A plan is part of the step's cache key. All tries of a run have to get the same one: record it in the store, or
        derive it from unchanging facts.

        Args:
            sources: Source of each table, without the options of its connection.
            planning: The task.

        Returns:
            By table, the plan, a JSON value; or another source that is read instead, such as files in the store. Or
            else the trigger to wait for, after which the planner is called again.

        Raises:
            BadInput: there are no such rows, and a retry cannot help.
            HopsError: the queried system does not answer.
        """


class Committer(Protocol):
    """The function that a source class names in ``committer``."""

    def __call__(
        self, sources: Mapping[str, Any], plans: Mapping[str, Any], planning: Planning, snapshot: Artifact
    ) -> None:
        """Records that the rows of plans are in a snapshot.

        Args:
            sources: Source of each table of the class.
            plans: Plan of each table.
            planning: The task.
            snapshot: What its step has made, or found in the cache.

        Raises:
            HopsError: they cannot be; the task fails, and its retry plans again.
        """
