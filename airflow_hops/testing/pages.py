"""Contract tests of extensions' pages, for pytest in Airflow's environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from airflow_hops.core.extensions import PAGES, load_extension
from airflow_hops.web.extension_pages import ExtensionPage


class PagesContract:
    """Tests that every page passes; a subclass names it.

    Attributes:
        name: Name of the page in the entry-point group ``airflow_hops.pages``.
        public: Names of routes that anybody may ask without a login.
    """

    name: ClassVar[str]
    public: ClassVar[frozenset[str]] = frozenset()

    def test_the_entry_point_is_a_page(self) -> None:
        page = load_extension(PAGES, self.name)
        assert isinstance(page, ExtensionPage) and (page.router.routes or page.bundle)

    def test_every_route_checks_access(self) -> None:
        """A plugin's routes are public unless they depend on a check of :mod:`airflow_hops.web.access`."""
        for route in load_extension(PAGES, self.name).router.routes:
            if isinstance(route, APIRoute) and route.name not in self.public:
                checks = (getattr(call, "__qualname__", "") for call in _dependencies(route.dependant))
                assert any(name.startswith("requires_access_dag.") for name in checks), f"{route.path} is public"

    def test_the_bundle_takes_the_hosts_react_and_defines_a_component(self) -> None:
        """Two copies of React cannot render one page."""
        page: ExtensionPage = load_extension(PAGES, self.name)
        if page.bundle is not None:
            code = page.bundle.read_text()
            assert "AirflowPlugin" in code
            assert "__CLIENT_INTERNALS_DO_NOT_USE_OR_WARN_USERS_THEY_CANNOT_UPGRADE" not in code

    def test_the_route_that_is_asked_for_tabs_exists(self) -> None:
        page: ExtensionPage = load_extension(PAGES, self.name)
        paths = [route.path for route in page.router.routes if isinstance(route, APIRoute)]
        assert page.applies is None or page.applies in paths


def _dependencies(dependant: Dependant) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _dependencies(each)
