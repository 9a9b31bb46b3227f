"""Trigger that waits until a model server answers with a version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from airflow_hops.airflow_internals.triggers import BaseTrigger, TriggerEvent
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.hooks.model_server import trigger_services


class ModelVersionTrigger(BaseTrigger):
    """Fires once a version is available, or when the server refuses to answer.

    Args:
        services: Address of the server: the ``serving_*`` entries of a step's services.
        version: Version number; None for any.
        label: Label that must refer to the version.
        poll_s: Seconds between polls of the server.
        conn_id: Connection of type ``hops`` that has the token; None if the server requires none.

    Example:
        >>> from airflow_hops import ModelVersionTrigger
        >>> address = {"serving_host": "serving.example", "serving_port": "8500"}
        >>> trigger = ModelVersionTrigger(address, "flights", version=None, label="champion", poll_s=5.0, conn_id=None)
        >>> trigger.serialize()[1]["label"]
        'champion'
    """

    def __init__(
        self,
        services: Mapping[str, str],
        model_name: str,
        version: int | None,
        label: str | None,
        poll_s: float,
        conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.services, self.model_name, self.version = dict(services), model_name, version
        self.label, self.poll_s, self.conn_id = label, poll_s, conn_id

    def serialize(self) -> tuple[str, dict[str, object]]:
        """Returns the path of this class, and its arguments."""
        names = ("services", "model_name", "version", "label", "poll_s", "conn_id")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Polls until there is an event: ``{"version": N}``, or ``{"error": text}``."""
        services = {**self.services, **(await trigger_services(self.conn_id) if self.conn_id else {})}
        while True:
            try:
                ready = await asyncio.to_thread(ready_version, services, self.model_name, self.version, self.label)
            except BadInput as error:
                yield TriggerEvent({"error": str(error)})
                return
            except HopsError as error:  # a server that is down may come back
                self.log.info("%s", error)
                ready = None
            if ready is not None:
                yield TriggerEvent({"version": ready})
                return
            await asyncio.sleep(self.poll_s)


def ready_version(services: Mapping[str, str], model_name: str, version: int | None, label: str | None) -> int | None:
    """Returns the available version with the requested number and label; None if there is none yet.

    Raises:
        BadInput: a field of the connection is invalid, no server runs for its kind, or the server refuses to answer.
        HopsError: the server does not answer.
    """
    address = ServerAddress.of(services)
    if not address.has_process:
        raise BadInput(
            f"the connection's kind is {address.kind}, whose models score tables: no server runs, and a version serves "
            "once its deployment has ended; schedule the DAG by the model's asset"
        )
    with address.client() as client:
        try:
            states = client.status(model_name, version)
            ready = [state.version for state in states if state.state == "AVAILABLE"]
            if not ready or label is None:
                return max(ready, default=None)
            labelled = client.metadata(model_name, label=label).version
            return labelled if labelled in ready else None
        except ModelServerError as error:
            # TensorFlow Serving reports a label that does not exist yet as an invalid argument.
            if error.code.name in ("NOT_FOUND", "INVALID_ARGUMENT"):
                return None
            raise
