"""Trains with a notebook's code and Horovod."""

from pathlib import Path

from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.experiments.hops import experiment
from airflow_hops.extensions.experiments.ml.project import Project
from airflow_hops.extensions.experiments.ml.record import read_file
from airflow_hops.ml.step.script import run_notebook
from airflow_hops.ml.step.source import read_notebook


def launch(spark: object, notebook: str) -> str:
    """Runs the code of a notebook on every rank; returns the folder of the experiment, which includes the notebook.

    Args:
        spark: A ``SparkSession``, or None.
        notebook: Path of the notebook in the project, or beside the DAG file.

    Raises:
        BadInput: the notebook does not exist, or has no code that runs without IPython.
        HopsError: a rank failed.
    """
    name, content = Path(notebook).name, read_file(Project.current(), notebook)
    with temporary_folder("step", "notebook") as folder:
        (folder / name).write_bytes(content)
        read_notebook(folder / name)

    def train() -> None:
        with temporary_folder("step", "notebook") as folder:
            (folder / name).write_bytes(content)
            run_notebook(folder / name)

    return experiment.allreduce(train, name=Path(name).stem, versioned_resources=[notebook], spark=spark)[0]
