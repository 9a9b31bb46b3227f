"""The functions of hops-util-py that this package has: on the import path of steps and notebooks alone."""

from pkgutil import extend_path

from airflow_hops.extensions.experiments import hops as hops_api

# Folders ``hops`` of other extensions on the import path have modules of it, too.
__path__ = extend_path(hops_api.__path__, __name__)
