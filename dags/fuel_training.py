"""How many miles does this car go on a gallon?

A regression, by LightGBM in an environment of its own, behind the transform graph: from raw cars to a canary that is
promoted or rolled back. It runs when somebody triggers it, and when ``fuel_monitoring`` finds that the cars that people
ask about have changed, as they did after the oil crisis. Make the environment first::

    airflow hops runtime create --name boosted --with lightgbm
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, Param, task

from airflow_hops import (
    DeployModelOperator,
    EvaluateOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    RolloutOperator,
    SchemaOperator,
    StatisticsOperator,
    TransformOperator,
    ValidateExamplesOperator,
)
from fuel.raw import cars_file

with DAG(
    "fuel_training",
    schedule=[Asset("fuel_drifted")],
    params={
        "window_start": Param("1970-01-01", type="string", description="The oldest cars to learn from"),
        "window_end": Param("1976-01-01", type="string", description="The year after the newest; a drift moves it"),
    },
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["hops", "fuel"],
):
    raw = IngestOperator(
        task_id="ingest",
        sources={"cars": {"uri": task(cars_file)(), "time_column": "Year"}},
        window_start="{{ params.window_start }}",
        window_end="{{ params.window_end }}",
    )
    examples = PrepareOperator(
        task_id="prepare",
        prepare="fuel.prepare:prepare",
        engine="spark",
        tables=raw.output,
        label="miles_per_gallon",
        time="built_at",
        problem="regression",
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    validation = ValidateExamplesOperator(
        task_id="validate", statistics=statistics.output, schema=schema.output, model_name="fuel"
    )
    transformed = TransformOperator(
        task_id="transform",
        preprocess="fuel.features:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
        extra_inputs=["built_at"],  # fuel_monitoring wants to know of which years the cars are
    )

    @task.train(runtime="boosted")
    def train(context, examples, rounds: int = 100):
        """A hundred small trees: there are few cars."""
        import lightgbm

        rows = context.table("train")
        given = {"objective": "regression", "num_leaves": 8, "min_data_in_leaf": 10, "learning_rate": 0.05}
        return lightgbm.train({**given, "seed": context.seed, "num_threads": 1}, rows.dataset(), rounds)

    model = train(transformed.output)
    evaluation = EvaluateOperator(
        task_id="evaluate",
        model=model,
        examples=examples.output,
        model_name="fuel",
        slices=("origin",),
    )
    infra = InfraValidateOperator(task_id="infra_validate", model=model, examples=examples.output)
    deployment = DeployModelOperator(
        task_id="deploy",
        model=model,
        model_name="fuel",
        evaluation=evaluation.output,
        infra_blessing=infra.output,
        canary_percent=50,
    )
    RolloutOperator(
        task_id="rollout",
        deployment=deployment.output,
        steps=(50, 100),
        min_requests=100,
        timeout=timedelta(minutes=10),
    )

    validation >> transformed
