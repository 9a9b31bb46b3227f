"""Fills the catalog with the models of upstream servers; a gateway uses it instead of the loader."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from airflow_hops.core.extensions import UPSTREAMS, load_class
from airflow_hops.core.serving_api.config import ConfigError, check_config
from airflow_hops.core.serving_api.tls_files import TlsFiles
from airflow_hops.extensions.gateway.serving.flags import GatewayFlags
from airflow_hops.extensions.gateway.serving.tensorflow_upstream import TensorFlowUpstream, UpstreamServable
from airflow_hops.serving.access import TokenFile
from airflow_hops.serving.errors import ServingError, StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog, CurrentConfig, State, VersionStatus
from airflow_hops.serving.models.loader import GROWING_S
from airflow_hops.serving.upstream import Upstream

# One thread per upstream polls it each second; a request for an unknown model polls all of them at once (`discover`).
# Under _changed, each answer replaces the upstream's statuses, and the catalog gets the union of those that are
# reachable. A version is published once at least one upstream has it, and withdrawn when no reachable upstream has it;
# while none is reachable, nothing changes.

log = logging.getLogger(__name__)

_POLL_S = 1.0
_MAX_BACK_OFF_S = 8.0
_ASK_TIMEOUT_S = 5.0
_AWAY_TIMEOUT_S = 0.5
_RELOAD_TIMEOUT_S = 600.0
_MAX_LABELS = 1000


class UpstreamWatcher:
    """Polls the versions of every upstream each second, with one thread per upstream.

    It polls the models in the config, and others from the first request for them. While an upstream is unreachable, the
    versions of the others count; if all are unreachable, nothing changes.

    Args:
        catalog: Catalog in which available versions are published.
        flags: Flags for the upstreams, their certificates and tokens, and the traffic file.
        config: A ``ModelServerConfig`` with the models to poll from the start.

    Raises:
        StartError: A certificate or key file cannot be read.
        ConfigError: The token file is empty.
    """

    def __init__(self, catalog: Catalog, flags: Flags, config: Any) -> None:
        own = flags.of(GatewayFlags)
        files = (own.upstream_ca_file, own.upstream_cert_file, own.upstream_key_file)
        tls: TlsFiles | None = TlsFiles(*(file or None for file in files))
        if tls == TlsFiles():
            tls = None
        try:
            if tls is not None:
                tls.credentials()
        except OSError as error:
            raise StartError(f"--upstream_…_file: {error}") from error
        token = TokenFile("--upstream_token_file", own.upstream_token_file) if own.upstream_token_file else None
        self._catalog = catalog
        self._traffic_poll_s = flags.traffic_config_file_poll_wait_seconds if flags.traffic_config_file else 0
        self._upstreams = [_upstream(address, tls, token) for address in own.upstream]
        self._current = CurrentConfig(config, flags.model_config_file or "command line", time.time())
        self._models = self.current_names()
        self._servables: dict[str, dict[int, UpstreamServable]] = {}
        self._by_label = functools.lru_cache(_MAX_LABELS)(self._label)
        self._changed = threading.Condition()
        self._asked = 0
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(upstream,), name=f"upstream {upstream.address}", daemon=True)
            for upstream in self._upstreams
        ]
        if self._traffic_poll_s > 0:
            self._threads.append(threading.Thread(target=self._watch_traffic, name="traffic", daemon=True))
        catalog.discover = self.discover

    def current_config(self) -> CurrentConfig:
        """Returns the config that was last forwarded, or the initial one; upstreams do not report their config."""
        return self._current

    def current_names(self) -> set[str]:
        """Returns the names of the models in the config in effect."""
        return {model.name for model in self._current.config.model_config_list.config}

    def start(self) -> None:
        """Starts polling."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops polling and closes the connections."""
        self._stopping.set()
        for upstream in self._upstreams:
            upstream.close()

    def wait_for_first_round(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits until every upstream was polled once, and then up to ``GROWING_S`` for models that are still loading.

        The wait also ends when ``stop``, which is polled, returns True.
        """
        with self._changed:
            until_s = time.monotonic() + GROWING_S
            while not stop() and (
                self._asked < len(self._upstreams) or (self._still_loading() and time.monotonic() < until_s)
            ):
                self._changed.wait(0.2)

    def reload(self, config: Any) -> None:
        """Forwards a ``ModelServerConfig`` to every upstream, and waits until the added versions are available there.

        Raises:
            ServingError: The config is not valid, or an upstream refused it or cannot be reached.
        """
        try:
            check_config(config, "HandleReloadConfigRequest")
        except ConfigError as error:
            raise ServingError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        for upstream in self._upstreams:
            try:
                upstream.reload(config, _RELOAD_TIMEOUT_S)
            except ServingError as error:
                raise ServingError(error.code, f"upstream {upstream.address}: {error.message}") from error
        with self._changed:
            self._current = CurrentConfig(config, "HandleReloadConfigRequest", time.time())
            self._by_label.cache_clear()
            asked = sorted(self._models | self.current_names())
            self._models = set(asked)
        for upstream in self._upstreams:
            self._ask(upstream, asked)

    def discover(self, model: str) -> bool:
        """Polls all upstreams for a model now; returns whether an upstream has a version of it.

        Raises:
            ServingError: No upstream can be reached.
        """
        # A request is waiting: upstreams that are away may hang, so they get only a short timeout.
        answered = [
            upstream
            for upstream in self._upstreams
            if self._ask(upstream, [model], _AWAY_TIMEOUT_S if upstream.is_away else _ASK_TIMEOUT_S)
        ]
        if not answered:
            addresses = ", ".join(upstream.address for upstream in self._upstreams)
            raise ServingError(
                grpc.StatusCode.UNAVAILABLE, f"No upstream can be reached for model {model}: {addresses}"
            )
        with self._changed:
            result = any(upstream.statuses.get(model) for upstream in answered)
            if result:
                self._models.add(model)
        return result

    def _still_loading(self) -> bool:
        """Returns whether a configured model without a version may get one; starting upstreams are unreachable."""
        if any(upstream.is_away for upstream in self._upstreams):
            return not self.current_names() <= self._catalog.views.keys()
        return any(
            status.state < State.AVAILABLE
            for model in self.current_names() - self._catalog.views.keys()
            for upstream in self._upstreams
            for status in upstream.statuses.get(model, {}).values()
        )

    def _watch(self, upstream: Upstream) -> None:
        back_off_s = _POLL_S
        first = True
        while not self._stopping.is_set():
            with self._changed:
                models = sorted(self._models)
            try:
                here = self._ask(upstream, models) if models else upstream.is_reachable(_ASK_TIMEOUT_S)
            except Exception:
                log.exception("upstream %s: a poll failed; trying again", upstream.address)
                here = False
            if first:
                first = False
                with self._changed:
                    self._asked += 1
                    self._changed.notify_all()
            back_off_s = _POLL_S if here else min(2 * back_off_s, _MAX_BACK_OFF_S)
            self._stopping.wait(back_off_s)

    def _watch_traffic(self) -> None:
        while not self._stopping.wait(self._traffic_poll_s):
            self._catalog.reload_traffic()

    def _ask(self, upstream: Upstream, models: Sequence[str], timeout_s: float = _ASK_TIMEOUT_S) -> bool:
        """Polls models of one upstream and publishes the changes; returns False if it cannot be reached."""
        answered = False
        try:
            for model in models:
                upstream.read_statuses(model, timeout_s)
            self._set_away(upstream, None)
            for model in models:
                self._read_signatures(upstream, model)
            answered = True
        except ServingError as error:
            self._set_away(upstream, error)
        for model in models:
            self._publish(model)
        return answered

    def _set_away(self, upstream: Upstream, error: ServingError | None) -> None:
        if error is not None and not upstream.is_away:
            log.warning("upstream %s is away: %s", upstream.address, error)
        if error is None and upstream.is_away:
            log.info("upstream %s is back", upstream.address)
        upstream.is_away = error is not None
        if error is None:
            upstream.avoid_until_s = 0.0

    def _read_signatures(self, upstream: Upstream, model: str) -> None:
        for status in upstream.statuses.get(model, {}).values():
            with self._changed:
                known = status.version in self._servables.get(model, {})
            if status.state is not State.AVAILABLE or known:
                continue
            try:
                _, definitions = upstream.read_metadata(model, status.version, None, _ASK_TIMEOUT_S)
            except ServingError as error:
                if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
                if error.code is grpc.StatusCode.NOT_FOUND:
                    continue
                # gRPC works without signatures; only JSON needs the types.
                log.warning("upstream %s: no signatures of %s: %s", upstream.address, model, error)
                definitions = b""
            servable = UpstreamServable(model, self._upstreams, status.version, definitions)
            with self._changed:
                self._servables.setdefault(model, {}).setdefault(status.version, servable)

    def _publish(self, model: str) -> None:
        with self._changed:
            here = [upstream for upstream in self._upstreams if not upstream.is_away]
            if not here:
                return
            statuses: dict[int, VersionStatus] = {}
            for upstream in here:
                for status in upstream.statuses.get(model, {}).values():
                    # AVAILABLE at one upstream outweighs other states.
                    if status.version not in statuses or status.state is State.AVAILABLE:
                        statuses[status.version] = status
            available = {
                version: servable
                for version, servable in self._servables.get(model, {}).items()
                if version in statuses and statuses[version].state is State.AVAILABLE
            }
            # A version that comes back may have other signatures.
            self._servables[model] = available
            self._catalog.set_statuses(model, list(statuses.values()))
            view = self._catalog.views.get(model)
            if available != dict(view.servables if view else {}):
                addresses = ", ".join(upstream.address for upstream in here)
                log.info("model %s: versions %s at %s", model, sorted(available), addresses)
                self._catalog.publish(model, available, {}, functools.partial(self._by_label, model))
                self._by_label.cache_clear()
            if not available:
                del self._servables[model]
            if not statuses and model not in self.current_names():
                self._models.discard(model)

    def _label(self, model: str, label: str) -> UpstreamServable:
        read = functools.partial(self._label_metadata, model, label)
        return UpstreamServable(model, self._upstreams, label=label, read_metadata=read)

    def _label_metadata(self, model: str, label: str) -> tuple[int, bytes]:
        error: ServingError | None = None
        for upstream in self._upstreams:
            try:
                return upstream.read_metadata(model, None, label, _ASK_TIMEOUT_S)
            except ServingError as refused:
                error = refused
        assert error is not None
        raise error


def _upstream(address: str, tls: TlsFiles | None, token: TokenFile | None) -> Upstream:
    scheme, separator, rest = address.rpartition("://")
    kind = load_class(UPSTREAMS, scheme, Upstream) if separator else TensorFlowUpstream  # type: ignore[type-abstract]
    return kind(rest, tls, token)
