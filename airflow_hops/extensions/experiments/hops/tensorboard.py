"""The log folder of an experiment's function."""

from airflow_hops.ml.training.context import current_context


def logdir() -> str:
    """Returns this call's folder for event files, checkpoints and models; its contents are saved with the experiment.

    Raises:
        HopsError: no function of an experiment or a training runs in this process.
    """
    return str(current_context().tensorboard_dir)
