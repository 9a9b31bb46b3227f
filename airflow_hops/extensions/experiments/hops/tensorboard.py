"""The log folder of an experiment's function."""

from airflow_hops.extensions.experiments.hops import absent
from airflow_hops.ml.training.context import current_context

__getattr__ = absent.calls_of("tensorboard")


def logdir() -> str:
    """Returns this call's folder for event files, checkpoints and models, with a trailing slash.

    Its contents are saved with the experiment.

    Raises:
        HopsError: no function of an experiment or a training runs in this process.
    """
    return f"{current_context().tensorboard_dir}/"
