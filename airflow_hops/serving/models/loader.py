"""Keeps what is loaded equal to what the config and the base paths ask for, without ever interrupting requests."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc

from airflow_hops.core.serving_api.config import ConfigError, check_config
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import Catalog, CurrentConfig
from airflow_hops.serving.models.config_file import ConfigFile
from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.transitions import LoaderOptions, OpenVersion, Transitions
from airflow_hops.serving.models.wanted_models import WantedModels, due_after

log = logging.getLogger(__name__)

# How long a reload and the start wait for a version that is still being written, and for what a store says.
GROWING_S = 10.0


class Loader:
    """Has the versions that are wanted loaded, and no others, in threads of its own.

    A model that is missing or does not load never holds up another.

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
        self._options = options
        self._config_file = ConfigFile(config_file, options.write_back_config)
        self._cache = cache or ModelCache()
        self._changed = threading.Condition()
        self._wanted = WantedModels(self._changed, self._cache, options.file_system_poll_s)
        self._transitions = Transitions(
            catalog, self._wanted.by_name, open_version, options, self._cache, self._changed
        )
        self._config_due_s = due_after(options.config_poll_s)
        self._traffic_due_s = due_after(options.traffic_poll_s)
        self._is_started = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._set_config(config, str(self._config_file))
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
            self._wanted.stop()
        self._transitions.stop()
        self._cache.close()

    def wait_for_first_round(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until every wanted version was tried once, or for as long as the options allow.

        Args:
            stop: Asked now and then; True ends the wait early.
        """
        with self._changed:
            started_s = time.monotonic()
            until_s, give_up_s = started_s + GROWING_S, started_s + self._options.first_loads_s
            while not self._wanted.has_settled(0, until_s) and not stop():
                if time.monotonic() >= give_up_s:
                    log.warning(
                        "still loading after --first_load_timeout_seconds=%g: %s; the ports open without them, and "
                        "requests for them are UNAVAILABLE until then",
                        self._options.first_loads_s,
                        ", ".join(self._wanted.untried()),
                    )
                    break
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
                self._config_file.write(self._wanted.config())
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

    def _set_config(self, config: Any, source: str) -> None:
        with self._changed:
            self._current = CurrentConfig(config, source, time.time())
            self._wanted.set_config(config)

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
            self._config_due_s = due_after(self._options.config_poll_s)
            if (config := self._config_file.changed()) is not None:
                self._set_config(config, str(self._config_file))
        if now_s >= self._traffic_due_s:
            self._traffic_due_s = due_after(self._options.traffic_poll_s)
            self._catalog.reload_traffic()
        self._wanted.look(now_s)
        return min(self._transitions.begin(), self._config_due_s, self._traffic_due_s, self._wanted.due_s)
