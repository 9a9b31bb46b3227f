"""Records of a log's windows in the store.

``<store>/_state/tasks/<dag>/<task>/logs/<table>/`` has ``log.json``, the windows and files; and by the number of a
plan, ``<number>.json``, the plan, ``<number>.read.json``, what its step has read, and ``<number>.npy``, digests of the
entries that it has taken.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import UnreadableFile
from airflow_hops.core.models.logged_windows import LoggedWindow, note_window
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.plans import Plans
from airflow_hops.extensions.captured_logs.core.windows import LogState, WindowPlan, WindowRead


@dataclass(frozen=True)
class LogRecords(Plans):
    """Records of the windows of one log."""

    @classmethod
    def of_task(cls, store: ArtifactStore, producer: Producer, table: str) -> LogRecords:
        """Returns the records of a table of a task, whatever the address of its log."""
        return cls(store, store.internal("_state", "tasks", producer.dag_id, producer.task, "logs", table))

    @classmethod
    def of_plan(cls, store: ArtifactStore, plan: WindowPlan) -> LogRecords:
        """Returns the records that a plan is among."""
        return cls(store, f"{store.root}/{plan.folder}")

    def state(self) -> LogState:
        """Returns the state of a log.

        Raises:
            BadInput: it cannot be read.
        """
        uri = self.uri("log.json")
        try:
            return LogState.from_dict(self.store.read_json(uri))
        except FileNotFoundError:
            # No plan may equal one of a state that was removed, as steps are cached.
            return LogState(number=time.time_ns() // 1000)
        except (TypeError, ValueError) as error:
            raise UnreadableFile(
                uri, f": not the windows of a log ({error}); restore it, or remove it to begin again"
            ) from error

    def write(self, state: LogState, former: LogState) -> None:
        """Writes the state, and removes the files of windows that are no longer in it."""
        self.store.write_text(self.uri("log.json"), json.dumps(state.to_dict()))
        for number in {each.number for each in former.windows} - {each.number for each in state.windows}:
            for name in (f"{number}.json", f"{number}.read.json", f"{number}.npy"):
                self.store.remove_text(self.uri(name))

    def plan(self, number: int) -> WindowPlan:
        """Returns a plan."""
        return WindowPlan.from_dict(self.store.read_json(self.uri(f"{number}.json")))

    def commit(self, plan: WindowPlan, window: LoggedWindow | None = None) -> None:
        """Records that a plan's step has succeeded, and for a rollout, the snapshot with the window's rows.

        Raises:
            HopsError: another window was taken since the plan that may have the same entries.
        """
        with self.held():
            read = None
            with suppress(FileNotFoundError):
                read = WindowRead.from_dict(self.store.read_json(self.uri(f"{plan.number}.read.json")))
            former = LogState.from_dict(self.store.read_json(self.uri("log.json")))
            self.write(former.committed(plan, read), former)
            if window is not None and read is not None:
                note_window(self.store, self.path, plan.key, replace(window, last_us=read.last_us or 0))
