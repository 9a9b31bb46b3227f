"""Chooses the version for requests that specify neither version nor label."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import random
import threading
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.core.serving_api.traffic_config import Traffic, check_split, read_traffic_config, set_traffic
from airflow_hops.serving.file_stamp import stamp_of

# A split is in two places: the file, from which a restarted server takes it, and memory, from which requests take it.
# set_split() writes the file first and then the memory; an error of the file changes nothing. A changed file is read at
# the next poll, and an invalid one is ignored.
# Requests read the published objects without a lock: a change replaces them as a whole.

log = logging.getLogger(__name__)

# Percentages are integers, so a hundred slots represent every split exactly.
_SLOTS = 100
# The kernel's generator: workers that were forked, and code of models that sets seeds, cannot make draws repeat.
_draws = random.SystemRandom()


@dataclass(frozen=True)
class Split:
    """Shares of the loaded versions of one model.

    Attributes:
        versions: Versions with traffic, ascending.
        bounds: Cumulative upper ends of their shares; the last is the sum of the shares.
        slots: The version that owns each hundredth of the sticky keys, loaded or not.
    """

    versions: tuple[int, ...]
    bounds: tuple[int, ...]
    slots: tuple[int, ...] = ()

    @classmethod
    def among(cls, percents: Mapping[int, int], loaded: Mapping[int, object], slots: tuple[int, ...]) -> Split | None:
        """Returns the split over the loaded versions that have a share, or None if there are none."""
        versions = tuple(sorted(version for version in percents if percents[version] and version in loaded))
        if not versions:
            return None
        return cls(versions, tuple(itertools.accumulate(percents[version] for version in versions)), slots)

    def at(self, point: int, of: int) -> int:
        """Returns the version at a point from 0 to ``of``, exclusive; integer arithmetic keeps shares exact."""
        return self.versions[bisect_right(self.bounds, point * self.bounds[-1] // of)]

    def of_key(self, model: str, key: str) -> int:
        """Returns the version of a sticky key: the owner of its slot, or another version while that is not loaded."""
        digest = hashlib.blake2b(f"{model}\0{key}".encode(), digest_size=16).digest()
        version = self.slots[int.from_bytes(digest[:8], "big") % _SLOTS]
        if version in self.versions:
            return version
        return self.at(int.from_bytes(digest[8:], "big"), 2**64)

    def percents(self) -> dict[int, float]:
        """Returns the shares in effect, in percent."""
        lower = (0, *self.bounds)
        return {
            version: 100.0 * (upper - low) / self.bounds[-1]
            for version, low, upper in zip(self.versions, lower, self.bounds, strict=False)
        }


def deal_slots(percents: Mapping[int, int], previous: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Assigns the hundred slots of the sticky keys to versions, and returns the owner of each slot.

    Args:
        percents: Version to percent; they sum to 100.
        previous: The current owners: slots move only from versions whose share shrinks to versions whose share grows.
            None assigns slots in the order of the versions.
    """
    if previous is None:
        return tuple(version for version in sorted(percents) for _ in range(percents[version]))
    slots = list(previous)
    surplus = {version: slots.count(version) - percents.get(version, 0) for version in {*slots, *percents}}
    for grower in sorted(version for version in surplus if surplus[version] < 0):
        for giver in sorted(version for version in surplus if surplus[version] > 0):
            count = min(surplus[giver], -surplus[grower])
            owned = [slot for slot, version in enumerate(slots) if version == giver]
            # Take slots from the end next to the growing version, so two versions always have the order of a restart.
            for slot in owned[-count:] if grower > giver else owned[:count]:
                slots[slot] = grower
            surplus[giver] -= count
            surplus[grower] += count
            if not surplus[grower]:
                break
    return tuple(slots)


