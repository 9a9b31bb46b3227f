"""Which version answers a request that names neither version nor label."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_hops.serving_api.config import ConfigError, Traffic, read_traffic

log = logging.getLogger(__name__)

# Coprime to 100: a hundred requests in a row visit every percent once, spread evenly between the versions.
_STRIDE = 61


@dataclass(frozen=True)
class Split:
    """Shares of the loaded versions of one model.

    Attributes:
        versions: Versions that get traffic, ascending.
        bounds: Upper ends of their shares, cumulative; the last is the sum of the shares.
    """

    versions: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def among(cls, percents: Mapping[int, int], loaded: Mapping[int, object]) -> Split | None:
        """Returns the split over those versions that are loaded and have a share, or None when none is."""
        versions = tuple(sorted(version for version in percents if percents[version] and version in loaded))
        if not versions:
            return None
        return cls(versions, tuple(itertools.accumulate(percents[version] for version in versions)))

    def at(self, point: float) -> int:
        """Returns the version at a point from 0 (inclusive) to 1 (exclusive)."""
        return self.versions[bisect_right(self.bounds, point * self.bounds[-1])]

    def percents(self) -> dict[int, float]:
        """The shares in effect, in percent."""
        lower = (0, *self.bounds)
        return {
            version: 100.0 * (upper - low) / self.bounds[-1]
            for version, low, upper in zip(self.versions, lower, self.bounds, strict=False)
        }


class TrafficTable:
    """The splits of all models, read from the traffic file.

    A version's share goes to the model's other versions while it is not loaded. A request with an id always goes to
    the same version (and, as a share grows, only ever moves to the version that grew); others are dealt evenly.

    Args:
        traffic_file: The file, or None for no splits; a missing file means the same.

    Raises:
        ConfigError: The file is there and not valid.
    """

    def __init__(self, traffic_file: str | os.PathLike[str] | None) -> None:
        self._file = Path(traffic_file) if traffic_file else None
        self._stamp = self._current_stamp()
        self._traffic: Traffic = read_traffic(self._file) if self._file else {}
        self._counters: dict[str, itertools.count[int]] = {}
        self._warned: set[tuple[str, tuple[int, ...]]] = set()

    def reload(self) -> bool:
        """Reads the file again if it changed; one that is not valid leaves the splits as they are.

        Returns:
            Whether any split may have changed.
        """
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._traffic = read_traffic(self._file) if self._file else {}
        except ConfigError as error:
            log.error("traffic file ignored, the splits stay as they were: %s", error)
            return False
        self._warned.clear()
        log.info("traffic: %s", self._traffic)
        return True

    def split(self, model: str, loaded: Mapping[int, object]) -> Split | None:
        """Returns the split of a model over its loaded versions; None where the latest version answers."""
        percents = self._traffic.get(model)
        if percents is None:
            return None
        missing = tuple(sorted(version for version in percents if percents[version] and version not in loaded))
        if missing and (model, missing) not in self._warned:
            self._warned.add((model, missing))
            log.warning("model %s: versions %s have traffic but are not loaded; the others take it", model, missing)
        return Split.among(percents, loaded)

    def choose(self, model: str, split: Split, request_id: str | None) -> int:
        """Returns the version for one request."""
        if request_id:
            digest = hashlib.blake2b(f"{model}\0{request_id}".encode(), digest_size=8).digest()
            return split.at(int.from_bytes(digest, "big") / 2**64)
        counter = self._counters.get(model)
        if counter is None:
            counter = self._counters.setdefault(model, itertools.count())
        return split.at(next(counter) * _STRIDE % 100 / 100)

    def _current_stamp(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
