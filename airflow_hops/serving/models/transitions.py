"""Loads and unloads versions in threads, such that a model never stops answering in between."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.catalog import Catalog, State, VersionStatus
from airflow_hops.serving.models.memory import give_back
from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import is_remote
from airflow_hops.serving.models.version_states import WantedModel, WantedVersion
from airflow_hops.serving.models.wanted_models import NEVER

log = logging.getLogger(__name__)

OpenVersion = Callable[[str, int, Path], Servable]


@dataclass(frozen=True)
class LoaderOptions:
    """Options of the loader: when to poll, how often to try, and how many versions at once.

    Attributes:
        file_system_poll_s: Seconds between polls of the base paths; 0 polls once, negative never.
        config_poll_s: Seconds between polls of the config file; 0 never polls again.
        traffic_poll_s: Seconds between polls of the traffic file; 0 never polls again.
        write_back_config: Whether a config that came by RPC is written to the config file.
        first_loads_s: How long the start waits for versions that are still loading, at most.
        max_load_retries: Tries after the first one that failed.
        retry_interval_s: Seconds between tries.
        load_threads: Versions loaded at once.
        unload_threads: Versions unloaded at once.
        labels_for_unavailable: Whether a label may name a version that is not loaded.
    """

    file_system_poll_s: float = 1.0
    config_poll_s: float = 0.0
    traffic_poll_s: float = 1.0
    write_back_config: bool = False
    first_loads_s: float = 600.0
    max_load_retries: int = 5
    retry_interval_s: float = 60.0
    load_threads: int = 2
    unload_threads: int = 2
    labels_for_unavailable: bool = False


class Transitions:
    """Brings what is loaded closer to what is wanted.

    Transitions preserve availability, as TensorFlow Serving's do by default: a version that is no longer wanted stays
    until a wanted one is available.

    Args:
        catalog: Where available versions are published.
        models: By name, as they are wanted; touched only under ``changed``.
        open_version: Opens a version: model name, version number, folder; raises ``ServingError``.
        options: How often to try, and how many at once.
        cache: From which copies of versions are removed.
        changed: The loader's lock; told when a version is loaded, has failed, or is unloaded.
    """

    def __init__(
        self,
        catalog: Catalog,
        models: dict[str, WantedModel],
        open_version: OpenVersion,
        options: LoaderOptions,
        cache: ModelCache,
        changed: threading.Condition,
    ) -> None:
        self._catalog = catalog
        self._models = models
        self._open_version = open_version
        self._options = options
        self._cache = cache
        self._changed = changed
        self._stopping = False
        # Copying takes long, or fails late: it must not hold up what lies on this machine.
        self._pool, self._remote_pool = (
            ThreadPoolExecutor(max(1, options.load_threads), name) for name in ("load", "load-remote")
        )
        self._unload_pool = ThreadPoolExecutor(max(1, options.unload_threads), "unload")

    def begin(self) -> float:
        """Begins what is due, under the lock.

        Returns:
            When a version is to be tried again, as of ``time.monotonic()``.
        """
        for name, model in list(self._models.items()):
            for number in sorted(model.versions, reverse=True):
                version = model.versions[number]
                is_due = not version.loading and version.next_attempt_s <= time.monotonic()
                if version.wanted and not version.is_loaded and is_due:
                    version.loading = True
                    self._catalog.set_status(name, VersionStatus(number, State.LOADING))
                    pool = self._remote_pool if is_remote(version.folder.place) else self._pool
                    pool.submit(self._load, name, number, version)
            gone = model.superseded
            for number, version in list(model.versions.items()):
                if number in gone:
                    del model.versions[number]
                elif not (version.wanted or version.loading or version.servable):
                    del model.versions[number]
                    self._catalog.set_status(name, VersionStatus(number, State.END))
            labels = model.labels_in_effect(self._options.labels_for_unavailable)
            if gone or labels != model.labels:
                model.labels = labels
                self._catalog.publish(name, model.loaded, labels)
            for number, servable in gone.items():
                self._catalog.set_status(name, VersionStatus(number, State.UNLOADING))
                self._unload_pool.submit(self._unload, name, number, servable)
            if model.config is None and not model.versions:
                del self._models[name]
        retries = (
            version.next_attempt_s
            for model in self._models.values()
            for version in model.versions.values()
            if version.wanted and not version.loading and not version.is_loaded
        )
        return min(retries, default=NEVER)

    def stop(self) -> None:
        """Begins no more; versions stay loaded."""
        self._stopping = True
        for pool in (self._pool, self._remote_pool, self._unload_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _load(self, name: str, number: int, version: WantedVersion) -> None:
        folder = version.folder
        fingerprint = folder.fingerprint()
        servable: Servable | None = None
        error: ServingError | None = None
        try:
            servable = folder.open(functools.partial(self._open_version, name, number))
            if folder.fingerprint() != fingerprint:
                servable.close()
                servable = None
                raise ServingError(grpc.StatusCode.ABORTED, f"{folder.place} changed while it was read")
        except ServingError as load_error:
            error = load_error
        except Exception as load_error:
            error = ServingError(grpc.StatusCode.INTERNAL, f"{type(load_error).__name__}: {load_error}")
        with self._changed:
            version.loading = False
            version.attempts += 1
            version.fingerprint = fingerprint
            replaced = version.servable if servable else None
            if servable is not None and not version.wanted:
                replaced = servable
            elif servable is not None:
                log.info("model %s version %d loaded in %.2f s from %s", name, number, servable.load_s, folder.place)
                version.servable, version.loaded_from = servable, folder.place
                model = self._models[name]
                model.labels = model.labels_in_effect(self._options.labels_for_unavailable)
                self._catalog.publish(name, model.loaded, model.labels)
                self._catalog.set_status(name, VersionStatus(number, State.AVAILABLE))
            elif version.wanted:
                last = version.attempts > self._options.max_load_retries
                version.next_attempt_s = NEVER if last else time.monotonic() + self._options.retry_interval_s
                self._catalog.set_status(name, VersionStatus(number, State.END if last else State.LOADING, error))
                log.error(
                    "model %s version %d did not load (try %d of %d): %s",
                    name,
                    number,
                    version.attempts,
                    self._options.max_load_retries + 1,
                    error,
                )
            self._changed.notify_all()
        if replaced is not None:
            self._unload_pool.submit(self._close, replaced)

    def _unload(self, name: str, number: int, servable: Servable) -> None:
        self._close(servable)
        log.info("model %s version %d unloaded", name, number)
        with self._changed:
            model = self._models.get(name)
            if model is None or number not in model.versions:
                self._catalog.set_status(name, VersionStatus(number, State.END))
            self._changed.notify_all()

    def _close(self, servable: Servable) -> None:
        servable.close()
        self._cache.remove(servable.path)
        if not self._stopping:
            # A job of its own: this one still holds the servable.
            self._unload_pool.submit(give_back)
