"""Contract tests of pages' routers, for pytest in Airflow's environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from airflow_hops.core.extensions import PAGES, load_extension


class PagesContract:
    """Tests that every router passes; a subclass names it.

    Attributes:
        name: Name of the router in the entry-point group ``airflow_hops.pages``.
        public: Names of routes that anybody may ask without a login.
    """

    name: ClassVar[str]
    public: ClassVar[frozenset[str]] = frozenset()

    def test_the_entry_point_is_a_router(self) -> None:
        router = load_extension(PAGES, self.name)
        assert isinstance(router, APIRouter) and router.routes

    def test_every_route_checks_access(self) -> None:
        """A plugin's routes are public unless they depend on a check of :mod:`airflow_hops.web.access`."""
        for route in load_extension(PAGES, self.name).routes:
            if isinstance(route, APIRoute) and route.name not in self.public:
                checks = (getattr(call, "__qualname__", "") for call in _dependencies(route.dependant))
                assert any(name.startswith("requires_access_dag.") for name in checks), f"{route.path} is public"


def _dependencies(dependant: Dependant) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _dependencies(each)
