"""``airflow hops runtime``: manages the runtime environment and the named environments."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from pathlib import Path

from airflow_hops.airflow_internals.cli import AirflowConsole
from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.profiles import base_of, locked_packages, profile_named, profile_of
from airflow_hops.core.store.files import StoreFiles
from airflow_hops.runner.connections import SPARK_CONN_ID, check_options, find_connection
from airflow_hops.runner.environments import packed
from airflow_hops.runner.environments.cuda import cuda_of
from airflow_hops.runner.environments.java import own_java
from airflow_hops.runner.environments.named import (
    NamedEnvironment,
    find_named,
    list_named,
    make_named,
    named_folder,
    remove_named,
)
from airflow_hops.runner.environments.named import installed_packages as installed
from airflow_hops.runner.environments.runtime import (
    add_requirements,
    added_requirements,
    create_environment,
    environment_state,
    machine_profile,
    pins_file,
    pins_fingerprint,
    pins_of,
    reason_for_profile,
)
from airflow_hops.runner.environments.uv_program import located, package_name
from airflow_hops.runner.launchers.spark import archive_options
from airflow_hops.runner.runtime import RuntimeHook


def create(args: Namespace) -> None:
    """Creates, completes or updates the runtime environment from the pins, or a named environment."""
    args.requirement = [*map(located, args.requirement)]
    begun, base = time.monotonic(), _folder(args)
    if args.name and args.cuda:
        raise BadInput("--cuda: expected without --name: a named environment has the CUDA of the runtime environment")
    if args.name and args.horovod:
        raise BadInput("--horovod: expected without --name: a named environment has the Horovod of its base")
    if args.name and args.profile:
        raise BadInput("--profile: expected without --name: a named environment has the profile of its base")
    if args.name:
        added = added_requirements(named_folder(base, args.name))
        _make(args, [*added, *args.requirement], begun, force=args.force)
        return
    present = profile_of(base) if base.exists() else None
    profile = profile_named(args.profile) if args.profile else present or machine_profile()
    keeps_cuda = not args.force and present is profile and pins_of(base).name == profile.cuda_pins
    pins = pins_file(profile.cuda_pins if args.cuda or keeps_cuda else profile.pins)
    print(f"Runtime environment {base} from {pins} (profile of this machine: {reason_for_profile()})", flush=True)
    wants_java = args.java or own_java(base) is not None or find_connection(SPARK_CONN_ID, "spark") is not None
    java = pins.with_name("java.txt") if wants_java else None
    options = {"python": args.python, "java": java, "horovod": args.horovod, "force": args.force}
    made = create_environment(base, pins, uv=find_uv(), **options, say=say)
    if args.requirement:
        add_requirements(base, pins, args.requirement, uv=find_uv(), say=say)
    print(f"Ready ({time.monotonic() - begun:.1f} s)." if made else "It already exists with these pins.")
    if base != runtime_folder():
        print(f"Configure it: AIRFLOW__HOPS__RUNTIME={base}, or the field 'runtime' of the connection.")


def install(args: Namespace) -> None:
    """Installs packages into a named environment, or next to the pinned ones in the runtime environment."""
    args.requirement = [*map(located, args.requirement)]
    begun, base = time.monotonic(), _folder(args)
    if args.name:
        _make(args, [*added_requirements(find_named(base, args.name)), *args.requirement], begun)
        return
    add_requirements(base, pins_of(base), args.requirement, uv=find_uv(), say=say)
    print(f"{', '.join(args.requirement)}: in {base}. Other machines that run steps need the same command.")


def remove(args: Namespace) -> None:
    """Removes a named environment, or some of its packages."""
    begun, base = time.monotonic(), _folder(args)
    if not args.package:
        print(f"{remove_named(base, args.name)}: removed.")
        return
    there = {package_name(line): line for line in added_requirements(find_named(base, args.name))}
    for package in map(package_name, args.package):
        if package not in there:
            raise BadInput(f"{package!r} was not added to {args.name!r}, which has {', '.join(there) or 'nothing'}")
        del there[package]
    _make(args, list(there.values()), begun)


def show(args: Namespace) -> None:
    """Lists the runtime environment and its named environments, with their common CUDA version."""
    from airflow_hops.cli.doctor import nvidia_gpus

    base = _folder(args)
    state = environment_state(base, pins_fingerprint(base))
    all_of_them = [NamedEnvironment("", base, tuple(added_requirements(base)), state), *list_named(base)]
    cuda, profile = cuda_of(installed(base)) or "none", profile_of(base)
    AirflowConsole().print_as(
        data=[
            {
                "name": each.name,
                "added": ", ".join(each.requirements),
                "packages": str(len(locked_packages(each.folder) if each.name else installed(base))),
                "state": each.state.name,
                "profile": profile.name if profile else "",
                "cuda": cuda,
                "folder": str(each.folder),
            }
            for each in all_of_them
        ],
        output=args.output,
    )
    if args.output == "table":
        for named in all_of_them:
            if named.state.name not in ("good", "unmanaged"):
                command = f"airflow hops runtime create {base}{f' --name {named.name}' if named.name else ''}"
                print(f"{named.state.detail}: {command}")
        print(f"GPUs of this machine: {'; '.join(nvidia_gpus()) or 'none'}; 'airflow hops doctor' checks them.")


def pack(args: Namespace) -> None:
    """Packs the runtime environment, or a named one, for the executors of a Spark cluster."""
    begun, base, target = time.monotonic(), _folder(args), args.target
    if not target.endswith(".tar.gz"):
        raise BadInput(f"{target}: expected the name of a .tar.gz file, which Spark unpacks")
    runtime = find_named(base, args.name) if args.name else base
    print(f"{runtime}: packing it takes some minutes", flush=True)
    if "://" in target:
        settings = RuntimeHook(args.hops_conn_id).settings
        options = archive_options(target, settings.store, settings.storage_options)
        with temporary_folder("packed") as folder:
            packed.pack(runtime, folder / "runtime.tar.gz")
            try:
                StoreFiles(target, options).upload(folder / "runtime.tar.gz", target)
            except HopsError:
                raise
            except Exception as error:  # raised by the file system's client
                raise HopsError(f"{target}: cannot be written ({type(error).__name__}: {error})") from error
    else:
        target = Path(target).expanduser().absolute()
        packed.pack(runtime, target)
    print(f"{target}: ready ({time.monotonic() - begun:.0f} s).")
    print(f'Name it in the Spark connection: "extra": {{"runtime_archive": "{target}"}}')


def path(args: Namespace) -> None:
    """Prints the folder of the runtime environment."""
    print(runtime_folder())


def runtime_folder() -> Path:
    """Returns ``[hops] runtime``, or ``hops-runtime`` in AIRFLOW_HOME; needs no database."""
    check_options()
    configured = conf.get("hops", "runtime", fallback="")
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    return Path(configured or home / "hops-runtime").expanduser().absolute()


def _make(args: Namespace, requirements: list[str], begun: float, *, force: bool = False) -> None:
    base = _folder(args)
    python = getattr(args, "python", None)
    made = make_named(base, args.name, requirements, pins_of(base), uv=find_uv(), python=python, force=force, say=say)
    for line in locked_packages(named_folder(base, args.name)):
        print(f"  {line}")
    seconds = f" ({time.monotonic() - begun:.1f} s)" if made else ""
    print(f"Ready{seconds}: runtime={args.name!r} of a task, or in the connection's field 'runtime'.")
    print("Other machines that run steps need the same command.")


def _folder(args: Namespace) -> Path:
    return base_of(Path(args.path).expanduser().absolute() if args.path else runtime_folder())


def say(line: str) -> None:
    """Prints a line of progress."""
    print(f"  {line}", flush=True)


def find_uv() -> str:
    """Returns the path of uv; raises SystemExit if it is not installed."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise SystemExit(f"uv, which this package depends on, is not installed ({error}): pip install uv") from None
