"""What is to be seen in this picture: a shirt, a bag, an ankle boot?

70,000 pictures, from IDX files to a served classifier: prepared on Spark, learnt on two Horovod ranks, judged on 10,000
pictures that were never seen, and deployed.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_hops import DeployModelOperator, EvaluateOperator, HorovodTrainOperator, InfraValidateOperator
from airflow_hops.extensions.images import ImageSource, PrepareImagesOperator
from fashion.raw import CLASSES, FILES, images_folder

# What is reached with all the pictures; with a part of them it is less.
MINIMUM_ACCURACY = float(os.environ.get("HOPS_FASHION_MINIMUM", "0.88"))

with DAG(
    "fashion_mnist",
    schedule=None,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["hops", "images"],
):

    @task
    def find() -> str:
        """The folder of the files; where they are not, the error says how to get them."""
        try:
            return str(images_folder())
        except FileNotFoundError as error:
            raise AirflowFailException(str(error)) from error

    folder = "{{ ti.xcom_pull(task_ids='find') }}"
    images = PrepareImagesOperator(
        task_id="images",
        sources={
            split: ImageSource(f"{folder}/{images}", labels=f"{folder}/{labels}")
            for split, (images, labels) in FILES.items()
        },
        height=28,
        width=28,
        channels=1,
        classes=CLASSES,
    )
    model = HorovodTrainOperator(
        task_id="train", train="fashion.model:train", examples=images.output, params={"epochs": 4}, np=2
    )
    evaluation = EvaluateOperator(
        task_id="evaluate",
        model=model.output,
        examples=images.output,
        model_name="fashion",
        splits=("test",),
        metric="accuracy",
        minimum={"accuracy": MINIMUM_ACCURACY},
    )
    infra = InfraValidateOperator(task_id="infra_validate", model=model.output, examples=images.output)
    deployment = DeployModelOperator(
        task_id="deploy",
        model=model.output,
        model_name="fashion",
        evaluation=evaluation.output,
        infra_blessing=infra.output,
        canary_percent=20,
    )

    find() >> images
