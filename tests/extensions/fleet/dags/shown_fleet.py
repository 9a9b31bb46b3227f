"""A fleet of shops that is served, and the loop of its segments that drift: for its page."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_hops.extensions.fleet import (
    FleetSkewOperator,
    SegmentSource,
    SelectSegmentsOperator,
    TrainFleetOperator,
)
from airflow_hops.operators import DeployModelOperator


def train(task_id: str, **arguments: object) -> TrainFleetOperator:
    source = SegmentSource("{{ params.raw }}", label="sales", key="row", problem="regression")
    options = {
        "segment": "shop",
        "groups": ["region"],
        "look_alikes": "keep",
        "max_failed": 0.1,
        "model": "fleet_code:ridge",
    }
    return TrainFleetOperator(task_id=task_id, source=source, model_name="shown_shops", **options, **arguments)  # type: ignore[arg-type]


with DAG("shown_fleet", schedule=None, params={"raw": "", "first": "train"}):

    @task.branch
    def begin(params: dict[str, str] | None = None) -> str:
        assert params is not None
        return params["first"]

    watch = FleetSkewOperator(task_id="watch", model_name="shown_shops", false_discoveries=1e-6)
    first = train("train")
    begin() >> [first, watch]
    DeployModelOperator(task_id="deploy", model=first.output, model_name="shown_shops", ungated="the first fleet")
    again = train("again", skew=watch.output)
    chosen = SelectSegmentsOperator(task_id="select", model_name="shown_shops", model=again.output)
    DeployModelOperator(
        task_id="try",
        model=chosen.output,
        model_name="shown_shops",
        canary_percent=20,
        ungated="only segments that drifted have other models",
    )
