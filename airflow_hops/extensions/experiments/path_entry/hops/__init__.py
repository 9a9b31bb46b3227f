"""The functions of hops-util-py that this package has: on the import path of steps and notebooks alone."""

import sys
from pkgutil import extend_path
from types import ModuleType

from airflow_hops.extensions.experiments import hops as hops_api
from airflow_hops.extensions.experiments.hops.absent import MODULES, calls_of

# Folders ``hops`` of other extensions on the import path have modules of it, too.
__path__ = extend_path(hops_api.__path__, __name__)

for _name, _instead in MODULES.items():
    _absent = ModuleType(f"{__name__}.{_name}", f"Not available here; use instead: {_instead}")
    _absent.__getattr__ = calls_of(_name)  # type: ignore[method-assign]
    globals()[_name] = sys.modules[_absent.__name__] = _absent
