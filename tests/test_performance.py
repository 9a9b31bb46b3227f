"""Options of the operator of the performance stage."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.performance import PerformanceOptions
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.core.sources.sources import Source
from airflow_hops.operators import PerformanceOperator, RolloutOperator, retraining_loop
from airflow_hops.runner.retraining import Monitor


def test_labels_come_from_files_an_artifact_or_feedback() -> None:
    artifact = {"uri": "file:///store/labels/snapshot", "kind": "snapshot", "fingerprint": "0" * 64}

    def told(labels: Any, **arguments: Any) -> tuple[PerformanceOptions, Any]:
        operator = PerformanceOperator(task_id="performance", model_name="flights", labels=labels, **arguments)
        return PerformanceOptions(**operator.step_params({})), operator.step_inputs()["labels"]

    for labels in ("s3://raw/labels.csv", Source("s3://raw/labels.csv"), {"uri": "s3://raw/labels.csv"}):
        options, values = told(labels, window=timedelta(days=14), ages=[timedelta(hours=6)])
        assert options.source is not None and options.source["uri"] == "s3://raw/labels.csv" and values is None
        assert (options.window_s, options.period_s, list(options.ages_s)) == (14 * 86_400, 86_400, [6 * 3600])
    assert told(None)[0].source is None and told(None)[1] is None
    options, values = told(artifact, table="arrivals")
    assert options.source is None and values == artifact and options.table == "arrivals"
    skipped: Any = PerformanceOperator(task_id="performance", model_name="flights", labels=artifact)
    skipped.labels = None  # as an output of a task that was skipped is rendered
    with pytest.raises(BadInput, match="labels is the output of a task without one"):
        skipped.build_spec(None, {})


def test_loop_measures_before_its_decision() -> None:
    policy = RetrainingPolicy(when=Performance("auc", drop=0.02))
    arguments = {"labels": "s3://raw/labels.csv", "keys": ["flight"]}
    asset = Asset("measured_and_retrained")
    dag = retraining_loop("flights", policy=policy, asset=asset, schedule=None, performance=arguments)
    request = dag.get_task("request_retraining")
    assert request.upstream_task_ids == {"skew", "performance"}
    assert dag.get_task("performance").step_params({})["model_name"] == "flights"
    of_another = {"uri": "file:///p", "kind": "performance", "fingerprint": "f", "properties": {"model_name": "trains"}}
    assert request.trigger_rule == "all_done_min_one_success"  # a failed measurement does not end the other conditions
    compared = SkewProperties(reference=SkewReference(model="flights")).to_dict()
    report: Any = Artifact.from_dict({"uri": "file:///s", "kind": "skew", "fingerprint": "f", "properties": compared})
    measured = Artifact.from_dict(of_another)
    store: Any = None  # asked only after that
    context: Any = None
    with pytest.raises(BadInput, match="'performance' of model 'trains'; expected performance of model 'flights'"):
        Monitor(context, Producer("d", "r", "t"), store, policy, asset.name, report, measured, True).situation(
            None, None
        )


def test_rollout_reads_labels_of_a_table() -> None:
    def params(labels: Any, **arguments: Any) -> dict[str, Any]:
        return RolloutOperator(task_id="rollout", deployment=None, labels=labels, **arguments).step_params({})

    by_key = {"source": Source("s3://crm/churned.csv"), "keys": ["customer"], "label_time": "at"}
    taken = params({**by_key, "horizon": timedelta(days=30), "label_delay": timedelta(days=2)})
    options = PerformanceOptions(**taken["labels"])
    assert options.source is not None and options.source["uri"] == "s3://crm/churned.csv"
    assert (options.horizon_s, options.label_delay_s, taken["limits"]["wait_for_labels"]) == (2592e3, 172_800, True)
    by_id = params({"source": "s3://crm/churned.csv"}, limits={"wait_for_labels": False})
    assert (by_id["labels"]["keys"], by_id["limits"]["wait_for_labels"]) == (["request_id", "row"], False)
    assert params(None)["labels"] is None and not params(None)["limits"]["wait_for_labels"]
    for labels, message in (
        (by_key, r"labels\['keys'\] is \['customer'\], which may name several predictions; give both"),
        ({"source": "s3://a.csv", "horizon": timedelta(days=1)}, "give both labels\\['label_time'\\]"),
        ({**by_key, "horison": timedelta(days=1)}, "horison"),
        ({"keys": ["customer"]}, "source"),
    ):
        with pytest.raises((BadInput, ValueError), match=message):
            params(labels)
