"""The older name of :func:`airflow_hops.extensions.experiments.hops.experiment.launch`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_hops.extensions.experiments.hops import experiment


def launch(spark: object, map_fun: Callable[..., Any], args_dict: Mapping[str, Sequence[object]] | None = None) -> str:
    """Calls a function once, or for each combination of arguments; returns the experiment's folder in the store.

    Raises:
        BadInput: as :func:`airflow_hops.extensions.experiments.hops.experiment.launch`.
        HopsError: a call failed.
    """
    return experiment.launch(map_fun, args_dict, spark=spark)[0]
