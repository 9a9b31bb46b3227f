"""The loader's state of each model: its wanted versions, their progress, and its labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import Fingerprint, StoredVersion

log = logging.getLogger(__name__)


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
