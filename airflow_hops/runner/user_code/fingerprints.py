"""Fingerprints of this package's and the user's code, for a step's cache key."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from pathlib import Path

import airflow_hops
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.run_record import MAX_CODE_BYTES, MAX_CODE_FILES, UserCode

ML_SIDE = ("core", "hops", "ml", "path_entry", "serving")
"""The folders or modules of this package, and of each extension in it, that run in a step."""


_digests: dict[tuple[str, int, int, int, int], bytes] = {}
"""SHA-256 of sources by path and state."""


def step_sources() -> list[str]:
    """Returns the paths of the modules that a step can import."""
    package = Path(airflow_hops.__file__).parent
    layers = [root / name for root in (package, *package.glob("extensions/*")) for name in ML_SIDE]
    sources = [str(source) for layer in layers if (source := layer.with_suffix(".py")).is_file()]
    for folder, _, names in itertools.chain.from_iterable(map(os.walk, layers)):
        # Emacs 29: the lock of a file that is edited is a link to nothing, such as .#step.py.
        sources += [f"{folder}/{name}" for name in names if name.endswith(".py") and not name.startswith(".")]
    return sorted(sources)


def read_sources() -> str:
    """Returns the SHA-256 (hex) of the sources that can run in a step; unchanged ones are read once in a process.

    Hashing them takes longer than the rest of a cached task, so forks have the digests of their parent.
    """
    package = len(str(Path(airflow_hops.__file__).parent))
    digest = hashlib.sha256()
    for source in step_sources():
        status = os.stat(source)  # noqa: PTH116  # a path object takes longer than the call
        state = source, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
        if state not in _digests:
            _digests[state] = hashlib.sha256(Path(source).read_bytes()).digest()
        digest.update(f"{source[package:]}\0".encode() + _digests[state])
    return digest.hexdigest()


package_fingerprint = functools.cache(read_sources)
"""Returns :func:`read_sources` as at the first call in this process."""


def user_code(spec: StepSpec, runtime: Path | None = None) -> UserCode:
    """Returns the user code of a step for its record: :class:`.UserFiles` with contents.

    Without the environment ``runtime``, only the files beside the DAG file count.
    """
    from airflow_hops.runner.user_code.files import UserFiles, read_file
    from airflow_hops.runner.user_code.libraries import Libraries

    user_files = UserFiles(spec, Libraries(runtime) if runtime is not None else None)
    files: dict[str, bytes] = {}
    left, left_out = MAX_CODE_BYTES, []
    for name, file in sorted(user_files.files.items()):
        is_kept = len(files) < MAX_CODE_FILES and not user_files.is_link_out(name)
        content = read_file(file, left) if is_kept else None
        if content is None:
            left_out.append(name)
        else:
            files[name] = content
            left -= len(content)
    return UserCode(user_files.fingerprint, files, left_out, user_files.script, user_files.folders, user_files.unknown)
