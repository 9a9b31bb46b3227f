"""Trigger that waits until a rollout is due to compare its canary again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from airflow_hops.airflow_internals.triggers import BaseTrigger, TriggerEvent
from airflow_hops.core.errors import HopsError
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.hooks.model_server import trigger_services

_REQUEST_TIMEOUT_S = 5.0


class RolloutTrigger(BaseTrigger):
    """Fires when the time is up, the canary has received enough requests, or its server has restarted.

    It reads a few counts over HTTP. If the triggerer cannot reach the server, only the time counts. The trigger has no
    state, so another triggerer can take it over.

    Args:
        until: Latest time at which it fires, seconds since 1970.
        url: The server's ``/v1/stats``.
        requests: The server's count of the canary's requests at which the trigger fires earlier; None: only time
            counts.
        server_since: Start time of the server that this count belongs to.
        poll_s: Seconds between requests to the server.
        conn_id: Connection of type ``hops`` that has the token and the TLS files; None if the
            server requires neither.
    """

    def __init__(
        self,
        *,
        until: float,
        url: str,
        model_name: str,
        version: int,
        requests: int | None = None,
        server_since: float | None = None,
        poll_s: float = 1.0,
        conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.until, self.url, self.model_name, self.version = until, url, model_name, version
        self.requests, self.server_since, self.poll_s, self.conn_id = requests, server_since, poll_s, conn_id

    def serialize(self) -> tuple[str, dict[str, object]]:
        """Returns the path of this class, and its arguments."""
        names = ("until", "url", "model_name", "version", "requests", "server_since", "poll_s", "conn_id")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event with the reason why it fired."""
        yield TriggerEvent({"why": await self.wait()})

    async def wait(self) -> str:
        """Returns why the next comparison is due: ``time``, ``requests`` or ``server``."""
        services = await trigger_services(self.conn_id) if self.conn_id and self.requests is not None else {}
        while (left_s := self.until - time.time()) > 0:
            why = await asyncio.to_thread(self._due, services) if self.requests is not None else ""
            if why:
                return why
            await asyncio.sleep(min(self.poll_s, left_s))
        return "time"

    def _due(self, services: Mapping[str, str]) -> str:
        place = urlsplit(self.url)
        try:
            server = replace(
                ServerAddress.of(services),
                host=place.hostname or "",
                rest_port=place.port,
                rest_tls=place.scheme == "https",
                timeout_s=_REQUEST_TIMEOUT_S,
            )
            answer = server.rest_client().stats()
            versions = answer["models"].get(self.model_name, {}).get("versions", {})
            asked = versions.get(str(self.version), {}).get("requests", 0)
            due = self.requests is not None and asked >= self.requests
        except (HopsError, ValueError, LookupError, TypeError, AttributeError):
            return ""  # no server, a truncated response, or another program
        if self.server_since is not None and answer.get("since") != self.server_since:
            return "server"
        return "requests" if due else ""
