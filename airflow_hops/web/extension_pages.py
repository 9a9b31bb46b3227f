"""Pages of extensions: routes of the web API, and the React bundles that the pages load where they show them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Request

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import PAGES, extensions
from airflow_hops.core.stability import experimental
from airflow_hops.web.access import ReadableDags
from airflow_hops.web.pages import ADDRESS, version_of
from airflow_hops.web.types import Model

log = logging.getLogger(__name__)
router = APIRouter(prefix="/api/extensions", tags=["pipelines"])

Destination = Literal["pipelines", "pipeline", "runs", "model", "skew"]
"""A page beside the list of pipelines, a page of each pipeline, a view of its runs, a tab of each model, or one of each
model whose requests are compared, on the page Skew.
"""


@experimental
@dataclass(frozen=True, kw_only=True)
class ExtensionPage:
    """A page that a distribution registers under the entry-point group ``airflow_hops.pages``.

    Attributes:
        router: Routes of the web API, each with a check of :mod:`airflow_hops.web.access`.
        bundle: JavaScript file that assigns a React component to ``globalThis.AirflowPlugin``, as bundles of Airflow's
            React plugins do. It is loaded when the page is first shown.
        destination: Place of the page, whose address ends in the name of the entry point.
        label: Name of the page for users.
        kind: Kind of artifacts that the bundle shows on the tab of the task that made them.
        applies: For a tab of models, the path of a route with ``{dag_id}`` and ``{model}`` that returns whether the
            model has the tab; None for all models.

    Raises:
        BadInput: it has a place but no bundle or label, or a bundle but no place.

    Example:
        >>> ExtensionPage(router=APIRouter(), destination="model", label="Calibration")
        Traceback (most recent call last):
        ...
        airflow_hops.core.errors.BadInput: bundle is missing: a page that is shown needs its JavaScript file
    """

    router: APIRouter
    bundle: Path | None = None
    destination: Destination | None = None
    label: str = ""
    kind: str | None = None
    applies: str | None = None

    def __post_init__(self) -> None:
        has_place = self.destination is not None or self.kind is not None
        if has_place and self.bundle is None:
            raise BadInput("bundle is missing: a page that is shown needs its JavaScript file")
        if self.bundle is not None and not has_place:
            raise BadInput(f"destination and kind are missing: nothing would show the bundle {self.bundle}")
        if self.destination is not None and not self.label:
            raise BadInput(f"label is missing: a page of the destination {self.destination!r} needs a name for users")
        if self.applies is not None and self.destination != "model":
            raise BadInput(f"applies is {self.applies!r}, but only tabs of models (destination='model') ask")


class ExtensionEntry(Model):
    """A page of an extension, as the pages need to know it."""

    name: str
    bundle: str | None
    """Address of the JavaScript, relative to the base of Airflow's pages."""
    destination: Destination | None
    label: str
    kind: str | None
    applies: str | None


def load_pages() -> dict[str, ExtensionPage]:
    """Imports the pages of extensions by name, without those that cannot be used, which the log names."""
    pages = {}
    for extension in extensions(PAGES).values():
        try:
            page = extension.load()
            if not isinstance(page, ExtensionPage):
                raise BadInput(f"{extension} is {page!r}, expected an ExtensionPage")
            pages[extension.name] = page
        except BadInput:  # the other pages do not depend on it
            log.exception("%s is left out", extension)
    return pages


def bundles(request: Request) -> Mapping[str, Path]:
    """Returns the JavaScript files of extensions by their names in the address."""
    pages: Mapping[str, ExtensionPage] = request.app.state.pages
    return {f"{name}.umd.js": page.bundle for name, page in pages.items() if page.bundle is not None}


@router.get("")
def list_extensions(request: Request, readable: ReadableDags) -> list[ExtensionEntry]:
    """Lists the pages of extensions by the names under which they are registered."""
    files = bundles(request)
    return [
        ExtensionEntry.of(
            page, name=name, bundle=_address(file, files[file]) if (file := f"{name}.umd.js") in files else None
        )
        for name, page in sorted(request.app.state.pages.items())
    ]


def _address(file: str, path: Path) -> str:
    version = version_of(path.read_bytes()) if path.exists() else "none"
    return f"{ADDRESS}/{file}?v={version}"
