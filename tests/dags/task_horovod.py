"""Trainings whose functions stand in the DAG file, of one process too, and scripts."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_hops.operators import HorovodTrainOperator

with DAG("task_horovod", schedule=None, render_template_as_native_obj=True):

    @task.horovod(np=2)
    def train(context, examples, lr: float, epochs: int = 1):
        import keras

        from airflow_hops.hops import DistributedOptimizer

        # One of the transform's two outputs: the other is not read.
        numeric = keras.Input((2,), name="numeric")
        model = keras.Model({"numeric": numeric}, keras.layers.Dense(1, activation="sigmoid")(numeric))
        undefined = keras.metrics.MeanMetricWrapper(lambda labels, found: found * float("nan"), name="undefined")
        model.compile(DistributedOptimizer(keras.optimizers.Adam(lr)), "binary_crossentropy", metrics=[undefined])
        context.fit(model, epochs=epochs, batch_size=100)
        return model

    @task.horovod(np=2)
    def add_up(context, first: int) -> dict:
        return {"sum": first + context.rank, "size": context.size}

    @task.train(runtime="boosted")
    def boost(context, examples, leaves: int):
        import lightgbm

        rows, held_out = context.table("train"), context.table("eval")
        learned = rows.dataset()
        values = {"objective": "binary", "metric": "auc", "num_leaves": leaves, "verbose": -1, "seed": context.seed}
        return lightgbm.train(values, learned, 10, valid_sets=[held_out.dataset(learned)])

    train("{{ dag_run.conf['examples'] }}", lr=0.05)
    boost("{{ dag_run.conf['examples'] }}", leaves=7)
    add_up(10)

    HorovodTrainOperator(
        task_id="script",
        script="horovod_script.py",
        script_args=["--lr", "{{ dag_run.conf['lr'] }}"],
        examples="{{ dag_run.conf['examples'] }}",
        env={"TF_USE_LEGACY_KERAS": "1"},
        durable=False,
    )
