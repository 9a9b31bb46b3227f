"""Determines the versions to load from the config and the base paths, and keeps their progress and the labels."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import (
    StorageLog,
    is_remote,
    sort_versions,
    version_folders,
    wanted_versions,
)
from airflow_hops.serving.models.stored_version import Fingerprint, StoredVersion
from airflow_hops.serving.parts import VersionStores, server_parts

# Three sources meet here, under the loader's lock: the config (which models, versions and labels), polls of base paths
# (which versions exist), and loads (what is in memory). A version is in `versions` as long as any of them needs it.
# is_coming() decides between NOT_FOUND and UNAVAILABLE for a request: before the first poll of a base path, everything
# may still come.

log = logging.getLogger(__name__)

NEVER = math.inf
# Interval between polls while a version is being written.
_LOOK_AGAIN_S = 0.2


@dataclass
class WantedVersion:
    """A version that is wanted or still loaded; the loader's lock guards it.

    Attributes:
        folder: The stored version.
        wanted: Whether the config selects it and it exists.
        loading: Whether a thread is loading it.
        attempts: Number of attempts to load it since its files last changed.
        next_attempt_s: Earliest time of the next attempt, on the clock of ``time.monotonic()``.
        fingerprint: Fingerprint of the files at the last attempt.
        servable: The loaded version.
        loaded_from: Place from which ``servable`` was loaded.
    """

    folder: StoredVersion
    wanted: bool = True
    loading: bool = False
    attempts: int = 0
    next_attempt_s: float = 0.0
    fingerprint: Fingerprint = ()
    servable: Servable | None = None
    loaded_from: str = ""

    @property
    def is_loaded(self) -> bool:
        """Whether it is loaded from its current place."""
        return self.servable is not None and self.loaded_from == self.folder.place

    @property
    def is_coming(self) -> bool:
        """Whether it is wanted, does not answer yet, and has not failed permanently."""
        return self.wanted and self.servable is None and (self.loading or self.next_attempt_s < math.inf)


@dataclass
class WantedModel:
    """A model that is in the config or has loaded versions; the loader's lock guards it.

    Attributes:
        config: Its ``ModelConfig``; None once it is removed from the config.
        looked_at: Whether its base path was polled.
        growing: Versions that are still being written.
        versions: Version number to version.
        labels: Labels in effect.
    """

    config: Any
    looked_at: bool = False
    growing: tuple[int, ...] = ()
    versions: dict[int, WantedVersion] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def loaded(self) -> dict[int, Servable]:
        """The loaded versions."""
        return {number: version.servable for number, version in self.versions.items() if version.servable}

    @property
    def superseded(self) -> dict[int, Servable]:
        """Loaded versions to unload: they are not wanted, and either a wanted version answers or none is wanted."""
        wanted = [version for version in self.versions.values() if version.wanted]
        if wanted and not any(version.servable for version in wanted):
            return {}
        return {
            number: version.servable
            for number, version in self.versions.items()
            if version.servable and not (version.wanted or version.loading)
        }

    def is_coming(self, version: int | None, label: str | None) -> bool:
        """Returns whether a requested version, or else label, is still to be loaded."""
        if self.config is None:
            return False
        if version is None and label:
            version = self.config.version_labels.get(label)
            if version is None:
                return False
        if not self.looked_at:
            return True
        if version is None:
            return bool(self.growing) or any(known.is_coming for known in self.versions.values())
        return version in self.growing or (version in self.versions and self.versions[version].is_coming)

    def want(self, folders: Mapping[int, StoredVersion]) -> None:
        """Sets the wanted versions; failed versions whose files have changed are tried again."""
        for number, version in self.versions.items():
            version.wanted = number in folders
        for number, folder in folders.items():
            version = self.versions.setdefault(number, WantedVersion(folder))
            if version.folder.place != folder.place:
                version.attempts, version.next_attempt_s = 0, 0.0
            version.folder = folder
            failed = version.attempts and not version.is_loaded and not version.loading
            if failed and folder.fingerprint() != version.fingerprint and folder.is_quiet():
                log.info("model %s version %d changed: trying it again", self.config.name, number)
                version.attempts, version.next_attempt_s = 0, 0.0

    def labels_in_effect(self, for_unavailable: bool) -> dict[str, int]:
        """Returns the labels; a label whose new version is still loading keeps its old version.

        Args:
            for_unavailable: Whether a label may point to a version that is not loaded.
        """
        if self.config is None:
            return {}
        loaded = self.loaded
        labels = {}
        for label, version in self.config.version_labels.items():
            if version in loaded or for_unavailable:
                labels[label] = version
            elif self.labels.get(label) in loaded:
                labels[label] = self.labels[label]
        return labels

    def check_labels(self, asked: Any) -> None:
        """Checks that the labels of a client's ``ModelConfig`` are in effect; otherwise resets the config's labels.

        Raises:
            ServingError: A label is not in effect.
        """
        for label, version in asked.version_labels.items():
            if self.labels.get(label) == version:
                continue
            if self.config is not None:
                self.config.version_labels.clear()
                self.config.version_labels.update(self.labels)
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"Request to assign label {label} to version {version} of model {asked.name}, which is not currently "
                f"available for inference",
            )


class WantedModels:
    """The models that are in the config or have loaded versions; the loader's lock guards them.

    Args:
        changed: The loader's lock, notified when another poll is due.
        flags: The server's flags.

    Attributes:
        by_name: The models.
        looks: Number of polls of all base paths.
        due_s: Time of the next poll, on the clock of ``time.monotonic()``.
    """

    def __init__(self, changed: threading.Condition, flags: Flags) -> None:
        self.by_name: dict[str, WantedModel] = {}
        self.looks = 0
        self.due_s = 0.0
        self._changed = changed
        self._flags = flags
        self._poll_s = flags.file_system_poll_wait_seconds  # 0 polls once, negative never
        self._storage_log = StorageLog()
        self._stores: VersionStores | None = None

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
        """Begins no further polls of stores, and removes copies of their versions."""
        if self._stores is not None:
            self._stores.stop()

    def closed(self, path: str | os.PathLike[str]) -> None:
        """Removes the copy of a store's version that was loaded from this path and is closed."""
        if self._stores is not None:
            self._stores.closed(path)

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
        is_awaited = self._stores is not None and self._stores.awaited
        return not (self._growing or is_awaited) or time.monotonic() >= until_s

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
        if remote and self._stores is None:
            opened = (part.stores(self._flags, self._changed, self._on_look) for part in server_parts().values())
            self._stores = next(filter(None, opened), None)
        if self._stores is not None:
            self._stores.ask(remote)
        for base_path in remote if self._stores is None else ():
            self._on_look(base_path, NotImplementedError("no installed part of the server opens a URL"))

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
