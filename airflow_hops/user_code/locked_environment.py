"""Finds the environment with the packages of a lock, or makes it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.named_environment import base_of
from airflow_hops.core.contract.profiles import BASE, STAMP_NAME, profile_named, profile_of
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.environments.named import installed_packages, list_named, make_named, named_folder, packages_of
from airflow_hops.environments.runtime import create_environment, pins_file, pins_of
from airflow_hops.environments.uv_program import Say


def changed_packages(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Returns the packages whose versions differ between two environments, by name; None for a missing one."""
    names = sorted({*before, *after})
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def find_or_make(
    runtime: Path,
    lock: Mapping[str, str],
    from_elsewhere: Collection[str],
    *,
    profile: str | None = None,
    find_uv: Callable[[], str],
    say: Say,
) -> Path:
    """Returns the folder of an environment with exactly the packages of a lock.

    It is the current one, its base, a named one of this base, or one that was made for this lock before. Otherwise it
    is made: as a named environment of the base or, if the base has other versions, from the lock alone.

    Args:
        runtime: Folder of the current environment.
        lock: Versions by package.
        from_elsewhere: Packages that were not installed from an index.
        profile: Profile of the lock; None for the one of the current environment.
        find_uv: Returns the uv program.
        say: Called with each line of progress.

    Raises:
        BadInput: it would have to be made, with a package that did not come from an index, or for a profile that does
            not run on this machine.
        HopsError: it cannot be made.
    """
    base = base_of(runtime)
    pins_text = "".join(f"{package}=={version}\n" for package, version in sorted(lock.items()))
    name = f"lock-{hashlib.sha256(pins_text.encode()).hexdigest()[:12]}"
    whole = base.with_name(f"{base.name}-{name}")
    there = [runtime, base, *(each.folder for each in list_named(base) if each.state.good), whole]
    for folder in there:
        if (folder / "bin" / "python").exists() and packages_of(folder) == dict(lock):
            return folder
    own = installed_packages(base)
    adds_only = all(lock.get(package) == version for package, version in own.items())
    if lost := [name for name in from_elsewhere if name not in own or not adds_only]:
        raise BadInput(
            f"no environment here has the run's packages, and {', '.join(lost)} came from a path or an address: it "
            "cannot be installed by its version; install it as the run had it, or give --environment present"
        )
    if adds_only:
        added = [f"{package}=={version}" for package, version in lock.items() if package not in own]
        say(f"environment {name}: {base} and {len(added)} more packages")
        make_named(base, name, added, pins_of(base), uv=find_uv(), say=say)
        folder = named_folder(base, name)
    else:
        differing = len(changed_packages(lock, own))
        say(f"environment {whole}: {len(lock)} packages, since {base} differs in {differing}; it takes minutes and GBs")
        folder = whole
        with temporary_folder("uv") as scratch:
            pins = scratch / (profile_named(profile) if profile else profile_of(base) or BASE).pins
            pins.write_text(pins_text)
            shutil.copy(pins_file().with_name("uv.toml"), scratch)
            create_environment(folder, pins, uv=find_uv(), force=folder.exists(), say=say)
        (folder / STAMP_NAME).unlink()  # its pins differ from those of this package
    if changed := changed_packages(lock, packages_of(folder)):
        raise HopsError(f"{folder}: made for the lock, but differs from it in {', '.join(changed)}")
    return folder
