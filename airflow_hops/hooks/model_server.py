"""Client of the model server that a ``hops`` connection names, over gRPC and REST."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from asgiref.sync import sync_to_async

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api.answers import ModelMetadata, ModelVersion, PredictResult, TrafficSplit
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.serving_api.server_kinds import BUNDLED, kind_name, model_server_kinds
from airflow_hops.core.steps.protocol import Line, StepSpec
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.settings import CONN_TYPE, DEFAULT_CONN_ID, read_settings

if TYPE_CHECKING:
    from airflow_hops.core.serving_api.client import ModelServerClient

log = logging.getLogger(__name__)


class ModelServerHook(BaseHook):
    """Client of a model server.

    Methods raise :class:`~airflow_hops.core.errors.BadInput` for errors that a retry cannot fix, and
    :class:`~airflow_hops.core.errors.HopsError` for others.

    Example::

        hook = ModelServerHook("hops_default")
        hook.predict("flights", {"carrier": ["AA"], "distance": [733.0]}).outputs["probability"]
        hook.set_traffic("flights", {1: 90, 2: 10})

    Args:
        hops_conn_id: Connection of type ``hops``.

    Example:
        >>> from airflow_hops import ModelServerHook
        >>> ModelServerHook.conn_type
        'hops'
    """

    conn_name_attr = "hops_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONN_TYPE
    hook_name = "Hops"

    def __init__(self, hops_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hops_conn_id = hops_conn_id

    @cached_property
    def services(self) -> dict[str, str]:
        """Returns the ``serving_*`` entries of a step's services. Raises BadInput if the connection cannot be used."""
        services = read_settings(self.hops_conn_id).services
        return {name: value for name, value in services.items() if name.startswith("serving_")}

    @property
    def address(self) -> ServerAddress:
        """Returns the address of the server. Raises BadInput if a field of the connection is invalid."""
        return ServerAddress.of(self.services)

    def predict(
        self,
        model_name: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str | None = None,
        request_id: str | None = None,
    ) -> PredictResult:
        """Requests a prediction.

        Args:
            model_name: Model name.
            inputs: Array-likes of shape ``[batch, ...]`` by input.
            version: Version to use; None leaves the choice to the label, the traffic split or the latest.
            label: Label to use if ``version`` is None.
            signature: Signature name; None for the default.
            request_id: Sent as ``x-request-id``.

        Returns:
            The outputs as arrays, and the version that computed them.
        """
        with self._client() as client:
            return client.predict(
                model_name, inputs, version=version, label=label, signature=signature, request_id=request_id
            )

    def status(self, model_name: str, version: int | None = None) -> list[ModelVersion]:
        """Returns the states of a model's versions, or of one version; empty if the server has none."""
        with self._client() as client:
            return client.status(model_name, version)

    def metadata(self, model_name: str, *, version: int | None = None, label: str | None = None) -> ModelMetadata:
        """Returns a version's signatures."""
        with self._client() as client:
            return client.metadata(model_name, version=version, label=label)

    def get_traffic(self, model_name: str) -> TrafficSplit:
        """Returns the bundled server's traffic split of a model, both as set and as in effect."""
        with self._client() as client:
            return client.traffic(model_name)

    def set_traffic(self, model_name: str, percents: Mapping[int, int] | None) -> TrafficSplit:
        """Sets the bundled server's traffic split of a model; None removes it.

        The shares of a model that :class:`~airflow_hops.operators.deploy.DeployModelOperator` deployed are in its
        record: set those with :class:`~airflow_hops.operators.serving.SetTrafficOperator`.
        """
        from airflow_hops.core.serving_api.traffic_config import check_split

        if self.address.has_process and not self.address.is_bundled:
            raise BadInput(
                f"connection {self.hops_conn_id!r}: {self.address} is a {self.address.kind}, which does "
                "not split traffic; put the bundled server in front of it (airflow hops serve -- "
                f"--upstream={self.address}), and name that one"
            )
        with self._client() as client:
            if percents is not None:
                check_split(percents, "percents")
            return client.set_traffic(model_name, percents)

    def stats(self) -> dict[str, Any]:
        """Returns the server's counts by model and version since it started (``GET /v1/stats``)."""
        return self.address.rest_client().stats()

    def test_connection(self) -> tuple[bool, str]:
        """Returns whether the server answers, and the known models and versions, or the error."""
        try:
            if not self.address.has_process:
                return True, f"Models of the kind {self.address.kind!r} score tables; no server runs"
            with self._client() as client:
                models = {name: client.status(name) for name in self._model_names()}
                if not models:
                    client.status("any")
        except HopsError as error:
            return False, str(error)
        states = (
            f"{name} ({', '.join(f'version {v.version} {v.state}' for v in versions) or 'no version'})"
            for name, versions in models.items()
        )
        what = "Model server" if self.address.kind == BUNDLED else self.address.kind
        return True, f"{what} {self.address} answers; models: {', '.join(states) or 'none known'}"

    def _model_names(self) -> list[str]:
        """Returns the models in the bundled server's counts and in the config file; servers do not list models."""
        from airflow_hops.core.serving_api.config import read_config

        names: list[str] = []
        if self.address.is_bundled and self.address.rest_port is not None:
            names += self.stats().get("models", {})
        path = Path(self.services.get("serving_config_file") or "/")
        if path.is_file():
            names += [model.name for model in read_config(path).model_config_list.config]
        return sorted(set(names))

    @contextlib.contextmanager
    def _client(self) -> Iterator[ModelServerClient]:
        """Opens a client; values that it cannot send raise BadInput."""
        try:
            with self.address.client() as client:
                yield client
        except (TypeError, ValueError) as error:  # an input that does not fit the signature's dtype
            raise BadInput(str(error)) from error


def control_services(hops_conn_id: str) -> dict[str, str]:
    """Returns the server kind's additions to a step that changes the served models, such as credentials."""
    services = ModelServerHook(hops_conn_id).services
    further = model_server_kinds()[kind_name(services)].services
    return dict(resolve_name(further)(services)) if further else {}


def run_decision(
    hook: RuntimeHook, function: str, producer: Producer, on_line: Callable[[Line], None], **params: object
) -> dict[str, Any]:
    """Runs a step of ``airflow_hops/ml/deploy/traffic.py``, a person's decision on a served model.

    Returns:
        The XCom of :class:`~airflow_hops.operators.serving.ServingOperator`.

    Raises:
        StepFailed: the decision is impossible, or a service does not answer.
    """
    spec = StepSpec(
        step=function,
        entry=f"airflow_hops.ml.deploy.traffic:{function}",
        params=params,
        producer=producer,
        services=control_services(hook.hops_conn_id),
    )
    outcome: dict[str, Any] = hook.run(spec, cache=False, on_line=on_line).value
    return outcome


async def trigger_services(conn_id: str) -> dict[str, str]:
    """Returns the services for a trigger, which is stored without tokens; empty if the connection cannot be read."""
    try:
        services: dict[str, str] = await sync_to_async(lambda: ModelServerHook(conn_id).services)()
        return services
    except HopsError as error:
        log.warning("%s; the model server is called without a token", error)
        return {}
