"""Determines the versions to load from the config and the base paths."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.remote_polls import RemoteLooks
from airflow_hops.serving.models.storage import (
    StorageLog,
    StoredVersion,
    is_remote,
    sort_versions,
    version_folders,
    wanted_versions,
)
from airflow_hops.serving.models.version_states import WantedModel

NEVER = float("inf")
# Interval between polls while a version is being written.
_LOOK_AGAIN_S = 0.2


class WantedModels:
    """The models that are in the config or have loaded versions; the loader's lock guards them.

    Args:
        changed: The loader's lock, notified when another poll is due.
        cache: Cache for copies of versions in stores.
        poll_s: Seconds between polls of the base paths; 0 polls once, negative never.

    Attributes:
        by_name: The models.
        looks: Number of polls of all base paths.
        due_s: Time of the next poll, on the clock of ``time.monotonic()``.
    """

    def __init__(self, changed: threading.Condition, cache: ModelCache, poll_s: float) -> None:
        self.by_name: dict[str, WantedModel] = {}
        self.looks = 0
        self.due_s = 0.0
        self._changed = changed
        self._poll_s = poll_s
        self._storage_log = StorageLog()
        self._remote_looks = RemoteLooks(changed, cache, self._on_look)

    def set_config(self, config: Any) -> None:
        """Replaces the ``ModelServerConfig``; models that are not in it are no longer wanted."""
        wanted = {model.name: model for model in config.model_config_list.config}
        for name, model_config in wanted.items():
            own = type(model_config)()
            own.CopyFrom(model_config)
            self.by_name.setdefault(name, WantedModel(own)).config = own
        for name, model in self.by_name.items():
            if name not in wanted:
                for version in model.versions.values():
                    version.wanted = False
                model.config, model.growing = None, ()
        self.due_s = 0.0
        self._changed.notify_all()

    def config(self) -> Any:
        """Returns the ``ModelServerConfig`` in effect, whose labels may differ from those of ``set_config``."""
        in_effect = ModelServerConfig()
        models = in_effect.model_config_list
        models.SetInParent()
        models.config.extend(model.config for model in self.by_name.values() if model.config is not None)
        return in_effect

    def look(self, now_s: float) -> None:
        """Polls the base paths if that is due; ``now_s`` is on the clock of ``time.monotonic()``."""
        if now_s < self.due_s:
            return
        self.due_s = due_after(self._poll_s)
        if self._poll_s >= 0:
            self._scan()
        self._look_again_soon(now_s)
        self.looks += 1

    def stop(self) -> None:
        """Begins no further polls of stores."""
        self._remote_looks.stop()

    def has_settled(self, looks: int, until_s: float) -> bool:
        """Returns whether a poll followed, each of its versions was tried, and superseded versions are unloaded.

        Args:
            looks: Number of polls before the change, which do not count.
            until_s: Time limit for versions that are being written and for slow stores, on the clock of
                ``time.monotonic()``.
        """
        if self.looks <= looks or self.untried():
            return False
        if any(model.superseded for model in self.by_name.values()):
            return False
        return not (self._growing or self._remote_looks.awaited) or time.monotonic() >= until_s

    def untried(self) -> list[str]:
        """Returns the wanted versions whose first load has not ended."""
        return [
            f"{name} version {number}"
            for name, model in self.by_name.items()
            for number, version in sorted(model.versions.items())
            if version.wanted and not version.attempts
        ]

    def is_coming(self, name: str, version: int | None, label: str | None) -> bool:
        """Returns whether a requested version or label is still to be loaded."""
        model = self.by_name.get(name)
        return model is not None and model.is_coming(version, label) and self._poll_s >= 0

    @property
    def _growing(self) -> bool:
        return any(model.growing for model in self.by_name.values())

    def _look_again_soon(self, now_s: float) -> None:
        if self._growing:
            self.due_s = min(self.due_s, now_s + _LOOK_AGAIN_S)

    def _scan(self) -> None:
        remote = set()
        for model in self.by_name.values():
            if model.config is None:
                continue
            if is_remote(model.config.base_path):
                remote.add(model.config.base_path)
                continue
            versions: Sequence[StoredVersion] | OSError
            try:
                versions = version_folders(model.config.base_path)
            except OSError as error:
                versions = error
            self._take_in(model, versions)
        self._remote_looks.ask(remote)

    def _on_look(self, base_path: str, versions: Sequence[StoredVersion] | Exception) -> None:
        for model in self.by_name.values():
            if model.config is not None and model.config.base_path == base_path:
                self._take_in(model, versions)
        self._look_again_soon(time.monotonic())

    def _take_in(self, model: WantedModel, versions: Sequence[StoredVersion] | Exception) -> None:
        """Applies the versions under a model's base path, or the error of the poll."""
        model.looked_at = True
        if isinstance(versions, Exception):
            # A base path that is temporarily unavailable must not unload versions.
            self._storage_log.check(model.config, versions)
            model.growing = ()
            return
        result = sort_versions(versions, {number: known.folder.place for number, known in model.versions.items()})
        self._storage_log.check(model.config, result)
        model.growing = result.growing
        model.want(wanted_versions(model.config, result.ready))


def due_after(interval_s: float) -> float:
    """Returns when an interval that begins now ends; never if it is not positive."""
    return time.monotonic() + interval_s if interval_s > 0 else NEVER
