"""Archives of this package and of user code, stored under their contents' hash, from where pods fetch them.

An archive that is older than a day is written again when a pod is created with it. Writing one removes those with which
no pod was created for a week.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import airflow_hops
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.environments.runtime import pins_file
from airflow_hops.runner.user_code.source_references import module_name

_NO_CODE = {"__pycache__", ".git", ".venv", "node_modules"}
_NO_STEP = {"web", "cli", "operators", "plugin.py"}
_MOST_BYTES = 256 << 20
_REWRITTEN_AFTER, _REMOVED_AFTER = timedelta(days=1), timedelta(days=7)


def store_package(store: ArtifactStore) -> str:
    """Stores this package with its pins, unless it is there; returns the archive's address."""
    package = Path(airflow_hops.__file__).parent
    files = [file for file in _files(package) if file.relative_to(package).parts[0] not in _NO_STEP]
    names = {f"{package.name}/{file.relative_to(package).as_posix()}": file for file in files}
    names |= {f"{package.name}/requirements/{file.name}": file for file in sorted(pins_file().parent.glob("*.*"))}
    return _store(store, names)


def store_code(
    store: ArtifactStore, code_paths: Sequence[str], needed: Collection[Path] | None = None
) -> tuple[str, list[str]]:
    """Stores the files in folders of user code, unless they are there.

    Args:
        store: The artifact store.
        code_paths: The folders.
        needed: Modules that the step needs, so that others stay behind; None for all. Files that are not modules all
            are included, since code may read them by computed names.

    Returns:
        The archive's address, and the paths of the folders in it.

    Raises:
        BadInput: the folders hold more than 256 MiB.
    """
    folders = [Path(os.path.normpath(path)) for path in code_paths]
    tops = [
        folder for folder in folders if not any(folder != other and folder.is_relative_to(other) for other in folders)
    ]
    names: dict[str, Path] = {}
    places: dict[Path, str] = {}
    for number, top in enumerate(dict.fromkeys(tops)):
        # A packaged DAG is an archive, and its folder may be inside of it.
        file = next((each for each in (top, *top.parents) if each.is_file()), None)
        place = f"{number}/{file.name}" if file else str(number)
        inner = top.relative_to(file).as_posix() if file else "."
        places[top] = place if inner == "." else f"{place}/{inner}"
        if file:
            names[place] = file
            continue
        for each in _files(top):
            if needed is None or each in needed or module_name(each.name) is None:
                names[f"{place}/{each.relative_to(top).as_posix()}"] = each
    if (size := sum(file.stat().st_size for file in names.values())) > _MOST_BYTES:
        raise BadInput(
            f"the folders of user code {', '.join(map(str, places))} hold {size >> 20} MiB, but at most "
            f"{_MOST_BYTES >> 20} MiB can be sent to a pod; move data out of the folder of the DAGs"
        )
    paths = []
    for folder in folders:
        top = next(each for each in places if folder.is_relative_to(each))
        inner = folder.relative_to(top).as_posix()
        paths.append(places[top] if inner == "." else f"{places[top]}/{inner}")
    return _store(store, names), paths


def _store(store: ArtifactStore, files: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    uri = store.internal("_code", f"{digest.hexdigest()}.zip")
    if not _is_younger(store, uri, _REWRITTEN_AFTER):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for name, file in sorted(files.items()):
                archive.write(file, name)
        store.files.write(uri, buffer.getvalue())
        for name in store.names(store.internal("_code")):
            if not _is_younger(store, other := store.internal("_code", name), _REMOVED_AFTER):
                store.remove_text(other)
    return uri


def _is_younger(store: ArtifactStore, uri: str, age: timedelta) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return datetime.now(UTC) - store.files.modified(uri) < age
    return False


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place).resolve()
        # A link to a parent folder would loop forever.
        folders[:] = [f for f in sorted(set(folders) - _NO_CODE) if not here.is_relative_to((here / f).resolve())]
        yield from (file for file in (Path(place, name) for name in sorted(names)) if file.is_file())
