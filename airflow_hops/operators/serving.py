"""Operators that change the serving versions: shares, promotion, rollback, undeployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.errors import InvalidArgument
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.runner.arguments import Count, ModelName, Positive, Version, WholeNumber

if TYPE_CHECKING:
    from airflow.sdk import Context


class ServingOperator(HopsOperator):
    """Arguments of all operators that change the serving versions.

    The decision is written to the model's record, with the DAG, the run, the task and the reason, before it is
    applied; a retry does not decide again. The XCom is a mapping: ``model_name``, ``champion`` and ``challenger``
    (versions or None), ``traffic`` (version to percent), ``served`` (versions that the server should serve), and
    ``changed``, which is False if an earlier try had already decided.

    Args:
        model_name: Name of the model in MLflow's registry and on the server. (templated)
        reason: Reason for the record. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    cacheable: ClassVar[bool] = False
    controls_server: ClassVar[bool] = True
    param_arguments: ClassVar[Sequence[str]] = ("model_name",)
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "model_name", "reason")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)

    def __init__(self, *, model_name: ModelName, reason: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.reason = reason
        self.check_arguments(ServingOperator)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the keyword arguments of the entry function."""
        params, ti = super().step_params(context), context["ti"]
        for name in {"version", "to_version"} & params.keys():
            params[name] = _version(name, params[name])
        return {**params, "reason": self.reason or f"asked for by {ti.dag_id}.{ti.task_id}"}


class SetTrafficOperator(ServingOperator):
    """Sets the shares of champion and challenger.

    Args:
        percents: Version to percent, whole numbers that sum to 100. (templated)
        **kwargs: As :class:`ServingOperator`.
    """

    entry: ClassVar[str] = "airflow_hops.ml.deploy.traffic:set_traffic"
    template_fields: Sequence[str] = (*ServingOperator.template_fields, "percents")

    def __init__(self, *, percents: Mapping[Version, WholeNumber], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.percents = percents
        self.check_arguments(SetTrafficOperator)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the keyword arguments of the entry function."""
        if not isinstance(self.percents, Mapping):
            raise InvalidArgument("percents", self.percents, "; expected a mapping of version to percent")
        return {**super().step_params(context), "percents": {str(v): share for v, share in self.percents.items()}}


class LoadingOperator(ServingOperator):
    """Arguments of the operators that make the server load a version.

    Args:
        keep_versions: Number of versions that stay loaded, including the champion.
        available_timeout_s: Seconds for the server to load the version.
        **kwargs: As :class:`ServingOperator`.
    """

    param_arguments: ClassVar[Sequence[str]] = ("model_name", "keep_versions", "available_timeout_s")

    def __init__(self, *, keep_versions: Count = 2, available_timeout_s: Positive = 120.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep_versions = keep_versions
        self.available_timeout_s = available_timeout_s
        self.check_arguments(LoadingOperator)


class PromoteModelOperator(LoadingOperator):
    """Gives a version all the traffic, and makes it the champion.

    Args:
        version: The version's number; None for the challenger. If it is not loaded, it is loaded first. (templated)
        allow_rolled_back: Whether it may be a model that was rolled back under another version number.
        **kwargs: As :class:`LoadingOperator`.
    """

    entry: ClassVar[str] = "airflow_hops.ml.deploy.traffic:promote"
    param_arguments = (*LoadingOperator.param_arguments, "version", "allow_rolled_back")
    template_fields: Sequence[str] = (*LoadingOperator.template_fields, "version")

    def __init__(self, *, version: Version | None = None, allow_rolled_back: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.allow_rolled_back = allow_rolled_back
        self.check_arguments(PromoteModelOperator)


class RollbackModelOperator(LoadingOperator):
    """Undoes the last change: removes the canary, or without a canary restores the former champion.

    Args:
        to_version: Version to go back to, which is loaded again if necessary; the champion's number ends the canary.
            None undoes the last change. (templated)
        **kwargs: As :class:`LoadingOperator`.
    """

    entry: ClassVar[str] = "airflow_hops.ml.deploy.traffic:roll_back"
    param_arguments = (*LoadingOperator.param_arguments, "to_version")
    template_fields: Sequence[str] = (*LoadingOperator.template_fields, "to_version")

    def __init__(self, *, to_version: Version | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.to_version = to_version
        self.check_arguments(RollbackModelOperator)


class UndeployModelOperator(ServingOperator):
    """Unloads a version, or a whole model. The folders stay, so that they can be loaded again.

    Args:
        version: The version's number; None for the whole model. (templated)
        force: Whether to unload even the champion, and with it the model; not while a canary is undecided.
        **kwargs: As :class:`ServingOperator`.
    """

    entry: ClassVar[str] = "airflow_hops.ml.deploy.traffic:undeploy"
    param_arguments = ("model_name", "version", "force")
    template_fields: Sequence[str] = (*ServingOperator.template_fields, "version")

    def __init__(self, *, version: Version | None = None, force: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.force = force
        self.check_arguments(UndeployModelOperator)


def _version(name: str, value: Any) -> int | None:
    """Returns the version number, which a template renders as text; None if empty.

    Raises:
        BadInput: the value is not a version number.
    """
    if value in (None, "", "None"):
        return None
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise InvalidArgument(name, value, "; expected a version's number, 1 or more")
    return int(value)
