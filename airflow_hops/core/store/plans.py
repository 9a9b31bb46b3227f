"""Takes each thing once of what others fill, such as a log: a task plans what it takes, reads it, and commits.

| what is taken | a thing is | name of a plan | a late thing | committed |
|---|---|---|---|---|
| captured files | a file's name; later ones are greater | the run | cannot be | the greatest name that was compared |
| endpoint's log | an entry's id | the window or run | in one of ``lookback`` windows | ids of the window's entries |
| topic | partition and offset | the window or run | in the next window | with the plan: windows share their offsets |
| table | its state | the run | in the next run | nothing: each run reads all |

1. *Plan*: the first try of a run records its plan, and all tries take the same. Plans of a task are made one after the
   other, under a lock, so that each knows those before it: no two take one thing, or leave one between them.
2. *Read*: a kill changes nothing; the next try finds the plan.
3. *Commit*, only after the step has succeeded: what a run took that ended before is left to the next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.leases import exclusive

_MOST_WAIT_S = 600.0


@dataclass(frozen=True)
class Plans:
    """Plans of what a task takes.

    Attributes:
        store: The artifact store.
        folder: Address of the folder of their files.
    """

    store: ArtifactStore
    folder: str

    @property
    def path(self) -> str:
        """Returns the folder's path in the store."""
        return self.folder.removeprefix(f"{self.store.root}/")

    def uri(self, name: str) -> str:
        """Returns the address of a file."""
        return f"{self.folder}/{name}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock of the plans.

        Raises:
            LockHeld: another task has held it for ten minutes.
        """
        with exclusive(self.store, self.uri("lock"), f"the plans of {self.path}", _MOST_WAIT_S):
            yield

    def first(self, name: str, plan: Callable[[], Any]) -> Any:
        """Returns the plan that the first try recorded, as JSON, or else makes and records it."""
        with suppress(FileNotFoundError):
            return self.store.read_json(self.uri(name))
        with self.held(), suppress(FileExistsError):  # another try was faster
            self.store.create_text(self.uri(name), json.dumps(plan()))
        return self.store.read_json(self.uri(name))
