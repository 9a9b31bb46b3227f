"""Packages of which each name is imported when it is first used, since both environments import them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package.

    Args:
        package: The package's name.
        modules: By module, absolute or, from a dot on, within the package: the names that it has, separated by spaces.
            A name may be that of a submodule.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(module_of[name], package)
        return vars(module)[name] if name in vars(module) else importlib.import_module(f"{module.__name__}.{name}")

    return get
