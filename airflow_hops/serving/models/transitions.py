"""Loads and unloads versions in background threads, without interrupting a model's service."""

from __future__ import annotations

import functools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog, State, VersionStatus
from airflow_hops.serving.models.formats import OpenVersion
from airflow_hops.serving.models.memory import give_back
from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import is_remote
from airflow_hops.serving.models.version_states import WantedModel, WantedVersion
from airflow_hops.serving.models.wanted_models import NEVER

log = logging.getLogger(__name__)


class Transitions:
    """Loads wanted versions, and unloads those that are no longer wanted.

    Transitions preserve availability, as by default in TensorFlow Serving: a version that is no longer wanted stays
    until a wanted version is available.

    Args:
        catalog: Catalog in which available versions are published.
        models: Name to wanted model; ``changed`` guards it.
        open_version: Opens a version: model name, version number, folder; raises ``ServingError``.
        flags: Flags for retries and thread counts.
        cache: Cache from which copies of unloaded versions are removed.
        changed: The loader's lock, notified when a version is loaded, has failed, or is unloaded.
    """

    def __init__(
        self,
        catalog: Catalog,
        models: dict[str, WantedModel],
        open_version: OpenVersion,
        flags: Flags,
        cache: ModelCache,
        changed: threading.Condition,
    ) -> None:
        self._catalog = catalog
        self._models = models
        self._open_version = open_version
        self._flags = flags
        self._cache = cache
        self._changed = changed
        self._stopping = False
        # Copies from stores are slow and may fail late, so they must not delay local versions.
        self._pool, self._remote_pool = (
            ThreadPoolExecutor(flags.num_load_threads or 2, name) for name in ("load", "load-remote")
        )
        self._unload_pool = ThreadPoolExecutor(flags.num_unload_threads or 2, "unload")

    def begin(self) -> float:
        """Begins the loads and unloads that are due; needs the lock.

        Returns the time of the next retry, on the clock of ``time.monotonic()``.
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
            labels = model.labels_in_effect(self._flags.allow_version_labels_for_unavailable_models)
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
        """Begins no further loads or unloads; versions stay loaded."""
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
                model.labels = model.labels_in_effect(self._flags.allow_version_labels_for_unavailable_models)
                self._catalog.publish(name, model.loaded, model.labels)
                self._catalog.set_status(name, VersionStatus(number, State.AVAILABLE))
            elif version.wanted:
                retries = self._flags.max_num_load_retries
                last = version.attempts > retries
                retry_s = max(0, self._flags.load_retry_interval_micros) / 1e6
                version.next_attempt_s = NEVER if last else time.monotonic() + retry_s
                self._catalog.set_status(name, VersionStatus(number, State.END if last else State.LOADING, error))
                tries = f"try {version.attempts} of {retries + 1}"
                log.error("model %s version %d did not load (%s): %s", name, number, tries, error)
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
            # Run this in a separate job, since the current one still references the servable.
            self._unload_pool.submit(give_back)
