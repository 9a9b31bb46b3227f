"""The functions of hops-util-py that this package has: on the import path of steps and notebooks alone."""

from airflow_hops.extensions.experiments import hops as hops_api

__path__ = hops_api.__path__
