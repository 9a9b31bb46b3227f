"""Operator that registers a blessed model and deploys it as champion or canary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset

from airflow_hops.airflow_internals.tasks import AirflowFailException
from airflow_hops.core.artifacts.properties import BlessingProperties
from airflow_hops.core.models.model_record import MODEL_NAME
from airflow_hops.operators.base import HopsOperator, skipped
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.runner.arguments import BadArgument, ModelName, Percent, Positive

if TYPE_CHECKING:
    from airflow.sdk import Context


def model_asset(model_name: str) -> Asset:
    """Returns the asset of a model's deployed versions."""
    return Asset(name=f"hops model {model_name}", uri=f"hops://_models/{model_name}", group="hops")


class DeployModelOperator(HopsOperator):
    """Deploys a blessed model; skips the task for others.

    The first model of a name becomes the champion and gets all the traffic. Later models are served beside the
    champion, as a canary with a share of the traffic, until a
    :class:`~airflow_hops.operators.rollout.RolloutOperator` promotes them or rolls them back.

    The DAG that first deploys a model owns its name, until a person names other owners on the model's page or by
    ``airflow hops models owners``. Other DAGs may neither deploy it nor decide on its serving.

    Each deployment is an event of the model's asset, ``hops model <model_name>``, which Airflow registers when it
    parses the DAG.

    Args:
        model: Output of the training task. (templated)
        model_name: Name of the model in MLflow's registry and on the server. (templated)
        evaluation: Output of the evaluation task; the task is skipped if it did not bless the model. It must have the
            same ``model_name``, and the champion must be the one that it compared the model with. (templated)
        ungated: Why the model is deployed without an evaluation; the artifact records it. One of ``evaluation`` and
            ``ungated`` must be given.
        infra_blessing: Output of the infra-validation task; the task is skipped if it did not bless the model.
            (templated)
        canary_percent: Share of the traffic that the canary gets, 1 to 100.
        available_timeout_s: Seconds for the server to load the version.
        allow_older: Whether a model that was registered before the champion may become a canary. By default it may not,
            so that clearing a task of an old run does not deploy its model again.
        allow_rolled_back: Whether a model that was rolled back may serve again. By default it may not, so that a cached
            training does not deploy it again with every run.
        lookup: Output of a task that lists the inputs which the server looks up by keys of requests, such as a training
            set of the feature store; an installed look-up takes it. None if requests hold all inputs. (templated)
        lookup_options: Options of that look-up.
    """

    entry: ClassVar[str] = "airflow_hops.ml.deploy.stage:run"
    output_kind = "deployment"
    param_arguments = (
        "model_name", "canary_percent", "available_timeout_s", "allow_older", "allow_rolled_back",
        "lookup_options", "ungated",
    )  # fmt: skip
    input_arguments = ("model", "evaluation", "infra_blessing", "lookup")
    template_fields: Sequence[str] = (*HopsOperator.template_fields, *input_arguments, "model_name")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)
    cacheable: ClassVar[bool] = False
    controls_server: ClassVar[bool] = True

    def __init__(
        self,
        *,
        model: Any,
        model_name: ModelName,
        evaluation: Any = None,
        ungated: str | None = None,
        infra_blessing: Any = None,
        canary_percent: Percent = 20,
        available_timeout_s: Positive = 120.0,
        allow_older: bool = False,
        allow_rolled_back: bool = False,
        lookup: Any = None,
        lookup_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.model_name = model_name
        self.evaluation = evaluation
        self.ungated = ungated
        self.infra_blessing = infra_blessing
        self.canary_percent = canary_percent
        self.available_timeout_s = available_timeout_s
        self.allow_older = allow_older
        self.allow_rolled_back = allow_rolled_back
        self.lookup = lookup
        self.lookup_options = lookup_options
        self.check_arguments(DeployModelOperator)
        if (evaluation is None) == (not ungated):
            present = "neither evaluation nor ungated is" if evaluation is None else "evaluation and ungated are"
            raise BadArgument(
                f"DeployModelOperator {self.task_id!r}: {present} given; expected one: evaluation, the output of "
                "EvaluateOperator, so that only a blessed model is served, or ungated, the reason to serve it without"
            )
        # A template is rendered only in a run.
        if isinstance(model_name, str) and MODEL_NAME.fullmatch(model_name):
            self.outlets = [*self.outlets, model_asset(model_name)]

    def execute(self, context: Context) -> Any:
        """Deploys the model and returns the deployment.

        Raises:
            AirflowSkipException: the evaluation or the infra-validation did not bless the model.
            AirflowFailException: the properties of one of them cannot be read.
        """
        for role in ("evaluation", "infra_blessing"):
            verdict = getattr(self, role)
            if isinstance(verdict, Mapping):
                try:
                    blessing = BlessingProperties.from_dict(verdict.get("properties") or {})
                except TypeError as error:
                    raise AirflowFailException(f"{role}: properties: {error}") from error
                if not blessing.blessed:
                    reasons = "; ".join(blessing.reasons or [str(blessing.more.get("error", "no reason given"))])
                    raise skipped(context["ti"], f"{role}: not blessed: {reasons}")
        return super().execute(context)
