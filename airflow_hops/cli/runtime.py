"""``airflow hops runtime``: makes the runtime environment, and says where it is."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from pathlib import Path

from airflow.configuration import conf

from airflow_hops.contract.artifacts import HopsError
from airflow_hops.environments import add_requirements, create_environment, pins_file


def create(args: Namespace) -> None:
    """Makes the runtime environment from the pins, or completes or updates the one that is there.

    Raises:
        SystemExit: it could not be made; the message says why.
    """
    folder = Path(args.path).expanduser().absolute() if args.path else runtime_folder()
    pins = pins_file()
    begun = time.monotonic()
    print(f"Runtime environment {folder} from {pins}", flush=True)
    try:
        made = create_environment(
            folder,
            pins,
            uv=_uv(),
            python=args.python,
            java=pins.with_name("java.txt"),
            force=args.force,
            say=lambda line: print(f"  {line}", flush=True),
        )
    except HopsError as error:
        raise SystemExit(str(error)) from None
    print(f"Ready ({time.monotonic() - begun:.1f} s)." if made else "It is there already, with these very pins.")
    if folder != runtime_folder():
        print(f"Make it known: AIRFLOW__HOPS__RUNTIME={folder}, or the field 'runtime' of the connection.")


def add(args: Namespace) -> None:
    """Installs packages into the runtime environment, beside those of the pins.

    Raises:
        SystemExit: they could not be installed; the message says why.
    """
    folder = Path(args.path).expanduser().absolute() if args.path else runtime_folder()
    try:
        add_requirements(
            folder, pins_file(), args.requirement, uv=_uv(), say=lambda line: print(f"  {line}", flush=True)
        )
    except HopsError as error:
        raise SystemExit(str(error)) from None
    print(f"{', '.join(args.requirement)}: in {folder}. Other machines that run steps need the same command.")


def path(args: Namespace) -> None:
    """Prints the folder of the runtime environment."""
    print(runtime_folder())


def runtime_folder() -> Path:
    """``[hops] runtime``, or ``hops-runtime`` in AIRFLOW_HOME; needs no database."""
    configured = conf.get("hops", "runtime", fallback="")
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    return Path(configured or home / "hops-runtime").expanduser().absolute()


def _uv() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise SystemExit(f"uv, which this package depends on, is not installed ({error}): pip install uv") from None
