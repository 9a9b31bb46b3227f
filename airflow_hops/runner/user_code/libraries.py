"""Python modules of the runtime environment, without starting its Python."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_hops.runner.environments.named import site_packages
from airflow_hops.runner.user_code.source_references import module_name

_MAPPED = re.compile(r"'\w[\w.]*': '(/[^']+)'")


class Libraries:
    """The modules that a runtime environment can import besides those of the user code."""

    def __init__(self, runtime: Path) -> None:
        self._site_packages = site_packages(runtime)

    def has_module(self, top: str) -> bool:
        """Returns whether the site packages have a top-level module; it counts as a part of a library."""
        return any(
            (site / top).is_dir() or any(module_name(file.name) == top for file in site.glob(f"{top}.*"))
            for site in self._site_packages
        )

    @cached_property
    def source_folders(self) -> list[Path]:
        """Folders outside of the site packages: those that ``.pth`` files put on the path, and editable projects."""
        folders = []
        for site in self._site_packages:
            lines = [line.strip() for file in sorted(site.glob("*.pth")) for line in file.read_text().splitlines()]
            folders += [site / line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
            for finder in sorted(site.glob("__editable__*_finder.py")):  # setuptools writes a finder for other layouts
                folders += [Path(path).parent for path in _MAPPED.findall(finder.read_text())]
            for file in sorted(site.glob("*-info/direct_url.json")):  # https://peps.python.org/pep-0610/
                origin = json.loads(file.read_text())
                if origin.get("dir_info", {}).get("editable"):
                    project = Path(unquote(urlsplit(origin["url"]).path))
                    folders += [project, project / "src"]
        return list(dict.fromkeys(folder for folder in folders if folder not in self._site_packages))
