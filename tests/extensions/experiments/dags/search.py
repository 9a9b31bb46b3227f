"""Searches: an operator, and a function of the DAG file."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_hops.extensions.experiments import IntUniform, SearchOperator

with DAG("search", schedule=None, render_template_as_native_obj=True):

    @task.search(space={"leaf": [200, 3], "depth": [1, 4]}, metric="eval_accuracy", direction="maximize",
                 sampler="grid", trials=None, parallel=2)  # fmt: skip
    def trees(context, examples, depth: int, leaf: int, criterion: str = "gini"):
        from sklearn.tree import DecisionTreeClassifier

        rows, held_out = context.table("train"), context.table("eval")
        model = DecisionTreeClassifier(criterion=criterion, min_samples_leaf=leaf, max_depth=depth, random_state=0)
        model.fit(rows.matrix(), rows.labels)
        context.report(1, eval_accuracy=model.score(held_out.matrix(), held_out.labels))
        return model

    trees("{{ dag_run.conf['examples'] }}", criterion="entropy")

    SearchOperator(
        task_id="numbers",
        train="search_numbers:near",
        space={"k": IntUniform(0, 20)},
        metric="distance",
        direction="minimize",
        params={"to": 7},
        trials=8,
        sampler="random",
        seed=3,
        durable=False,
    )

with DAG("search_spark", schedule=None, render_template_as_native_obj=True):
    SearchOperator(
        task_id="search",
        train="search_numbers:fail_if_far",
        space={"k": [90, 1, 30]},
        metric="distance",
        direction="minimize",
        params={"to": 0},
        sampler="grid",
        trials=None,
        study="shared",
        hops_conn_id="hops_spark",
        parallel=2,
        durable=False,
    )
