"""Builds the pages of the web UI into the wheel and the source distribution."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

from build_ui import BuildFailed, build


class PagesBuildHook(BuildHookInterface):
    """Runs npm where the pages are not built from the present sources. An editable installation takes what is there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the pages.

        Args:
            version: ``standard``, or ``editable``.
            build_data: Not used.

        Raises:
            RuntimeError: they cannot be built.
        """
        if version == "editable" or os.environ.get("HOPS_WITHOUT_PAGES"):
            return
        try:
            build(self.app.display_info)
        except BuildFailed as error:
            raise RuntimeError(f"the pages of the web UI: {error} (HOPS_WITHOUT_PAGES=1 builds without them)") from None
