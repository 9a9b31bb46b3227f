"""What the demos share: their arguments, the services that they run on, and how a showing ends."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from rich.console import Console

from demo.airflow_api import AirflowApi
from demo.follow import RunFailed
from demo.services import REPOSITORY, ServiceFailed, Stack

LOG_WIDTH = 140


def arguments(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The arguments of every demo."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--home", type=Path, default=REPOSITORY / ".hops", help="folder of all the demo's state")
    parser.add_argument("--runtime", type=Path, default=REPOSITORY / ".venv-runtime", help="runtime environment")
    parser.add_argument(
        "--exit",
        action="store_true",
        default=os.environ.get("HOPS_DEMO_EXIT", "") not in ("", "0"),
        help="exit after the summary instead of serving the web UI until Ctrl-C (or HOPS_DEMO_EXIT=1)",
    )
    return parser


def show(given: argparse.Namespace, perform: Callable[[Stack, AirflowApi, Console], None]) -> int:
    """Starts the services, shows what there is to see, and serves the web UI until Ctrl-C.

    Args:
        given: The arguments.
        perform: The showing, on running services.

    Returns:
        The exit code.
    """
    # Also where the shell that started this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A log has no width of its own; 80 columns would tear the tables apart.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    began = time.monotonic()
    home = given.home.resolve()
    forget_serving(home)
    try:
        with Stack(home, given.runtime.resolve(), REPOSITORY / "dags", lambda text: console.print(text)) as stack:
            console.print("[bold]Starting Airflow and the model server[/bold]")
            api = stack.start()
            console.print(f"ready after {time.monotonic() - began:.1f} s")
            perform(stack, api, console)
            console.print(f"\nThe whole demo took {time.monotonic() - began:.0f} s.")
            if not given.exit:
                console.print(f"\nThe web UI is at [bold]{api.url}[/bold] until you press Ctrl-C.")
                while True:
                    for service in stack.services:
                        service.check()
                    time.sleep(1)
    except KeyboardInterrupt:
        console.print("\nstopped")
        return 130
    except (RunFailed, ServiceFailed, TimeoutError, httpx.HTTPError) as error:
        console.print(f"\n[bold red]The demo failed.[/bold red]\n{error}", markup=not isinstance(error, RunFailed))
        return 1
    return 0


def forget_serving(home: Path) -> None:
    """Clears what an earlier showing served and registered; its artifacts stay, and what is unchanged is not redone."""
    for name in ("serving", "store/_models", "store/_state"):
        shutil.rmtree(home / name, ignore_errors=True)
    for path in home.glob("mlflow.db*"):
        path.unlink()
