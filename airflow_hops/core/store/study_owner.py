"""Ownership of a study, since two searches that write one record would lose each other's trials."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.times import now, seconds_since
from airflow_hops.core.store.studies import StudyFolder

_BEAT_S = 5.0
_DEAD_S = 60.0
_POLL_S = 1.0

log = logging.getLogger(__name__)


class StudyTaken(HopsError):
    """Another search owns the study."""


class StudyOwner:
    """Owns a study for one job of a run, with a heartbeat every few seconds."""

    def __init__(self, folder: StudyFolder, run_id: str) -> None:
        self._store, self._uri, self._run_id = folder.store, f"{folder.uri}/owner.json", run_id
        self._token, self._said = uuid.uuid4().hex, 0.0
        self._released = threading.Event()

    def claim(self) -> None:
        """Claims the study from an earlier job of the same run, or from a dead job of another run.

        Raises:
            StudyTaken: a live job of another run owns it; a retry may succeed after that has ended.
        """
        first, deadline = None, time.monotonic() + _DEAD_S
        while True:
            try:
                self._store.create_text(self._uri, self._text())
                break
            except FileExistsError:
                other = self._read()
            if other is None or other["run_id"] == self._run_id or seconds_since(other["at"]) > _DEAD_S:
                self._say()
                break
            first = first or other
            if other != first:
                raise self._taken(other)
            if time.monotonic() > deadline:
                self._say()
                break
            time.sleep(_POLL_S)
        log.debug("%s: claimed by run %s", self._uri, self._run_id)
        threading.Thread(target=self._beat, name="study", daemon=True).start()

    def check(self) -> None:
        """Renews the claim. Raises StudyTaken if another job has claimed the study."""
        other = self._read()
        if other is not None and other["token"] != self._token:
            raise self._taken(other)
        if other is None or time.monotonic() - self._said > _BEAT_S:
            self._say()

    def release(self) -> None:
        """Releases the study."""
        self._released.set()
        other = self._read()
        if other is not None and other["token"] == self._token:
            self._store.remove_text(self._uri)

    def _beat(self) -> None:
        """Renews the claim in a thread, also during uploads and the winner's training."""
        while not self._released.wait(_BEAT_S):
            with suppress(OSError, HopsError):  # the search notices when it saves its record
                self.check()

    def _taken(self, other: dict[str, Any]) -> StudyTaken:
        return StudyTaken(
            f"{self._uri}: run {other['run_id']!r} works on this study (last heard of at {other['at']}); runs that "
            "share a study work on it one after the other: set max_active_runs=1 or max_active_tis_per_dag=1, or give "
            "the task retries"
        )

    def _text(self) -> str:
        return json.dumps({"run_id": self._run_id, "token": self._token, "at": now()})

    def _say(self) -> None:
        self._store.write_text(self._uri, self._text())
        self._said = time.monotonic()

    def _read(self) -> dict[str, Any] | None:
        """Reads the claim; None if it does not exist or cannot be read."""
        try:
            owner = self._store.read_json(self._uri)
            return {name: str(owner[name]) for name in ("run_id", "token", "at")}
        except (FileNotFoundError, BadInput, KeyError, TypeError):
            return None
