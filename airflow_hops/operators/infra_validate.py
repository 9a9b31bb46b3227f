"""Operator that checks in a throwaway server that a model can serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK, MODELS_LINK
from airflow_hops.runner.arguments import Count


class InfraValidateOperator(HopsOperator):
    """Loads an exported model in a throwaway model server and sends it real requests, over gRPC and REST.

    Answers must be valid predictions, and equal to those of the model outside the server. The artifact
    ``infra_blessing`` holds ``infra_validation.json``. If the model does not serve, the task fails without an artifact.

    Args:
        model: The output of the training task. (templated)
        examples: The output of ``PrepareOperator``, whose rows become requests. (templated)
        requests: Number of rows to send, one by one and in one batch, over each protocol.
        split: Split of these rows; None for the last. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.ml.infra_validate:run"
    output_kind = "infra_blessing"
    param_arguments = ("requests", "split")
    input_arguments = ("model", "examples")
    template_fields: Sequence[str] = (*HopsOperator.template_fields, "model", "examples", "split")
    operator_extra_links = (MODELS_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        model: Any,
        examples: Any,
        requests: Count = 20,
        split: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.examples = examples
        self.requests = requests
        self.split = split
        self.check_arguments(InfraValidateOperator)
