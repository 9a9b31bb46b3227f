"""Keeps what is loaded equal to what the config and the base paths ask for, without ever interrupting requests."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import Catalog, CurrentConfig, State, VersionStatus
from airflow_hops.serving.models.memory import give_back
from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.remote_polls import RemoteLooks
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import (
    StorageLog,
    StoredVersion,
    is_remote,
    sort_versions,
    version_folders,
    wanted_versions,
)
from airflow_hops.serving.models.version_states import WantedModel, WantedVersion
from airflow_hops.serving_api.config import ConfigError, change_config, check_config, parse_config
from airflow_hops.serving_api.protocol import ModelServerConfig

log = logging.getLogger(__name__)

OpenVersion = Callable[[str, int, Path], Servable]

_NEVER = float("inf")
# How soon a version that is still being written is looked at again.
_LOOK_AGAIN_S = 0.2
# How long a reload and the start wait for such a version, and for what a store says.
_GROWING_S = 10.0


@dataclass(frozen=True)
class LoaderOptions:
    """Options of the loader: when to look, and how often to try.

    Attributes:
        file_system_poll_s: Seconds between looks at the base paths; 0 looks once, negative never.
        config_poll_s: Seconds between looks at the config file; 0 never looks again.
        traffic_poll_s: Seconds between looks at the traffic file; 0 never looks again.
        max_load_retries: Tries after the first one that failed.
        retry_interval_s: Seconds between tries.
        load_threads: Versions loaded at once.
        unload_threads: Versions unloaded at once.
        labels_for_unavailable: Whether a label may name a version that is not loaded.
        write_back_config: Whether a config that came by RPC is written to the config file.
    """

    file_system_poll_s: float = 1.0
    config_poll_s: float = 0.0
    traffic_poll_s: float = 1.0
    max_load_retries: int = 5
    retry_interval_s: float = 60.0
    load_threads: int = 2
    unload_threads: int = 2
    labels_for_unavailable: bool = False
    write_back_config: bool = False


class Loader:
    """Loads and unloads versions in threads of its own.

    Transitions preserve availability, as TensorFlow Serving's do by default: a version that is no longer wanted stays
    until a wanted one is available. A model that is missing or does not load never holds up another.

    Args:
        catalog: Where available versions are published.
        open_version: Opens a version: model name, version number, folder; raises ``ServingError``.
        options: When to look and how often to try.
        config: The ``ModelServerConfig`` to start with.
        config_file: The file that it came from, if it is to be watched.
        cache: Where versions that lie in stores are copied to; the system's temporary folder unless given.
    """

    def __init__(
        self,
        catalog: Catalog,
        open_version: OpenVersion,
        options: LoaderOptions,
        config: Any,
        config_file: str | os.PathLike[str] | None = None,
        cache: ModelCache | None = None,
    ) -> None:
        self._catalog = catalog
        self._open_version = open_version
        self._options = options
        self._config_file = Path(config_file) if config_file else None
        self._config_text = self._config_file.read_bytes() if self._config_file else b""
        self._changed = threading.Condition()
        self._models: dict[str, WantedModel] = {}
        self._storage_log = StorageLog()
        self._cache = cache or ModelCache()
        self._remote_looks = RemoteLooks(self._changed, self._cache, self._on_look)
        self._scan_due_s = 0.0
        self._scans = 0
        self._config_due_s = _after(options.config_poll_s)
        self._traffic_due_s = _after(options.traffic_poll_s)
        self._is_started = self._stopping = False
        # Copying takes long, or fails late: it must not hold up what lies on this machine.
        self._pool, self._remote_pool = (
            ThreadPoolExecutor(max(1, options.load_threads), name) for name in ("load", "load-remote")
        )
        self._unload_pool = ThreadPoolExecutor(max(1, options.unload_threads), "unload")
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._set_config(config, str(config_file) if config_file else "command line")
        catalog.is_coming = self._is_coming

    def current_config(self) -> CurrentConfig:
        """Returns the config in effect."""
        with self._changed:
            config = type(self._current.config)()
            config.CopyFrom(self._current.config)
        return replace(self._current, config=config)

    def current_names(self) -> set[str]:
        """Returns the names of the models in the config in effect."""
        return {model.name for model in self._current.config.model_config_list.config}

    def start(self) -> None:
        """Starts watching and loading."""
        self._thread.start()

    def stop(self) -> None:
        """Stops watching; versions stay loaded, copies of them are removed, and no further load begins."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._remote_looks.stop()
        for pool in (self._pool, self._remote_pool, self._unload_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._cache.close()

    def wait_for_first_round(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until every wanted version was tried once.

        Args:
            stop: Asked now and then; True ends the wait early.
        """
        with self._changed:
            until_s = time.monotonic() + _GROWING_S
            while not self._has_settled(0, until_s) and not stop():
                self._changed.wait(0.2)
            self._is_started = True

    def reload(self, config: Any) -> None:
        """Takes a new config, the whole truth from now on, and waits until what it adds was tried once.

        Args:
            config: A ``ModelServerConfig``.

        Raises:
            ServingError: The config is not valid (nothing changes then), a version does not load, or a label names a
                version that is not available (the labels of that model stay as they were).
        """
        if config.WhichOneof("config") != "model_config_list":
            raise invalid_argument(
                "ServerConfig type not supported by HandleReloadConfigRequest. "
                "Only ModelConfigList is currently supported"
            )
        try:
            check_config(config, "HandleReloadConfigRequest")
        except ConfigError as error:
            raise invalid_argument(str(error)) from error
        with self._changed:
            self._set_config(config, "HandleReloadConfigRequest")
            scans = self._scans
            until_s = time.monotonic() + _GROWING_S
            while not self._stopping and not self._has_settled(scans, until_s):
                self._changed.wait(0.2)
            try:
                self._raise_for_labels(config)
            finally:
                self._write_config_file()
            self._raise_for_failed_models(config)

    def _write_config_file(self) -> None:
        """Writes the config in effect to its file, where that was asked for, so that a restart has it."""
        if self._config_file is None or not self._options.write_back_config:
            return
        in_effect = ModelServerConfig()
        models = in_effect.model_config_list
        models.SetInParent()
        models.config.extend(model.config for model in self._models.values() if model.config is not None)
        try:
            change_config(self._config_file, lambda config: config.CopyFrom(in_effect))
            self._config_text = self._config_file.read_bytes()
        except (ConfigError, OSError) as error:
            raise ServingError(
                grpc.StatusCode.INTERNAL, f"The config is in effect, but cannot be written to its file: {error}"
            ) from error

    def _raise_for_labels(self, config: Any) -> None:
        for wanted in config.model_config_list.config:
            model = self._models.get(wanted.name)
            if model is not None:
                model.check_labels(wanted)

    def _raise_for_failed_models(self, config: Any) -> None:
        failed = []
        for wanted in config.model_config_list.config:
            model = self._models.get(wanted.name)
            if model is None or model.loaded:
                continue
            status = next((status for status in self._statuses(wanted.name) if status.error is not None), None)
            if status is not None and status.error is not None:
                servable = f"{{name: {wanted.name} version: {status.version}}}"
                failed.append(f"{{{servable} due to error: {status.error.code.name}: {status.error.message}}}")
        if failed:
            raise ServingError(
                grpc.StatusCode.UNKNOWN,
                f"{len(failed)} servable(s) did not become available: {{{', '.join(failed)}, }}",
            )

    def _statuses(self, model: str) -> list[VersionStatus]:
        try:
            return self._catalog.statuses(model)
        except ServingError:
            return []

    def _set_config(self, config: Any, source: str) -> None:
        with self._changed:
            self._current = CurrentConfig(config, source, time.time())
            wanted = {model.name: model for model in config.model_config_list.config}
            for name, model_config in wanted.items():
                own = type(model_config)()
                own.CopyFrom(model_config)
                self._models.setdefault(name, WantedModel(own)).config = own
            for name, model in self._models.items():
                if name not in wanted:
                    for version in model.versions.values():
                        version.wanted = False
                    model.config, model.growing = None, False
            self._scan_due_s = 0.0
            self._changed.notify_all()

    def _has_settled(self, scans: int, until_s: float) -> bool:
        """Whether there was another scan, and every version that it found was tried.

        Args:
            scans: Those that do not count.
            until_s: How long to wait for versions that are still being written, and for what stores say, as of
                ``time.monotonic()``.
        """
        if self._scans <= scans or not self._all_tried():
            return False
        return not (self._growing or self._remote_looks.awaited) or time.monotonic() >= until_s

    @property
    def _growing(self) -> bool:
        return any(model.growing for model in self._models.values())

    def _all_tried(self) -> bool:
        return all(
            version.attempts or not version.wanted
            for model in self._models.values()
            for version in model.versions.values()
        )

    def _is_coming(self, name: str, version: int | None, label: str | None) -> bool:
        if self._is_started and name in self._catalog.views:
            return False
        with self._changed:
            model = self._models.get(name)
            return model is not None and model.is_coming(version, label) and self._options.file_system_poll_s >= 0

    def _run(self) -> None:
        with self._changed:
            while not self._stopping:
                try:
                    due_s = self._step()
                except Exception:
                    log.exception("the loader failed in a round; it goes on with the next")
                    due_s = time.monotonic() + 1.0
                # A round of its own after each change: reload() and the first round wait for it.
                self._changed.notify_all()
                if not self._stopping:
                    self._changed.wait(max(0.0, min(due_s - time.monotonic(), 3600.0)))

    def _step(self) -> float:
        now_s = time.monotonic()
        if now_s >= self._config_due_s:
            self._config_due_s = _after(self._options.config_poll_s)
            self._reload_config_file()
        if now_s >= self._traffic_due_s:
            self._traffic_due_s = _after(self._options.traffic_poll_s)
            self._catalog.reload_traffic()
        if now_s >= self._scan_due_s:
            self._scan_due_s = _after(self._options.file_system_poll_s)
            if self._options.file_system_poll_s >= 0:
                self._scan()
            if self._growing:
                self._scan_due_s = min(self._scan_due_s, now_s + _LOOK_AGAIN_S)
            self._scans += 1
        for name in list(self._models):
            self._reconcile(name, self._models[name])
        retries = (
            version.next_attempt_s
            for model in self._models.values()
            for version in model.versions.values()
            if version.wanted and not version.loading and not version.is_loaded
        )
        return min(self._config_due_s, self._traffic_due_s, self._scan_due_s, *retries, _NEVER)

    def _reload_config_file(self) -> None:
        if self._config_file is None:
            return
        try:
            content = self._config_file.read_bytes()
            if content == self._config_text:
                return
            self._config_text = content
            config = parse_config(content.decode("utf-8"), str(self._config_file))
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            log.error("model config file ignored, the models stay as they were: %s", error)
            return
        log.info("model config file %s changed: applied", self._config_file)
        self._set_config(config, str(self._config_file))

    def _scan(self) -> None:
        remote = set()
        for model in self._models.values():
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
        for model in self._models.values():
            if model.config is not None and model.config.base_path == base_path:
                self._take_in(model, versions)
        if self._growing:
            self._scan_due_s = min(self._scan_due_s, time.monotonic() + _LOOK_AGAIN_S)

    def _take_in(self, model: WantedModel, versions: Sequence[StoredVersion] | Exception) -> None:
        """Takes in what lies under a model's base path, or why nobody knows."""
        model.looked_at = True
        if isinstance(versions, Exception):
            # A base path that is away for a while must not unload what is serving.
            self._storage_log.check(model.config, versions)
            model.growing = False
            return
        found = sort_versions(versions, {number: known.folder.place for number, known in model.versions.items()})
        self._storage_log.check(model.config, found)
        model.growing = bool(found.growing)
        model.want(wanted_versions(model.config, found.ready))

    def _reconcile(self, name: str, model: WantedModel) -> None:
        now_s = time.monotonic()
        for number in sorted(model.versions, reverse=True):
            version = model.versions[number]
            if version.wanted and not version.is_loaded and not version.loading and version.next_attempt_s <= now_s:
                version.loading = True
                self._catalog.set_status(name, VersionStatus(number, State.LOADING))
                pool = self._remote_pool if is_remote(version.folder.place) else self._pool
                pool.submit(self._load, name, number, version)
        any_wanted = any(version.wanted for version in model.versions.values())
        wanted_ready = any(version.wanted and version.servable for version in model.versions.values())
        gone: list[tuple[int, Servable]] = []
        for number, version in list(model.versions.items()):
            if version.wanted or version.loading:
                continue
            if version.servable is None:
                del model.versions[number]
                self._catalog.set_status(name, VersionStatus(number, State.END))
            elif wanted_ready or not any_wanted:
                gone.append((number, version.servable))
                del model.versions[number]
        labels = model.labels_in_effect(self._options.labels_for_unavailable)
        if gone or labels != model.labels:
            model.labels = labels
            self._catalog.publish(name, model.loaded, labels)
        for number, servable in gone:
            self._catalog.set_status(name, VersionStatus(number, State.UNLOADING))
            self._unload_pool.submit(self._unload, name, number, servable)
        if model.config is None and not model.versions:
            del self._models[name]

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
                self._record_failure(name, number, version, error)
            self._changed.notify_all()
        if replaced is not None:
            self._unload_pool.submit(self._close, replaced)

    def _record_failure(self, name: str, number: int, version: WantedVersion, error: ServingError | None) -> None:
        last = version.attempts > self._options.max_load_retries
        version.next_attempt_s = _NEVER if last else time.monotonic() + self._options.retry_interval_s
        self._catalog.set_status(name, VersionStatus(number, State.END if last else State.LOADING, error))
        log.error(
            "model %s version %d did not load (try %d of %d): %s",
            name,
            number,
            version.attempts,
            self._options.max_load_retries + 1,
            error,
        )

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


def _after(interval_s: float) -> float:
    return time.monotonic() + interval_s if interval_s > 0 else _NEVER
