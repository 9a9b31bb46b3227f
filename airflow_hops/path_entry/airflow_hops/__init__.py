"""Stand-in for the enclosing package where the package's parent must not be on the import path."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_spec = PathFinder.find_spec(__name__, [str(Path(__file__).parents[3])])
assert _spec is not None and _spec.loader is not None
# The import system returns the entry of sys.modules after this module has run: then it is the package itself.
sys.modules[__name__] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
