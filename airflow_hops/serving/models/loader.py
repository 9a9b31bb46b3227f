"""Loads and unloads versions as the config and the base paths require, without interrupting requests."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.core.serving_api.config import (
    ConfigError,
    change_config,
    check_config,
    format_config,
    parse_config,
    read_config,
)
from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.file_stamp import Stamp, stamp_of
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog, CurrentConfig, State, VersionStatus
from airflow_hops.serving.models.formats import OpenVersion
from airflow_hops.serving.models.memory import give_back
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import is_remote
from airflow_hops.serving.models.wanted_models import NEVER, WantedModels, WantedVersion, due_after

# States of a version: wanted → loading → available → (no longer wanted) → unloading → end; a failed load is tried again
# until its attempts are used up or its files change.
# - One lock, _changed, guards the wanted models and the config. Loads, copies and unloads run in pools without the
#   lock, and take it to record their result.
# - One thread runs rounds: read the config and traffic files if due, poll base paths, begin what is due. Each change
#   wakes it for another round; reload() and the start wait until a round has found nothing untried.
# - A loaded version is published in the catalog before its state becomes AVAILABLE; a version to unload leaves the
#   catalog first, and is closed when the last request has let go of it.
# - A version that is no longer wanted while it loads is closed after its load. Files that change during a load make it
#   fail with ABORTED, and be tried again.
# - Nothing is stored: after a kill, the config file, the base paths and the traffic file determine the same state.

log = logging.getLogger(__name__)

# How long a reload and the start wait for versions that are being written, and for stores.
GROWING_S = 10.0
# Begins a config file that several workers share, and names the file that its content is from.
_SOURCE = "# hops: from "


def first_config(flags: Flags) -> object:
    """Returns the ``ModelServerConfig`` at the start: that of the config file, or of the model that the flags name.

    Raises:
        ConfigError: The config file is missing or not valid.
    """
    if flags.model_config_file:
        return read_config(flags.model_config_file)
    config = ModelServerConfig()
    if not flags.models_flag:
        config.model_config_list.config.add(
            name=flags.model_name, base_path=flags.model_base_path, model_platform="tensorflow"
        )
    return config


def marked(source: str, text: str) -> str:
    """Returns the text of a config with its source, for workers; without it, the config is from a call."""
    return f"{_SOURCE}{source}\n{text}"


class Loader:
    """Loads the wanted versions and unloads all others, in background threads.

    A model that is missing or fails to load does not delay other models.

    Args:
        catalog: Catalog to fill.
        open_version: Opens a version's folder.
        flags: The server's flags.
        config: The first ``ModelServerConfig``.
        unmarked: Source of a config file that :func:`marked` did not write; empty for the file itself.

    Attributes:
        written: Files to which a config that arrives by a call is written.
        settled: Stamp of the newest config file each of whose versions has been tried; None before that.
        after_reload: Called with the stamp of the first of ``written`` after a call has changed the config.
    """

    def __init__(
        self, catalog: Catalog, open_version: OpenVersion, flags: Flags, config: object, unmarked: str = ""
    ) -> None:
        self._catalog = catalog
        self._flags, self._unmarked = flags, unmarked
        self._config_file = Path(flags.model_config_file) if flags.model_config_file else None
        self._config_content = self._config_file.read_bytes() if self._config_file else b""
        self._config_stamp: Stamp | None = None
        self._looks_before, self._growing_until_s = 0, time.monotonic() + GROWING_S
        is_written = self._config_file is not None and flags.write_back_model_config
        self.written = [self._config_file] if self._config_file is not None and is_written else []
        self.settled: Stamp | None = None
        self.after_reload: Callable[[Stamp], None] = lambda stamp: None
        self._changed = threading.Condition()
        self._wanted = WantedModels(self._changed, flags)
        self._open_version = open_version
        # Copies from stores are slow and may fail late, so they must not delay local versions.
        self._pool, self._remote_pool = (
            ThreadPoolExecutor(flags.num_load_threads or 2, name) for name in ("load", "load-remote")
        )
        self._unload_pool = ThreadPoolExecutor(flags.num_unload_threads or 2, "unload")
        self._config_poll_s = flags.model_config_file_poll_wait_seconds if self._config_file else 0
        self._traffic_poll_s = flags.traffic_config_file_poll_wait_seconds if flags.traffic_config_file else 0
        self._config_due_s, self._traffic_due_s = due_after(self._config_poll_s), due_after(self._traffic_poll_s)
        self._is_started = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._set_config(config, self._source(self._config_content))
        catalog.is_coming = self._is_coming

    def current_config(self) -> CurrentConfig:
        """Returns a copy of the config in effect."""
        with self._changed:
            config = type(self._current.config)()
            config.CopyFrom(self._current.config)
        return replace(self._current, config=config)

    def current_names(self) -> set[str]:
        """Returns the names of the models in the config in effect."""
        return {model.name for model in self._current.config.model_config_list.config}

    def start(self) -> None:
        """Starts the loader's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops loading: versions stay loaded, but their local copies are removed."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for pool in (self._pool, self._remote_pool, self._unload_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._wanted.stop()

    def wait_for_first_round(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until loading every wanted version was tried once, at most ``--first_load_timeout_seconds``.

        The wait also ends when ``stop``, which is polled, returns True.
        """
        with self._changed:
            started_s = time.monotonic()
            until_s, give_up_s = started_s + GROWING_S, started_s + self._flags.first_load_timeout_seconds
            while not self._wanted.has_settled(0, until_s) and not stop():
                if time.monotonic() >= give_up_s:
                    log.warning(
                        "still loading after --first_load_timeout_seconds=%g: %s; the ports open without them, and "
                        "requests for them are UNAVAILABLE until then",
                        self._flags.first_load_timeout_seconds,
                        ", ".join(self._wanted.untried()),
                    )
                    break
                self._changed.wait(0.2)
            self._is_started = True

    def reload(self, config: object) -> None:
        """Replaces the config, and waits until loading each added version was tried once; raises ServingError."""
        self._reload(config)
        stamp = stamp_of(self.written[0]) if self.written else None
        if stamp is not None:
            self.after_reload(stamp)

    def _reload(self, config: Any) -> None:
        """Replaces the config of this process.

        Raises:
            ServingError: The config is not valid (nothing changes then), a version does not load, or a label points to
                an unavailable version (the labels of that model do not change then).
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
            looks = self._wanted.looks
            until_s = time.monotonic() + GROWING_S
            while not self._stopping and not self._wanted.has_settled(looks, until_s):
                self._changed.wait(0.2)
            try:
                for wanted in config.model_config_list.config:
                    model = self._wanted.by_name.get(wanted.name)
                    if model is not None:
                        model.check_labels(wanted)
            finally:
                self._write_back()
            failed = []
            for wanted in config.model_config_list.config:
                model = self._wanted.by_name.get(wanted.name)
                if model is None or model.loaded or not any(each.attempts for each in model.versions.values()):
                    continue
                for status in self._catalog.statuses(wanted.name):
                    if status.error is not None:
                        servable = f"{{name: {wanted.name} version: {status.version}}}"
                        failed.append(f"{{{servable} due to error: {status.error.code.name}: {status.error.message}}}")
                        break
        if failed:
            raise ServingError(
                grpc.StatusCode.UNKNOWN,
                f"{len(failed)} servable(s) did not become available: {{{', '.join(failed)}, }}",
            )

    def _set_config(self, config: object, source: str) -> None:
        with self._changed:
            self._current = CurrentConfig(config, source, time.time())
            self._wanted.set_config(config)
            self._looks_before, self._growing_until_s = self._wanted.looks, time.monotonic() + GROWING_S

    def _source(self, content: bytes) -> str:
        """Returns the source of the config file's content."""
        first_line = content.decode("utf-8", "replace").partition("\n")[0]
        if first_line.startswith(_SOURCE):
            return first_line.removeprefix(_SOURCE)
        return self._unmarked or str(self._config_file or "command line")

    def _is_coming(self, name: str, version: int | None, label: str | None) -> bool:
        if self._is_started and name in self._catalog.views:
            return False
        with self._changed:
            return self._wanted.is_coming(name, version, label)

    def _run(self) -> None:
        with self._changed:
            while not self._stopping:
                try:
                    due_s = self._step()
                    if self._wanted.has_settled(self._looks_before, self._growing_until_s):
                        self.settled = self._config_stamp
                except Exception:
                    log.exception("a round of the loader failed; trying again")
                    due_s = time.monotonic() + 1.0
                # Each change gets its own round, for which reload() and wait_for_first_round() wait.
                self._changed.notify_all()
                if not self._stopping:
                    self._changed.wait(max(0.0, min(due_s - time.monotonic(), 3600.0)))

    def _step(self) -> float:
        now_s = time.monotonic()
        if now_s >= self._config_due_s:
            self._config_due_s = due_after(self._config_poll_s)
            self._read_config_file()
        if now_s >= self._traffic_due_s:
            self._traffic_due_s = due_after(self._traffic_poll_s)
            self._catalog.reload_traffic()
        self._wanted.look(now_s)
        return min(self._begin(), self._config_due_s, self._traffic_due_s, self._wanted.due_s)

    def _begin(self) -> float:
        """Begins the loads and unloads that are due, and returns the time of the next retry; needs the lock.

        As by default in TensorFlow Serving, a version that is no longer wanted stays until a wanted one is available.
        """
        for name, model in list(self._wanted.by_name.items()):
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
                del self._wanted.by_name[name]
        retries = (
            version.next_attempt_s
            for model in self._wanted.by_name.values()
            for version in model.versions.values()
            if version.wanted and not version.loading and not version.is_loaded
        )
        return min(retries, default=NEVER)

    def _load(self, name: str, number: int, version: WantedVersion) -> None:
        folder = version.folder
        fingerprint = folder.fingerprint()
        servable: Servable | None = None
        error: ServingError | None = None
        started_s = time.monotonic()
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
                load_s = time.monotonic() - started_s
                log.info("model %s version %d loaded in %.2f s from %s", name, number, load_s, folder.place)
                version.servable, version.loaded_from = servable, folder.place
                model = self._wanted.by_name[name]
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
            model = self._wanted.by_name.get(name)
            if model is None or number not in model.versions:
                self._catalog.set_status(name, VersionStatus(number, State.END))
            self._changed.notify_all()

    def _close(self, servable: Servable) -> None:
        servable.close()
        self._wanted.closed(servable.path)
        if not self._stopping:
            # Run this in a separate job, since the current one still references the servable.
            self._unload_pool.submit(give_back)

    def _read_config_file(self) -> None:
        """Applies the config file if it has changed; an invalid file changes nothing."""
        assert self._config_file is not None
        try:
            stamp = stamp_of(self._config_file)
            content = self._config_file.read_bytes()
            self._config_stamp = stamp
            if content == self._config_content:
                return
            self._config_content = content
            config = parse_config(content.decode("utf-8"), str(self._config_file))
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            log.error("model config file ignored, the models stay as they were: %s", error)
            return
        log.info("model config file %s changed: applied", self._config_file)
        self._set_config(config, self._source(content))

    def _write_back(self) -> None:
        """Writes the config in effect to its file if the flags ask for it, so that it survives a restart."""

        def take(config: Any) -> str:
            config.CopyFrom(self._wanted.config())
            config.model_config_list.SetInParent()
            return format_config(config)

        try:
            for file in self.written:
                text = change_config(file, take)
                if file == self._config_file:
                    self._config_content = text.encode()
        except (ConfigError, OSError) as error:
            raise ServingError(
                grpc.StatusCode.INTERNAL, f"The config is in effect, but cannot be written to its file: {error}"
            ) from error
