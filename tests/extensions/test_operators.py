"""Literal arguments of the operators of extensions."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from test_arguments import check_each_argument, check_late_arguments

from airflow_hops import extensions
from airflow_hops.operators.base import HopsTask


def operators() -> Iterator[type[HopsTask]]:
    for extension in pkgutil.iter_modules(extensions.__path__, "airflow_hops.extensions."):
        module = importlib.import_module(extension.name)
        for name in getattr(module, "__all__", ()):
            with contextlib.suppress(ModuleNotFoundError):  # names for user code, in the runtime environment
                if inspect.isclass(each := getattr(module, name)) and issubclass(each, HopsTask):
                    yield each


@pytest.mark.parametrize("operator", operators())
def test_object_of_no_type_is_refused_by_name(operator: type[HopsTask]) -> None:
    check_each_argument(operator)


@pytest.mark.parametrize("operator", operators())
def test_late_values_pass_where_airflow_renders_them(operator: type[HopsTask]) -> None:
    check_late_arguments(operator)
