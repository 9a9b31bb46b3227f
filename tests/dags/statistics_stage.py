"""DAGs of the statistics stage: of examples, of files, with options as JSON and by a function, on Spark."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_hops.operators import SchemaOperator, StatisticsOperator

EXAMPLES = "{{ dag_run.conf['examples'] }}"
SOURCE = "{{ dag_run.conf['source'] }}"

with DAG("statistics", schedule=None, render_template_as_native_obj=True):
    sliced = StatisticsOperator(
        task_id="sliced",
        examples=EXAMPLES,
        splits=["train"],
        options={"slice_by": ["origin"], "num_rank_histogram_buckets": 5},
    )
    SchemaOperator(task_id="schema", statistics=sliced.output)
    StatisticsOperator(task_id="files", source=SOURCE, key="id", label="late", processes=1)

    @task.hops_statistics(examples=EXAMPLES, splits=["eval"])
    def by_function(threshold: int):
        """Slices that JSON cannot say, by a module beside the DAG file."""
        import tensorflow_data_validation as tfdv
        from statistics_slices import split_at

        def by_distance(batch):
            return split_at(batch, "distance", threshold)

        return tfdv.StatsOptions(experimental_slice_functions=[by_distance])

    by_function(1000)

with DAG("statistics_bad", schedule=None, render_template_as_native_obj=True):
    StatisticsOperator(task_id="unknown_option", source=SOURCE, options={"slice": ["origin"]}, retries=2)
    StatisticsOperator(task_id="no_file", source=SOURCE + "/nowhere/*.csv", retries=2)
    StatisticsOperator(task_id="corrupt", source="{{ dag_run.conf['damaged'] }}", retries=2)

    @task.hops_statistics(source=SOURCE, retries=2)
    def no_options():
        return {"slice_by": ["origin"]}

    no_options()
