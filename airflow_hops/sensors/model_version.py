"""Sensor that waits until a model server answers with a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_hops.airflow_internals.tasks import AirflowFailException, conf
from airflow_hops.core.errors import BadInput, HopsError, InvalidArgument
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.runner.arguments import ModelName, Version, check_arguments
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.triggers.model_version import ModelVersionTrigger, ready_version

if TYPE_CHECKING:
    from airflow.sdk import Context


# The triggerer reads these from the connection, since a trigger's arguments are stored in Airflow's database.
_SECRET_SERVICES = ("serving_token", "serving_prediction_token", "serving_storage_options")


class ModelVersionSensor(BaseSensorOperator):
    """Waits until a model server answers requests with a version; the XCom is the version's number.

    Until its ``timeout``, it also waits if the server is down, if loading the version failed, or if the label still
    refers to another version.

    Args:
        model_name: Model name. (templated)
        version: Version number; None for any. (templated)
        label: Label that must refer to the version. (templated)
        hops_conn_id: Connection of type ``hops``. (templated)
        deferrable: Whether to wait in the triggerer, without a worker slot; None for ``[operators]
            default_deferrable``.
    """

    template_fields: Sequence[str] = ("model_name", "version", "version_label", "hops_conn_id")

    def __init__(
        self,
        *,
        model_name: ModelName,
        version: Version | None = None,
        label: str | None = None,
        hops_conn_id: str = RuntimeHook.default_conn_name,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_arguments(ModelVersionSensor.__init__, locals(), {*self.template_fields, "label"})
        self.model_name = model_name
        self.version = version
        self.version_label = label  # Airflow's operators already have a ``label``
        self.hops_conn_id = hops_conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )

    def execute(self, context: Context) -> Any:
        """Waits in the worker, or defers to the triggerer."""
        try:
            services, version = self._services(), self._version()
            if not self.deferrable:
                return super().execute(context)
            ready = self._look(services, version)
        except BadInput as error:
            raise AirflowFailException(str(error)) from error
        if ready is not None:
            return ready
        services = {name: value for name, value in services.items() if name not in _SECRET_SERVICES}
        looks = (self.model_name, version, self.version_label, self.poke_interval)
        self.defer(
            trigger=ModelVersionTrigger(services, *looks, self.hops_conn_id),
            method_name="resume",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Polls the server once."""
        ready = self._look(self._services(), self._version())
        return PokeReturnValue(is_done=ready is not None, xcom_value=ready)

    def resume(self, context: Context, event: Mapping[str, Any]) -> int:
        """Returns the version that the trigger reports.

        Raises:
            AirflowFailException: the server refused to answer, which a retry cannot fix.
        """
        if "error" in event:
            raise AirflowFailException(event["error"])
        self.log.info("Model %s version %s is available", self.model_name, event["version"])
        return int(event["version"])

    def _look(self, services: Mapping[str, str], version: int | None) -> int | None:
        try:
            return ready_version(services, self.model_name, version, self.version_label)
        except BadInput:
            raise
        except HopsError as error:  # a server that is down may come back
            self.log.info("%s", error)
            return None

    def _services(self) -> Mapping[str, str]:
        services: dict[str, str] = ModelServerHook(self.hops_conn_id).services
        return services

    def _version(self) -> int | None:
        if self.version in (None, ""):
            return None
        if isinstance(self.version, bool) or not str(self.version).isdigit():
            raise InvalidArgument("version", self.version, "; expected a version's number")
        return int(str(self.version))
