"""The functions of hops-util-py that this package has: on the import path of steps and notebooks alone."""

import sys
from pkgutil import extend_path

from airflow_hops.extensions.experiments import hops as hops_api
from airflow_hops.extensions.experiments.hops.absent import MODULES, AbsentModule

# Folders ``hops`` of other extensions on the import path have modules of it, too.
__path__ = extend_path(hops_api.__path__, __name__)

for _name, _instead in MODULES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = AbsentModule(f"{__name__}.{_name}", _instead)