class TrafficTable:
    """The splits of all models, read from the traffic file and set at run time.

    While a version is not loaded, the model's other versions get its share. Requests with equal sticky keys go to the
    same version (when shares change, keys move only to versions that grow). Each request without a key is drawn
    independently: in a fixed order, clients that take turns would each meet the same version every time.

    Args:
        traffic_file: The file, which need not exist; None stores splits only in memory.
        slots: Owners of the slots of sticky keys in another process, by model.

    Attributes:
        file: File that stores the changes made at run time, for a restart; None to store them only in memory.
        stamp: Stamp of the file as last read; None without a file.
        slots: Current owners of the slots of sticky keys, by model.

    Raises:
        ConfigError: The file is not valid.
    """

    def __init__(
        self, traffic_file: str | os.PathLike[str] | None, slots: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        self.file = Path(traffic_file) if traffic_file else None
        self._lock = threading.Lock()
        self.stamp = stamp_of(self.file)
        self.slots: Mapping[str, tuple[int, ...]] = dict(slots or {})
        self._warned: set[tuple[str, tuple[int, ...]]] = set()
        self._traffic: Traffic = {}
        self._take(read_traffic_config(self.file) if self.file else self._traffic)

    def percents(self, model: str) -> dict[int, int] | None:
        """Returns the configured split of a model, including versions that are not loaded; None if there is none."""
        split = self._traffic.get(model)
        return None if split is None else dict(split)

    def set_split(self, model: str, percents: Mapping[int, int] | None) -> None:
        """Sets the split of a model, and saves it to the file, if any.

        Raises:
            ConfigError: The split or the file is not valid; nothing changes then.
            OSError: The file cannot be written; nothing changes then.
        """
        if percents is not None:
            check_split(percents, f"models.{model}")
        with self._lock:
            if self.file is not None:
                set_traffic(self.file, model, percents)
                self.stamp = stamp_of(self.file)
                self._take(read_traffic_config(self.file))
                return
            others = {name: shares for name, shares in self._traffic.items() if name != model}
            self._take(others if percents is None else {**others, model: dict(percents)})

    def reload(self) -> bool:
        """Reads the file if it has changed, and returns whether a split may differ; an invalid file changes nothing."""
        with self._lock:
            stamp = stamp_of(self.file)
            if self.file is None or stamp == self.stamp:
                return False
            try:
                traffic = read_traffic_config(self.file)
            except ConfigError as error:
                self.stamp = stamp
                log.error("traffic file ignored, the splits stay as they were: %s", error)
                return False
            self._take(traffic)
            self.stamp = stamp
            return True

    def split(self, model: str, loaded: Mapping[int, object]) -> Split | None:
        """Returns the split of a model over its loaded versions; None if the latest version answers."""
        percents = self._traffic.get(model)
        if percents is None:
            return None
        missing = tuple(sorted(version for version in percents if percents[version] and version not in loaded))
        if missing and (model, missing) not in self._warned:
            self._warned.add((model, missing))
            log.warning("model %s: versions %s have traffic but are not loaded; the others take it", model, missing)
        return Split.among(percents, loaded, self.slots[model])

    def choose(self, model: str, split: Split, sticky_key: str | None) -> int:
        """Returns the version for one request."""
        if sticky_key:
            return split.of_key(model, sticky_key)
        return split.at(_draws.getrandbits(32), 2**32)

    def _take(self, traffic: Traffic) -> None:
        # Set the slots first, so that concurrent look-ups of a split find those of its model.
        self.slots = {
            **self.slots,
            **{model: deal_slots(percents, self.slots.get(model)) for model, percents in traffic.items()},
        }
        self._warned.clear()
        old, self._traffic = self._traffic, traffic
        for model in sorted(old.keys() | traffic.keys()):
            if old.get(model) != traffic.get(model):
                log.info("model %s traffic: %s", model, _in_words(traffic.get(model)))


def _in_words(percents: Mapping[int, int] | None) -> str:
    if percents is None:
        return "no longer split"
    return ", ".join(f"{percent}% to {target}" for target, percent in percents.items()) or "none"
